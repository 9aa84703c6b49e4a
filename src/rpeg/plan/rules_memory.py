"""P4: what lies on a device at any moment of the schedule fits, and what rests elsewhere is there when it is used."""

from __future__ import annotations

from collections.abc import Iterator

from rpeg.errors import Fault
from rpeg.graph.graph import Graph
from rpeg.plan.firings import num_events
from rpeg.plan.memory import residents
from rpeg.plan.mesh import resources
from rpeg.plan.plan import Home, Plan, Residency, Slot
from rpeg.plan.site import Site
from rpeg.plan.timeline import Peak, Schedule, peak, schedule
from rpeg.units import bytes_text

__all__ = ["p4_memory", "p4_residencies"]

_SHOWN = 8


def p4_residencies(graph: Graph, plan: Plan, site: Site | None) -> Iterator[Fault]:
    """Every stage that uses data on a mesh where it is only for a time stands in that time; times do not overlap."""
    for residency in plan.residencies:
        where = f"P4 {residency.data}"
        if residency.data not in graph.data_of:
            yield Fault(where, "has a residency but is no data of the graph", "drop it")
        elif residency.home is Home.HBM:
            if residency.between:
                yield Fault(where, "lives on the device and is brought there as well", "name host or disk as its home")
        else:
            yield from _intervals(graph, plan, residency, where)


def _intervals(graph: Graph, plan: Plan, residency: Residency, where: str) -> Iterator[Fault]:
    names = {name for pair in residency.between for name in pair}
    if unknown := sorted(names - set(plan.binding_of)):
        yield Fault(where, f"is brought for {', '.join(unknown)}, which the graph has not", "name stages of the graph")
        return
    if len(meshes := sorted({plan.mesh_of(name) for name in names})) != 1:
        text = f"is on the device from and to stages on {', '.join(meshes) or 'no mesh'}"
        yield Fault(where, text, "name pairs of stages on one mesh, one residency for each mesh")
        return
    for _, slots in plan.slots_of(meshes[0]):
        spans = [_span(graph, slots, *pair) for pair in residency.between]
        ends = [end for span in spans for end in span]
        if ends != sorted(ends):
            order = " ".join(dict.fromkeys(slot.stage for slot in slots))
            yield Fault(where, f"its times on {meshes[0]} are not in the order {order}", "name them in that order")
        elif residency.lead not in range(len(slots)):
            yield Fault(where, f"is loaded {residency.lead} firings ahead", f"the order has {len(slots)}")
        else:
            yield from _outside(graph, plan, residency, slots, spans)


def _span(graph: Graph, slots: tuple[Slot, ...], first: str, last: str) -> tuple[int, int]:
    """Return the places of the first firing of one stage and of the last firing of another."""
    start = next(i for i, slot in enumerate(slots) if (slot.stage, slot.firing) == (first, 0))
    final = num_events(graph, last) - 1
    return start, next(i for i, slot in enumerate(slots) if (slot.stage, slot.firing) == (last, final))


def _outside(
    graph: Graph, plan: Plan, residency: Residency, slots: tuple[Slot, ...], spans: list[tuple[int, int]]
) -> Iterator[Fault]:
    users = {access.stage for access in graph.accesses if access.data == residency.data}
    users &= {binding.stage for binding in plan.bindings if binding.mesh == plan.mesh_of(residency.between[0][0])}
    missed = [
        slot.stage
        for i, slot in enumerate(slots)
        if slot.stage in users and not any(start <= i <= end for start, end in spans)
    ]
    if missed:
        text = f"is on {residency.home} while {', '.join(dict.fromkeys(missed))} uses it"
        yield Fault(f"P4 {residency.data}", text, "let it be on the device for all that use it")


def p4_memory(graph: Graph, plan: Plan, site: Site | None) -> Iterator[Fault]:
    """The bytes on a device of every resource fit at every moment of the schedule."""
    if site is None or site.costs is None or site.sizes is None:
        return
    played, where = schedule(graph, plan, site.costs), resources(plan.meshes, site.system)
    for resource, found in residents(graph, plan, site.sizes, played).items():
        highest = peak(found)
        capacity = min(site.system.memory_bytes_of(place) for place in where[resource])
        if highest.num_bytes > capacity:
            yield _too_much(resource, highest, capacity, played)


def _too_much(resource: str, highest: Peak, capacity: int, played: Schedule) -> Fault:
    running = sorted(
        firing.event
        for firing in played.firings
        if firing.start_s <= highest.at_s < firing.end_s and resource in played.events.event_of[firing.event].resources
    )
    shown = [f"{each.name} {bytes_text(each.num_bytes)}" for each in highest.residents[:_SHOWN]]
    rest = sum(each.num_bytes for each in highest.residents[_SHOWN:])
    shown += [f"{len(highest.residents) - _SHOWN} more {bytes_text(rest)}"] if rest else []
    during = f" during {', '.join(dict.fromkeys(running))}" if running else ""
    text = (
        f"needs {bytes_text(highest.num_bytes)} of {bytes_text(capacity)} at {highest.at_s:g} s{during}, "
        f"{bytes_text(highest.num_bytes - capacity)} too much: {', '.join(shown)}"
    )
    return Fault(
        f"P4 {resource}", text, "split the largest further, recompute, offload what is not in use, or add devices"
    )
