"""A worker: one device slot, the roles bound to it, and one method per stage."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.numerics.precision import device
from rpeg.plan.plan import Binding
from rpeg.recipe.schema import Recipe
from rpeg.runtime.origin import Origin
from rpeg.runtime.roles import Roles
from rpeg.runtime.task import Outcome, Task
from rpeg.runtime.world import ALONE, Place, join, leave

__all__ = ["Worker", "WorkerSpec", "use_threads"]

_ON_SAMPLES = frozenset({StageKind.VERIFY, StageKind.ADVANTAGE, StageKind.FORWARD, StageKind.TRAIN})


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker is built from; plain values, so that it can be built in another process."""

    recipe: Recipe
    graph: Graph
    """What is computed; a rewrite may have made it another than the recipe's."""
    stages: tuple[str, ...]
    """Stages bound to it: they say which roles it needs."""
    origin: Origin
    """What it loads."""
    threads: int
    bindings: tuple[Binding, ...] = ()
    """Of these stages: how their models lie on the ranks of its mesh."""
    place: Place | None = None
    """Where it stands among the workers that compute together; None where each computes alone."""


class Worker:
    """Hosts the roles of one slot."""

    def __init__(self, spec: WorkerSpec) -> None:
        """Load what the bound stages need, on the thread that will use it."""
        use_threads(spec.threads, deterministic=spec.recipe.run.deterministic)
        ranks = ALONE if spec.place is None else join(spec.place, device(spec.recipe.run.device))
        self._roles = Roles(spec.recipe, spec.graph, spec.origin, ranks, spec.bindings)
        self._methods = {stage: self._roles.method(stage) for stage in spec.stages}

    def run(self, task: Task) -> tuple[Outcome, float, float]:
        """Do one firing; return its outcome with its start and end on the monotonic clock."""
        start_s = time.monotonic()
        # Reads of steps before the first find nothing; prompts, which come from outside, have no mask.
        is_idle = task.kind in _ON_SAMPLES and not task.samples.columns and "mask" not in task.groups.columns
        outcome = Outcome() if is_idle else self._methods[task.stage](task)
        return outcome, start_s, time.monotonic()

    def save(self, folder: Path) -> None:
        """Write what its roles have learned into ``folder``."""
        self._roles.save(folder)

    def close(self) -> None:
        """End what was started to help, and leave the others."""
        self._roles.close()
        leave()


def use_threads(threads: int, *, deterministic: bool) -> None:
    """Set how torch computes on this thread: how many threads help, and whether results must repeat bit for bit."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
