"""Roles of a worker: which one does which stage. Each is built once, when a stage bound to the worker needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from rpeg.environments.rewards import Scorer
from rpeg.graph.data import Per
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Stage, StageKind
from rpeg.numerics.parallel.build import WHOLE, ModelLayout
from rpeg.numerics.parallel.sharded import SHARDS_WEIGHTS
from rpeg.plan.plan import Binding, Recompute
from rpeg.plan.workers import ROLLING
from rpeg.recipe.schema import Recipe
from rpeg.recipe.sources import open_rewards
from rpeg.runtime.advantages import Advantages
from rpeg.runtime.critic import Critic
from rpeg.runtime.generator import Generator
from rpeg.runtime.holders import Held, Holder
from rpeg.runtime.judge import Judge
from rpeg.runtime.kl_control import KlControl, coefficient_at
from rpeg.runtime.origin import Origin
from rpeg.runtime.passes import num_trained
from rpeg.runtime.policy import Policy
from rpeg.runtime.reference import AdapterOff, AverageReference, FrozenReference, Reference
from rpeg.runtime.reward_model import RewardRole
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.task import Outcome, Task
from rpeg.runtime.transport import Transport
from rpeg.runtime.world import ALONE, Ranks

__all__ = ["Method", "Roles"]

Method = Callable[[Task], Outcome]
"""Does one firing of a stage."""

_SPLIT = ("policy", "critic", "average")
"""Roles whose weights may be split over ranks, which then put them together to save them."""


class Roles:
    """The roles of one worker, by what its stages are and which model they use."""

    def __init__(
        self,
        recipe: Recipe,
        graph: Graph,
        origin: Origin,
        ranks: Ranks = ALONE,
        bindings: Sequence[Binding] = (),
        transport: Transport | None = None,
    ) -> None:
        """Build nothing yet; ``ranks`` do the same with other rows, or with other parts of models as bindings say.

        Published weights go by ``transport`` from rank to rank, if there is a world to go through.
        """
        self._recipe, self._graph, self._origin, self._ranks = recipe, graph, origin, ranks
        # What an adapter adds, and a value head beside the weights, no rank has as a tile of a model.
        self._transport = None if recipe.model.adapter is not None or self._records_values else transport
        self._binding_of = {binding.stage: binding for binding in bindings}
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
                return self.critic.train if self._is_critic(stage) else self.policy.train
            case StageKind.UPDATE:
                return self._update(stage)
            case StageKind.PUSH:
                return self.policy.push_with_head if self._records_values else self.policy.push
            case _:
                raise AssertionError(f"{name}: no role does {stage.kind}")

    def held(self, holder: Holder) -> Held | None:
        """Return the tensors of some data, None while the role that holds them is not built."""
        role = self.__dict__.get(holder.role)
        return None if role is None else role.held(holder)

    def save(self, folder: Path, at_hand: Callable[[str], AbstractContextManager[None]]) -> None:
        """Write what the roles of this worker have learned into the folder of a checkpoint; one of all ranks does.

        All ranks call it: models may be split over them. Each role is ``at_hand`` meanwhile, one after the other.
        """
        for name in ("policy", "critic", "average", "kl_control"):
            if name in self.__dict__ and (name in _SPLIT or self._ranks.is_first):
                with at_hand(name):
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
        layout = self._laid_out(self._acting)
        return Policy(self._recipe, self._graph.contract, self._origin, self._ranks, *layout, self._transport)

    @cached_property
    def critic(self) -> Critic:
        """What is trained to expect, if it is a model of its own."""
        trains = [each for each in self._graph.stages if each.kind is StageKind.TRAIN and self._is_critic(each)]
        return Critic(self._recipe, self._origin, self._ranks, *self._laid_out(trains))

    @cached_property
    def reference(self) -> Reference:
        """What the policy is held close to."""
        if self._recipe.algorithm.reference == "ema":
            return self.average
        if self._recipe.algorithm.reference == "adapter_off":
            assert self.policy.adapter is not None, "a rule refuses it without an adapter"
            return AdapterOff(self._recipe, self.policy.scorer, self.policy.adapter, self._ranks)
        passes = [each for each in self._graph.stages if each.kind is StageKind.FORWARD and each.heads == ("logprob",)]
        frozen = [each for each in passes if not self._reads_trained(each)]
        layout, most_rows = self._laid_out(frozen)
        if layout.zero < SHARDS_WEIGHTS:  # of frozen weights there are no moments and no gradients to split
            layout = replace(layout, zero=0)
        return FrozenReference(self._recipe, self._origin.reference, self._ranks, layout, most_rows)

    @cached_property
    def average(self) -> AverageReference:
        """The moving average of the policy."""
        laid_out = self._laid_out(self._acting)
        return AverageReference(self._recipe, self._origin, self.policy.parallel, self._ranks, *laid_out)

    @cached_property
    def reward_model(self) -> RewardRole:
        """What scores answers by a model."""
        return RewardRole(self._recipe, self._origin.model, self._ranks)

    @cached_property
    def generator(self) -> Generator:
        """What samples."""
        origin = self._origin
        judge = self.judge if self._recipe.algorithm.dynamic_sampling is not None else None
        layout, _ = self._laid_out(stage for stage in self._graph.stages if stage.kind in ROLLING)
        return Generator(
            self._recipe, self._graph, origin.model, origin.version, self._rewards, judge, self._ranks, layout,
            values=self._records_values, transport=self._transport,
        )  # fmt: skip

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

    @property
    def _acting(self) -> list[Stage]:
        """The stages that train the policy."""
        return [each for each in self._graph.stages if each.kind is StageKind.TRAIN and not self._is_critic(each)]

    @property
    def _records_values(self) -> bool:
        """Whether the graph has the values from the sampler, which needs the critic's head for it."""
        return any(stage.kind is StageKind.GENERATE and "value" in stage.heads for stage in self._graph.stages)

    def _laid_out(self, stages: Iterable[Stage]) -> tuple[ModelLayout, int | None]:
        """Return how the model of some stages lies on the ranks of this worker's mesh, and rows of a micro-batch."""
        found = next((self._binding_of[stage.name] for stage in stages if stage.name in self._binding_of), None)
        if found is None:
            return WHOLE, None
        rows = int(found.micro_rows.evaluate(self._graph.env))
        layout = ModelLayout(found.layout.shard, found.layout.zero, found.pipeline, found.recompute is Recompute.FULL)
        return layout, rows if rows > 1 else None  # 1 is what bindings say that leave it to the token budget

    def _is_per_group(self, name: str) -> bool:
        """Return whether a stage makes one row per prompt, not per sample."""
        return any(self._graph.data_of[write.data].per is Per.GROUP for write in self._graph.writes(name))

    def _is_critic(self, stage: Stage) -> bool:
        """Return whether a stage trains a critic and nothing else."""
        return stage.model == "critic"

    def _update(self, stage: Stage) -> Method:
        if stage.model is None:
            return self.kl_control.update
        if stage.model not in self._trained:
            return self.average.update
        return self.critic.update if self._is_critic(stage) else self.policy.update

    def _forward(self, stage: Stage) -> Method:
        """Return the pass of a stage over its rows, under the columns that the graph names."""
        if stage.heads == ("score",):
            return self.reward_model.score_greedy if self._is_per_group(stage.name) else self.reward_model.score
        made = [self._graph.data_of[write.data] for write in self._graph.writes(stage.name)]
        names = sorted(column.name for data in made for column in data.columns)  # log-probabilities before values
        score = self._scoring(stage)

        def forward(task: Task) -> Outcome:
            rows = task.samples
            columns = dict(zip(names, score(rows), strict=True))
            return Outcome(Rows(columns), num_rows=len(rows), num_tokens=num_trained(rows))

        return forward

    def _scoring(self, stage: Stage) -> Callable[[Rows], tuple[Ragged, ...]]:
        """Return what a pass makes of rows: log-probabilities, values, or both."""
        if set(stage.heads) == {"logprob", "value"}:
            return self.policy.score_and_value
        if stage.heads == ("value",):
            value = self.critic.score if self._is_critic(stage) else self.policy.value
            return lambda rows: (value(rows),)
        score = self.policy.score if self._reads_trained(stage) else self.reference.score
        return lambda rows: (score(rows),)

    def _reads_trained(self, stage: Stage) -> bool:
        """Return whether a pass runs weights that are trained, and not those below an adapter."""
        reads = [read.data for read in self._graph.reads(stage.name) if self._graph.is_state(read.data)]
        return stage.model in self._trained and bool(reads)
