"""P5: orders cover each firing once and can turn. P6: those who talk to each other do it in one order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations

from rpeg.errors import Fault, HardwareError, PlanError
from rpeg.graph.graph import Graph
from rpeg.plan.costs import KnownCosts
from rpeg.plan.firings import event_id, num_events
from rpeg.plan.lower import lower
from rpeg.plan.mesh import meshes_of, resources
from rpeg.plan.plan import Plan, Slot
from rpeg.plan.site import Site

__all__ = ["p5_alive", "p5_orders", "p6_collectives"]


def p5_orders(graph: Graph, plan: Plan, site: Site | None) -> Iterator[Fault]:
    """The order of a resource holds every firing of its stages once: those of its meshes, and guests from others."""
    meshes = list(dict.fromkeys(mesh.name for mesh in plan.meshes))
    wanted = _resources(plan, site) or [name for name, _ in plan.order if set(meshes_of(name)) <= set(meshes)]
    for name, count in Counter(name for name, _ in plan.order).items():
        if name not in wanted:
            text = "has an order but shares its devices" if name in meshes else "has an order but is no mesh"
            yield Fault(f"P5 {name}", text, f"orders are of {', '.join(wanted) or 'meshes'}")
        if count > 1:
            yield Fault(f"P5 {name}", f"has {count} orders", "join them")
    # A mesh without an order of its own name or as part of another lacks all its firings.
    named = {mesh for name in wanted for mesh in meshes_of(name)}
    for resource in dict.fromkeys([*wanted, *(mesh for mesh in meshes if mesh not in named)]):
        slots = [slot for name, slots in plan.order if name == resource for slot in slots]
        yield from _uncovered(graph, plan, resource, slots)
    yield from _shifts(plan)


def _resources(plan: Plan, site: Site | None) -> list[str]:
    """Return the names of what meshes share on the machine; none when that is not known or cannot be said."""
    try:
        return list(resources(plan.meshes, site.system)) if site else []
    except HardwareError:
        return []  # P2 says so


def _uncovered(graph: Graph, plan: Plan, resource: str, slots: list[Slot]) -> Iterator[Fault]:
    bound = {binding.stage for binding in plan.bindings if binding.mesh in meshes_of(resource)}
    stages = (bound | {slot.stage for slot in slots}) & set(graph.stage_of)
    wanted = Counter(event_id(stage, j) for stage in stages for j in range(num_events(graph, stage)))
    found = Counter(event_id(slot.stage, slot.firing) for slot in slots)
    if missing := sorted((wanted - found).elements()):
        yield Fault(f"P5 {resource}", f"its order lacks {', '.join(missing)}", "every firing runs once per step")
    if extra := sorted((found - wanted).elements()):
        yield Fault(f"P5 {resource}", f"its order has {', '.join(extra)} too often", "every firing runs once per step")


def _shifts(plan: Plan) -> Iterator[Fault]:
    """One event has one shift, wherever it stands, and nothing runs behind the step."""
    found: dict[str, set[int]] = defaultdict(set)
    for _, slots in plan.order:
        for slot in slots:
            found[event_id(slot.stage, slot.firing)].add(slot.shift)
    for event, shifts in found.items():
        if len(shifts) > 1:
            text = f"has the shifts {', '.join(map(str, sorted(shifts)))} in different orders"
            yield Fault(f"P5 {event}", text, "it is one event: give it one shift")
        if min(shifts) < 0:
            yield Fault(f"P5 {event}", f"has the shift {min(shifts)}", "a shift counts steps ahead and is at least 0")


def p5_alive(graph: Graph, plan: Plan, site: Site | None) -> Iterator[Fault]:
    """Together with what waits for what, the orders have no cycle without tokens, so the plan can run for ever."""
    try:
        lower(graph, plan, KnownCosts({}))
    except PlanError as error:
        yield from (Fault(f"P5 {fault.where}", fault.what, fault.remedy) for fault in error.faults)


def p6_collectives(graph: Graph, plan: Plan, site: Site | None) -> Iterator[Fault]:
    """Events that occupy the same two resources stand in the same order on both, or each would wait for the other."""
    for (a, first), (b, second) in combinations(plan.order, 2):
        common = {event_id(s.stage, s.firing) for s in first} & {event_id(s.stage, s.firing) for s in second}
        one, other = ([e for s in slots if (e := event_id(s.stage, s.firing)) in common] for slots in (first, second))
        if one != other:
            place = next(i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
            text = f"on {a} {one[place]} comes first of what follows, on {b} {other[place]}"
            remedy = f"both occupy {a} and {b}: one order for both"
            yield Fault(f"P6 {one[place]}, {other[place]}", text, remedy)
