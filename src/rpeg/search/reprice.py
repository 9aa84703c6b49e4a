"""The step of a plan under other figures, and the same meshes and layouts under another graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd

from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.perf.estimate import Estimate
from rpeg.plan.events import Arc, EventGraph, cycle_ratio
from rpeg.plan.firings import row_parts
from rpeg.plan.lower import lower
from rpeg.plan.orders import alone, dealt, depths, in_sequence, rendezvous
from rpeg.plan.plan import Binding, Plan
from rpeg.plan.rules import check_plan
from rpeg.plan.shipments import reshards
from rpeg.plan.site import Site
from rpeg.search.case import Case
from rpeg.search.plans import Priced, price_plan, tensors_of

__all__ = ["Step", "checked", "priced", "step_of", "transplanted"]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A step as the event graph has it."""

    graph: Graph
    events: EventGraph
    period_s: Fraction
    """Exactly, for these durations."""
    cycle: tuple[Arc, ...]
    """What limits it; empty where nothing takes time."""
    tails_s: Mapping[str, float]
    """By stage, from when its devices are free until its last row is out."""

    @property
    def seconds(self) -> float:
        """Seconds per step."""
        return float(self.period_s)


def step_of(graph: Graph, events: EventGraph) -> Step:
    """Return the step of an event graph; latencies of its arcs are tails of the stages they come from."""
    period_s, cycle = cycle_ratio(events)
    tails_s: dict[str, float] = {}
    for arc in events.arcs:
        stage = events.event_of[arc.src].stage
        tails_s[stage] = max(tails_s.get(stage, 0.0), arc.latency_s)
    return Step(graph, events, period_s, tuple(cycle), tails_s)


def priced(case: Case, graph: Graph, plan: Plan) -> Step:
    """Return the step of a plan as it is: its meshes, layouts and orders with the figures of ``case``."""
    estimate = Estimate(graph, plan, case.workload, case.system, case.software)
    return step_of(graph, lower(graph, plan, estimate))


def checked(case: Case, graph: Graph, plan: Plan) -> Plan:
    """Return a plan that keeps all rules on the machine of ``case``, that of memory (P4) among them.

    Raises:
        PlanError: with every rule that it breaks.
    """
    estimate = Estimate(graph, plan, case.workload, case.system, case.software)
    return check_plan(
        graph, plan, Site(case.system, tensors_of(graph, case.market()), estimate, estimate, case.goal.workers)
    )


def transplanted(case: Case, plan: Plan, graph: Graph) -> Priced:
    """Return a plan of another graph with the same stages on the same meshes in the same layouts, its order made anew.

    Micro-batches become smaller where a firing has too few rows for them.

    Args:
        case: the machine and the workload.
        plan: whose meshes and layouts are kept.
        graph: which has the stages of the plan's own graph.

    Raises:
        PlanError: when that breaks a rule, that of memory among them.
    """
    assert {binding.stage for binding in plan.bindings} == set(graph.stage_of), "stages differ"
    depth = depths(graph)
    slots = in_sequence(alone(graph, plan.bindings, {}), lambda event: (depth.get(event.stage, -1), event.firing))
    order = dealt(slots, plan.meshes, plan.bindings, rendezvous(graph, plan.bindings), case.system)
    bindings = tuple(_fitted(graph, plan, binding) for binding in plan.bindings)
    moved = replace(plan, graph=graph.digest(), bindings=bindings, order=order, history=())
    wanted = {(shipment.data, reader) for shipment in reshards(graph, moved) for reader in shipment.readers}
    kept = tuple(each for each in plan.transfers if (each.data, each.reader) in wanted)
    return price_plan(graph, replace(moved, transfers=kept), case.market())


def _fitted(graph: Graph, plan: Plan, binding: Binding) -> Binding:
    """Return a binding whose micro-batches divide the rows that a rank has of a firing."""
    ranks = max(1, plan.mesh_named[binding.mesh].sizes.get("dp", 1) // binding.servers)
    rows = Fraction(graph.batch_rows, row_parts(graph, binding.stage) * ranks)
    micro_rows = binding.micro_rows.evaluate(graph.env)
    if rows.denominator > 1 or micro_rows.denominator > 1 or not rows % micro_rows:
        return binding
    return replace(binding, micro_rows=Dim(str(gcd(int(rows), int(micro_rows)))))
