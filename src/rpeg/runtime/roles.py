"""Roles of a worker: which one does which stage. Each is built once, when a stage bound to the worker needs it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from rpeg.environments.rewards import Scorer
from rpeg.graph.data import Per
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Stage, StageKind
from rpeg.recipe.schema import Recipe
from rpeg.recipe.sources import open_rewards
from rpeg.runtime.advantages import Advantages
from rpeg.runtime.generator import Generator
from rpeg.runtime.judge import Judge
from rpeg.runtime.kl_control import KlControl, coefficient_at
from rpeg.runtime.origin import Origin
from rpeg.runtime.passes import num_trained
from rpeg.runtime.policy import Policy
from rpeg.runtime.reference import FrozenReference
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.task import Outcome, Task

__all__ = ["Method", "Roles"]

Method = Callable[[Task], Outcome]
"""Does one firing of a stage."""


class Roles:
    """The roles of one worker, by what its stages are and which model they use."""

    def __init__(self, recipe: Recipe, graph: Graph, origin: Origin) -> None:
        """Build nothing yet."""
        self._recipe, self._graph, self._origin = recipe, graph, origin
        self._trained = {stage.model for stage in graph.stages if stage.kind is StageKind.TRAIN}

    def method(self, name: str) -> Method:
        """Return what does the stage ``name``; the role behind it is built now."""
        stage = self._graph.stage_of[name]
        match stage.kind:
            case StageKind.GENERATE:
                return self.generator.answer if "greedy" in stage.heads else self.generator.generate
            case StageKind.PULL:
                return self.generator.pull
            case StageKind.EVALUATE:
                return self.generator.evaluate
            case StageKind.VERIFY:
                return self.judge.verify_greedy if self._is_per_group(name) else self.judge.verify
            case StageKind.ADVANTAGE:
                return self.advantages.compare
            case StageKind.FORWARD:
                return self._forward(stage)
            case StageKind.TRAIN:
                return self.policy.train
            case StageKind.UPDATE:
                return self.kl_control.update if stage.model is None else self.policy.update
            case StageKind.PUSH:
                return self.policy.push
            case _:
                raise AssertionError(f"{name}: no role does {stage.kind}")

    def save(self, folder: Path) -> None:
        """Write what the roles of this worker have learned into the folder of a checkpoint."""
        for name in ("policy", "kl_control"):
            if name in self.__dict__:
                getattr(self, name).save(folder)

    def close(self) -> None:
        """End what was started to help."""
        if "_rewards" in self.__dict__:
            self._rewards.close()

    @cached_property
    def _rewards(self) -> Scorer:
        """What answers are scored with."""
        return open_rewards(self._recipe)

    @cached_property
    def policy(self) -> Policy:
        """What is trained to act."""
        return Policy(self._recipe, self._graph.contract, self._origin)

    @cached_property
    def reference(self) -> FrozenReference:
        """What the policy is held close to."""
        return FrozenReference(self._recipe, self._origin.reference)

    @cached_property
    def generator(self) -> Generator:
        """What samples."""
        return Generator(self._recipe, self._origin.model, self._origin.version, self._rewards)

    @cached_property
    def judge(self) -> Judge:
        """What scores answers."""
        return Judge(self._recipe, self._origin.model, self._rewards)

    @cached_property
    def advantages(self) -> Advantages:
        """What compares scores."""
        return Advantages(self._recipe, self._graph.contract, coefficient_at(self._recipe, self._origin))

    @cached_property
    def kl_control(self) -> KlControl:
        """What steers the distance from the reference."""
        return KlControl(self._recipe, self._origin)

    def _is_per_group(self, name: str) -> bool:
        """Return whether a stage makes one row per prompt, not per sample."""
        return any(self._graph.data_of[write.data].per is Per.GROUP for write in self._graph.writes(name))

    def _forward(self, stage: Stage) -> Method:
        """Return the pass of a stage over its rows, under the column that the graph names."""
        score: Callable[[Rows], Ragged] = (self.policy if stage.model in self._trained else self.reference).score
        (column,) = (
            c.name for write in self._graph.writes(stage.name) for c in self._graph.data_of[write.data].columns
        )

        def forward(task: Task) -> Outcome:
            rows = task.samples
            return Outcome(Rows({column: score(rows)}), num_rows=len(rows), num_tokens=num_trained(rows))

        return forward
