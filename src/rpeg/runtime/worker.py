"""A worker: one device slot, the roles bound to it, and one method per stage."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.numerics.precision import device, use_device
from rpeg.plan.plan import Binding, Home
from rpeg.recipe.schema import Recipe
from rpeg.runtime.origin import Origin
from rpeg.runtime.residency import Residents, Stay
from rpeg.runtime.roles import Method, Roles
from rpeg.runtime.task import Outcome, Progress, Task
from rpeg.runtime.transport import Transport
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
    slot: int = 0
    """Number of its device on its machine."""
    bindings: tuple[Binding, ...] = ()
    """Of these stages: how their models lie on the ranks of its mesh."""
    place: Place | None = None
    """Where it stands among the workers that compute together; None where each computes alone."""
    stays: tuple[Stay, ...] = ()
    """Data that it has on its device only for a time."""
    folder: Path = Path()
    """Where it puts what lives on disk meanwhile."""


class Worker:
    """Hosts the roles of one slot."""

    def __init__(self, spec: WorkerSpec) -> None:
        """Load what the bound stages need, on the thread that will use it."""
        use_threads(spec.threads, deterministic=spec.recipe.run.deterministic)
        place = device(spec.recipe.run.device)
        use_device(place, spec.slot)
        self._has_joined = spec.place is not None
        world = None if spec.place is None else join(spec.place, place)
        ranks, transport = (ALONE, None) if world is None else (world.ranks, Transport(world, place))
        self._roles = Roles(spec.recipe, spec.graph, spec.origin, ranks, spec.bindings, transport)
        self._residents = Residents(self._roles, spec.graph, spec.stays, place, spec.folder)
        self._methods: dict[str, Method] = {}
        for stage in spec.stages:
            self._methods[stage] = self._roles.method(stage)
            self._residents.settle()
        if transport is not None:
            transport.announce()

    def run(self, task: Task) -> tuple[Outcome, float, float]:
        """Do one firing; return its outcome with its start and end on the monotonic clock."""
        start_s = time.monotonic()
        is_idle = _is_idle(task)
        if not is_idle:
            self._residents.check(task.stage)
        outcome = Outcome() if is_idle else self._methods[task.stage](task)
        for data in task.lets_go if outcome.progress is Progress.DONE else ():
            self._residents.let_go(data)
        return outcome, start_s, time.monotonic()

    def move(self, data: str, to: Home) -> tuple[Outcome, float, float]:
        """Bring data to the device, or send it to the host or to disk."""
        start_s = time.monotonic()
        outcome = Outcome(num_bytes=self._residents.move(data, to))
        return outcome, start_s, time.monotonic()

    def let_go(self, names: tuple[str, ...]) -> None:
        """Give up the room of data that has not changed since it came."""
        for data in names:
            self._residents.let_go(data)

    def save(self, folder: Path) -> None:
        """Write what its roles have learned into ``folder``, also what is away."""
        self._roles.save(folder, self._residents.at_hand)

    def close(self) -> None:
        """End what was started to help, and leave the others; a world that an engine made for itself is its own."""
        self._roles.close()
        if self._has_joined:
            leave()


def _is_idle(task: Task) -> bool:
    """Return whether a stage has nothing to work on: its rows are those of a step before the first."""
    if task.kind is StageKind.GENERATE:
        return not task.groups.columns
    # Prompts, which come from outside, have no mask.
    return task.kind in _ON_SAMPLES and not task.samples.columns and "mask" not in task.groups.columns


def use_threads(threads: int, *, deterministic: bool) -> None:
    """Set how torch computes on this thread: how many threads help, and whether results must repeat bit for bit."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
