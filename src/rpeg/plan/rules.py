"""Is this plan legal for this graph? P1 bindings, P2 meshes, P5 orders; all problems are reported at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from rpeg.errors import Fault, PlanError
from rpeg.graph.graph import Graph
from rpeg.plan.firings import event_id, num_events
from rpeg.plan.plan import Plan, Slot

__all__ = ["PLAN_RULES", "check_plan", "p1_bindings", "p2_meshes", "p5_orders", "validate_plan"]


def p1_bindings(graph: Graph, plan: Plan) -> Iterator[Fault]:
    """Every stage is bound exactly once, to a mesh that exists and with a layout on it; the plan is for this graph."""
    if plan.graph != graph.digest():
        text = f"is for graph {plan.graph[:8]}, this one is {graph.digest()[:8]}"
        yield Fault("P1 plan", text, "bind this graph anew")
    bound = Counter(binding.stage for binding in plan.bindings)
    for stage in graph.stages:
        if bound[stage.name] != 1:
            yield Fault(f"P1 {stage.name}", f"is bound {bound[stage.name]} times", "bind each stage once")
    meshes = {mesh.name for mesh in plan.meshes}
    for binding in plan.bindings:
        if binding.stage not in graph.stage_of:
            yield Fault(f"P1 {binding.stage}", "is bound but is no stage of the graph", "drop the binding")
        if binding.mesh not in meshes:
            yield Fault(f"P1 {binding.stage}", f"is bound to the unknown mesh {binding.mesh}", "declare the mesh")
        if binding.layout.mesh != binding.mesh:
            text = f"is bound to {binding.mesh} with a layout on {binding.layout.mesh}"
            yield Fault(f"P1 {binding.stage}", text, "lay it out on its own mesh")


def p2_meshes(graph: Graph, plan: Plan) -> Iterator[Fault]:
    """Names of meshes are unique, the sizes of their axes positive, and data parallel ranks divide the batch."""
    for name, count in Counter(mesh.name for mesh in plan.meshes).items():
        if count > 1:
            yield Fault(f"P2 {name}", f"is declared {count} times", "rename all but one")
    for mesh in plan.meshes:
        if any(size < 1 for _, size in mesh.axes):
            yield Fault(f"P2 {mesh.name}", f"has axes {dict(mesh.axes)}", "every axis has at least one slot")
            continue
        ranks = dict(mesh.axes).get("dp", 1)
        if graph.batch_rows % ranks:
            text = f"{ranks} data parallel ranks do not divide {graph.batch_rows} rows"
            yield Fault(f"P2 {mesh.name}", text, "choose a divisor")


def p5_orders(graph: Graph, plan: Plan) -> Iterator[Fault]:
    """The order of a mesh holds every firing of its stages once: those bound to it, and guests from other meshes."""
    meshes = list(dict.fromkeys(mesh.name for mesh in plan.meshes))
    for name, count in Counter(name for name, _ in plan.order).items():
        if name not in meshes:
            yield Fault(f"P5 {name}", "has an order but is no mesh", "declare the mesh")
        if count > 1:
            yield Fault(f"P5 {name}", f"has {count} orders", "join them")
    for mesh in meshes:
        slots = [slot for name, slots in plan.order if name == mesh for slot in slots]
        yield from _uncovered(graph, plan, mesh, slots)
    yield from _shifts(plan)


def _uncovered(graph: Graph, plan: Plan, mesh: str, slots: list[Slot]) -> Iterator[Fault]:
    bound = {binding.stage for binding in plan.bindings if binding.mesh == mesh}
    stages = (bound | {slot.stage for slot in slots}) & set(graph.stage_of)
    wanted = Counter(event_id(stage, j) for stage in stages for j in range(num_events(graph, stage)))
    found = Counter(event_id(slot.stage, slot.firing) for slot in slots)
    if missing := sorted((wanted - found).elements()):
        yield Fault(f"P5 {mesh}", f"its order lacks {', '.join(missing)}", "every firing runs once per step")
    if extra := sorted((found - wanted).elements()):
        yield Fault(f"P5 {mesh}", f"its order has {', '.join(extra)} too often", "every firing runs once per step")


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


PLAN_RULES: tuple[Callable[[Graph, Plan], Iterator[Fault]], ...] = (p1_bindings, p2_meshes, p5_orders)


def validate_plan(graph: Graph, plan: Plan) -> list[Fault]:
    """Return every violation, in the order of the rules."""
    return [fault for rule in PLAN_RULES for fault in rule(graph, plan)]


def check_plan(graph: Graph, plan: Plan) -> Plan:
    """Return ``plan`` when it is legal.

    Raises:
        PlanError: with all violations.
    """
    if faults := validate_plan(graph, plan):
        raise PlanError(f"plan of {graph.name}", faults)
    return plan
