"""A worker: one device slot, the roles bound to it, and one method per stage kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from rpeg.graph.contract import Contract
from rpeg.graph.stage import StageKind
from rpeg.recipe.schema import Recipe
from rpeg.recipe.sources import open_rewards
from rpeg.runtime.generator import Generator
from rpeg.runtime.judge import Judge
from rpeg.runtime.task import Outcome, Task
from rpeg.runtime.trainer import Trainer

__all__ = ["Worker", "WorkerSpec", "use_threads"]

_ON_SAMPLES = frozenset({StageKind.VERIFY, StageKind.ADVANTAGE, StageKind.FORWARD, StageKind.TRAIN})


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker is built from; plain values, so that it can be built in another process."""

    recipe: Recipe
    contract: Contract
    """What the graph promises to compute; a rewrite of the graph may differ from the recipe it came from."""
    kinds: frozenset[StageKind]
    """Kinds of the stages bound to it: they say which roles it needs."""
    model: Path
    """Hugging Face folder of the weights it starts from."""
    reference: Path
    """Hugging Face folder of the frozen reference policy."""
    moments: Path | None
    """The optimizer's state to go on from, None to start anew."""
    version: int
    """Version of the weights in ``model``: steps done."""
    threads: int


class Worker:
    """Hosts the roles of one slot."""

    def __init__(self, spec: WorkerSpec) -> None:
        """Load what the bound stages need, on the thread that will use it."""
        use_threads(spec.threads, deterministic=spec.recipe.run.deterministic)
        self._methods: dict[StageKind, Callable[[Task], Outcome]] = {}
        self._rewards = open_rewards(spec.recipe)
        self.trainer: Trainer | None = None
        if spec.kinds & {StageKind.TRAIN, StageKind.UPDATE, StageKind.FORWARD, StageKind.PUSH}:
            self.trainer = Trainer(spec.recipe, spec.contract, spec.model, spec.reference, spec.moments, spec.version)
            self._methods |= self.trainer.methods()
        judge = None
        if spec.kinds & _judging_kinds(spec.recipe):
            judge = Judge(spec.recipe, spec.model, self._rewards)
            self._methods |= judge.methods()
        if spec.kinds & {StageKind.GENERATE, StageKind.PULL, StageKind.EVALUATE}:
            self._methods |= Generator(spec.recipe, spec.model, spec.version, self._rewards, judge).methods()

    def run(self, task: Task) -> tuple[Outcome, float, float]:
        """Do one firing; return its outcome with its start and end on the monotonic clock."""
        start_s = time.monotonic()
        is_idle = task.kind in _ON_SAMPLES and not task.samples.columns  # reads of steps before the first find nothing
        outcome = Outcome() if is_idle else self._methods[task.kind](task)
        return outcome, start_s, time.monotonic()

    def save(self, folder: Path) -> None:
        """Write weights, tokenizer and optimizer state into ``folder``."""
        assert self.trainer is not None, "only the worker that trains has something to save"
        self.trainer.save(folder)

    def close(self) -> None:
        """End what was started to help."""
        self._rewards.close()


def _judging_kinds(recipe: Recipe) -> frozenset[StageKind]:
    """Return the kinds of stages that need a judge: with dynamic sampling the generator judges in its rounds."""
    rounds = {StageKind.GENERATE} if recipe.algorithm.dynamic_sampling else set[StageKind]()
    return frozenset({StageKind.VERIFY, StageKind.ADVANTAGE, *rounds})


def use_threads(threads: int, *, deterministic: bool) -> None:
    """Set how torch computes on this thread: how many threads help, and whether results must repeat bit for bit."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
