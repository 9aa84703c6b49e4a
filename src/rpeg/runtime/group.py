"""Groups: the workers of one mesh, called together.

    consumes     a task of a stage
    produces     one outcome: the rows of all ranks in their order, the metrics of the firing
    waits for    every rank that has a part in it
    unblocked by the last of them, or by the first that fails

A mesh of one rank is one worker of its name, called as it is. One of several ranks is the workers ``mesh/0``,
``mesh/1`` and so on: rows are dealt over the ranks of its data parallel axes, ranks that differ along others get the
same. If one fails, those that wait for it in a collective are ended by the home.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from rpeg.errors import RunFault, WorkerDied
from rpeg.graph.graph import Graph
from rpeg.plan.mesh import coordinates, num_ranks
from rpeg.plan.plan import Home as Rest
from rpeg.plan.plan import Mesh, Plan
from rpeg.runtime.homes.home import Home
from rpeg.runtime.shares import Deal, deal
from rpeg.runtime.task import Outcome, Task
from rpeg.runtime.waiting import awaited
from rpeg.runtime.worker import WorkerSpec
from rpeg.runtime.world import Place, Rendezvous, places_of
from rpeg.shapes.splits import ROW_AXES

__all__ = ["Groups", "Ran", "worker_names"]

_CAUSE_S = 2.0
"""How long a failure waits for its cause: that the other end of a connection is gone is heard before how it ended."""

_Made = TypeVar("_Made")
_Answer = tuple[Outcome, float, float]
"""What one worker says: an outcome with its start and end."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a group did, and when, on the monotonic clock of this process."""

    outcome: Outcome
    times: Mapping[str, tuple[float, float]]
    """Start and end on every worker, by its name, in the order of the ranks."""


def worker_names(mesh: Mesh) -> list[str]:
    """Return what the workers of a mesh are called."""
    count = num_ranks(mesh)
    return [mesh.name] if count == 1 else [f"{mesh.name}/{rank}" for rank in range(count)]


class Groups:
    """The groups of a plan in a home."""

    def __init__(self, home: Home, graph: Graph, plan: Plan) -> None:
        """Start nothing yet."""
        self._home, self._graph, self._plan = home, graph, plan
        self._rendezvous: Rendezvous | None = None

    def spawn(self, spec: Callable[[str, Place | None], WorkerSpec], wait_limit_s: float) -> None:
        """Start all workers and wait until they are ready.

        Args:
            spec: makes what a worker of a mesh is built from, at its place in the world if there is one.
            wait_limit_s: how long ranks may wait for each other, and all of this may take.

        Raises:
            WaitLimit: when it takes longer, with those that are not ready.
        """
        places = self._places(wait_limit_s)
        ready: dict[str, Future[Any]] = {}
        for mesh in self._plan.meshes:
            for name, place in zip(worker_names(mesh), places.get(mesh.name, [None]), strict=True):
                ready[name] = self._home.spawn(name, spec(mesh.name, place))
        late = (f"worker {name} to start" for name, call in ready.items() if not call.done())
        awaited(_all_of(ready), wait_limit_s, lambda: late)

    def _places(self, wait_limit_s: float) -> Mapping[str, list[Place]]:
        """Return the places of the workers that compute together: of all that have a model, if a mesh has several."""
        if all(num_ranks(mesh) == 1 for mesh in self._plan.meshes):
            return {}
        with_models = {self._plan.mesh_of(stage.name) for stage in self._graph.stages if stage.model is not None}
        joined = [mesh.name for mesh in self._plan.meshes if mesh.name in with_models]
        self._rendezvous = Rendezvous(self._home.address)
        return places_of(self._plan, joined, self._rendezvous.address, wait_limit_s)

    def run(self, task: Task) -> Future[Ran]:
        """Do one firing of a stage on its mesh."""
        binding = self._plan.binding_of[task.stage]
        mesh = self._plan.mesh_named[binding.mesh]
        names = worker_names(mesh)
        if len(names) == 1:
            alone = self._home.call(names[0], "run", task)
            return _then(alone, lambda answer: Ran(answer[0], _times(names, [answer])))
        shares = _Shares.of(mesh)
        dealt = deal(task, binding.balance, shares.count)
        tasks = dealt.tasks(task)
        calls = {
            name: self._home.call(name, "run", tasks[share]) for name, share in zip(names, shares.of_rank, strict=True)
        }
        return _then(_all_of(calls), lambda answers: Ran(shares.joined(dealt, answers), _times(names, answers)))

    def move(self, mesh: str, data: str, to: Rest) -> Future[Ran]:
        """Let every rank of a mesh bring its part of some data to its device, or send it away."""
        names = worker_names(self._plan.mesh_named[mesh])

        def joined(answers: list[_Answer]) -> Ran:
            num_bytes = sum(outcome.num_bytes for outcome, _, _ in answers)
            return Ran(Outcome(num_bytes=num_bytes), _times(names, answers))

        return _then(self._on_all(mesh, "move", data, to), joined)

    def let_go(self, mesh: str, data: tuple[str, ...]) -> Future[None]:
        """Let every rank of a mesh give up the room of data that has not changed since it came."""
        return _then(self._on_all(mesh, "let_go", data), lambda _: None)

    def save(self, mesh: str, folder: Path) -> Future[Any]:
        """Let a group write what its roles have learned into the folder of a checkpoint."""
        return self._on_all(mesh, "save", folder)

    def _on_all(self, mesh: str, method: str, *args: object) -> Future[list[Any]]:
        names = worker_names(self._plan.mesh_named[mesh])
        return _all_of({name: self._home.call(name, method, *args) for name in names})

    def close(self) -> None:
        """End all workers, as the home does; afterwards nothing listens."""
        self._home.close()
        if self._rendezvous is not None:
            self._rendezvous.close()


@dataclass(frozen=True, slots=True)
class _Shares:
    """Which share of the rows each rank of a mesh works on."""

    of_rank: tuple[int, ...]
    count: int

    @classmethod
    def of(cls, mesh: Mesh) -> _Shares:
        axes = [(axis, size) for axis, size in mesh.axes if axis in ROW_AXES]
        # In the order of `ROW_AXES`, as `Peers` numbers the ranks.
        axes.sort(key=lambda pair: ROW_AXES.index(pair[0]))
        found: list[int] = []
        for rank in range(num_ranks(mesh)):
            place, number = coordinates(mesh, rank), 0
            for axis, size in axes:
                number = number * size + place[axis]
            found.append(number)
        return cls(tuple(found), prod(size for _, size in axes))

    def joined(self, dealt: Deal, answers: Sequence[_Answer]) -> Outcome:
        """Return what the group did, from what its ranks did: of those with the same rows, the first one's.

        Bytes are of all ranks: those with the same rows have different parts of the weights.
        """
        first = [self.of_rank.index(share) for share in range(self.count)]
        num_bytes = sum(outcome.num_bytes for outcome, _, _ in answers)
        return replace(dealt.joined([answers[rank][0] for rank in first]), num_bytes=num_bytes)


def _times(names: Sequence[str], answers: Sequence[_Answer]) -> Mapping[str, tuple[float, float]]:
    return {name: (start_s, end_s) for name, (_, start_s, end_s) in zip(names, answers, strict=True)}


def _all_of(calls: Mapping[str, Future[Any]]) -> Future[list[Any]]:
    """Return the results of all calls, or what the first that fails raises, with the name of its worker.

    A worker that died is the cause of what others say at about the same time: they lose the connection to it.
    """
    found: Future[list[Any]] = Future()
    lock = threading.Lock()
    failed: list[BaseException] = []

    def settle() -> None:
        with lock:
            if not found.done():
                found.set_exception(next((each for each in failed if isinstance(each, WorkerDied)), failed[0]))

    def hear(name: str, done: Future[Any]) -> None:
        if (error := CancelledError() if done.cancelled() else done.exception()) is not None:
            with lock:
                failed.append(_named(name, error))
            is_plain = len(calls) == 1 or isinstance(error, WorkerDied)
            if is_plain or all(call.done() for call in calls.values()):
                settle()
            elif len(failed) == 1:
                timer = threading.Timer(_CAUSE_S, settle)
                timer.daemon = True
                timer.start()
        elif all(call.done() for call in calls.values()):
            with lock:
                if not failed and not found.done():
                    found.set_result([call.result() for call in calls.values()])
            if failed:
                settle()

    for name, call in calls.items():
        call.add_done_callback(lambda done, name=name: hear(name, done))
    return found


def _named(name: str, error: BaseException) -> BaseException:
    """Return an error that says which worker it is from."""
    is_named = type(error) is not RunFault or f"worker {name}" in str(error)
    return error if is_named else RunFault(f"worker {name}: {error}")


def _then(future: Future[Any], make: Callable[[Any], _Made]) -> Future[_Made]:
    """Return the future of what is made of a result."""
    found: Future[_Made] = Future()

    def hear(done: Future[Any]) -> None:
        try:
            found.set_result(make(done.result()))
        except BaseException as error:
            found.set_exception(error)

    future.add_done_callback(hear)
    return found
