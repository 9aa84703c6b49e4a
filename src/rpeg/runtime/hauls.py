"""What a plan says of data that is on its device only for a time, as calls of the workers that hold it.

==============================  ==========================================================================
in the event graph              call
==============================  ==========================================================================
``load:actor.moments.0``        `Worker.move` to the device
``store:actor.moments.0``       `Worker.move` to where it lives
the last stage of a time in     the task says what is let go of afterwards; a stage that rests in a step is
which nothing is changed        made up for by `Worker.let_go`
==============================  ==========================================================================

A worker does one thing after the other, so a move takes its turn between the stages of its mesh. On a mesh of several
ranks each moves its own part, and waits for no other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from rpeg.errors import Fault
from rpeg.graph.graph import Graph
from rpeg.plan.events import Event
from rpeg.plan.firings import num_events
from rpeg.plan.plan import Home as Rest
from rpeg.plan.plan import Plan, Residency
from rpeg.plan.shipments import Cause, hauls
from rpeg.runtime.group import Groups
from rpeg.runtime.holders import holder_of
from rpeg.runtime.residency import Stay
from rpeg.runtime.waiting import awaited

__all__ = ["Hauls", "residency_faults"]


class Hauls:
    """The residencies of a plan."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        """Take what `residency_faults` has nothing against."""
        self._graph, self._plan = graph, plan
        self._shipment_of = {shipment.name: shipment for shipment in hauls(graph, plan)}
        self._let_go: dict[tuple[str, int], list[str]] = defaultdict(list)
        for residency in _moving(plan):
            for number, (_, last) in enumerate(residency.between):
                if f"{Cause.STORE}:{residency.data}.{number}" not in self._shipment_of:
                    self._let_go[last, num_events(graph, last) - 1].append(residency.data)

    def stays(self, mesh: str) -> tuple[Stay, ...]:
        """Return what a worker has only for a time: at every cut, where its order begins anew, all of it is away."""
        here = [each for each in _moving(self._plan) if self._plan.mesh_of(each.between[0][0]) == mesh]
        return tuple(Stay(each.data, each.home) for each in here)

    def move(self, groups: Groups, event: Event) -> Future[Any] | None:
        """Call for the move that an event is; None for the event of a stage."""
        shipment = self._shipment_of.get(event.stage)
        if shipment is None:
            return None
        assert shipment.home is not None, f"{shipment.name} has no home"
        to = Rest.HBM if shipment.cause is Cause.LOAD else shipment.home
        return groups.move(shipment.src.mesh, shipment.data, to)

    def let_go_after(self, event: Event) -> tuple[str, ...]:
        """Return the data that has been used for the last time for now, and not changed, when an event is over."""
        return tuple(self._let_go.get((event.stage, event.firing), ()))

    def let_go(self, groups: Groups, event: Event) -> Future[Any] | None:
        """Call for what the task of an event would say, if its stage rests; None where there is nothing to be done."""
        names = self.let_go_after(event)
        return groups.let_go(self._plan.mesh_of(event.stage), names) if names else None

    @contextmanager
    def at_hand(self, groups: Groups, stage: str, limit_s: float) -> Iterator[None]:
        """Have the data of a stage on its device outside of the steps, before the first one.

        Raises:
            WaitLimit: when a move takes longer than ``limit_s``.
        """
        mesh, used = self._plan.mesh_of(stage), {access.data for access in self._graph.reads(stage)}
        names = tuple(stay.data for stay in self.stays(mesh) if stay.data in used)
        for name in names:
            awaited(groups.move(mesh, name, Rest.HBM), limit_s, lambda name=name: [f"{name} to come to {mesh}"])
        yield
        if names:
            awaited(groups.let_go(mesh, names), limit_s, lambda: [f"{', '.join(names)} to leave {mesh}"])


def residency_faults(graph: Graph, plan: Plan) -> Iterator[Fault]:
    """Yield every residency of a legal plan that would not be kept as it says."""
    times = Counter((each.data, plan.mesh_of(each.between[0][0])) for each in _moving(plan))
    for residency in _moving(plan):
        data, mesh = residency.data, plan.mesh_of(residency.between[0][0])
        where = f"lives at {residency.home}"
        users = {access.stage for access in graph.accesses if access.data == data}
        if holder_of(graph, data) is None:
            movable = [each.name for each in graph.data if holder_of(graph, each.name) is not None]
            yield Fault(data, f"{where}, and no worker has it for itself", f"these can be moved: {', '.join(movable)}")
        elif not any(plan.mesh_of(stage) == mesh for stage in users):
            used_on = ", ".join(sorted({plan.mesh_of(stage) for stage in users}))
            yield Fault(data, f"{where} and comes to {mesh}, where nobody uses it", f"it is used on {used_on}")
        elif times[data, mesh] > 1:
            yield Fault(data, f"has {times[data, mesh]} residencies on {mesh}", "name all its times in one")
        else:
            yield from _unprepared(plan, residency, users)


def _unprepared(plan: Plan, residency: Residency, users: set[str]) -> Iterator[Fault]:
    """Yield what a run cannot begin with: stages that run ahead of the one that data is loaded for."""
    _, slots = next(plan.slots_of(plan.mesh_of(residency.between[0][0])))
    stages = [slot.stage for slot in slots]
    for first, last in residency.between:
        start, end = stages.index(first), len(stages) - stages[::-1].index(last)
        for slot in slots[start:end]:
            ahead = slot.shift - slots[start].shift
            if slot.stage in users and ahead > 0:
                text = f"is loaded for {first}, and {slot.stage} runs {ahead} steps ahead of it"
                yield Fault(residency.data, text, f"let its time begin with {slot.stage}, or shift that less")


def _moving(plan: Plan) -> list[Residency]:
    """Return the residencies of what does not stay on the device."""
    return [each for each in plan.residencies if each.home is not Rest.HBM]
