"""Where the graph of a plan comes from: the algorithm's own graph, and the rewrites that a search may use."""

from __future__ import annotations

from dataclasses import replace

from rpeg.errors import Fault, PlanError, TransformError
from rpeg.graph.diff import diff
from rpeg.graph.graph import Graph
from rpeg.search.bundle import Bundle
from rpeg.search.find import Goal
from rpeg.search.structures import LEARNING, structures
from rpeg.transforms.history import replay, undo

__all__ = ["allowed_by", "graph_of", "unqueued", "widened"]

_MOST_DIFFERENCES = 3


def widened(base: Graph, graph: Graph) -> Graph:
    """Return the algorithm's graph with what the contract of ``graph`` permits: what its history begins with."""
    theirs = graph.contract
    contract = replace(base.contract, max_staleness=theirs.max_staleness, allowed=theirs.allowed)
    return replace(base, contract=contract)


def allowed_by(base: Graph, graph: Graph) -> Goal:
    """Return what a search must have been allowed to find ``graph``."""
    more = graph.contract.allowed - base.contract.allowed - {"relax"}
    return Goal(graph.contract.max_staleness, tuple(sorted(more & {*LEARNING})))


def graph_of(bundle: Bundle, base: Graph, goal: Goal, where: str = "plan") -> Graph:
    """Return the graph that a plan is for.

    Args:
        bundle: the plan, with or without its graph.
        base: the algorithm's own graph.
        goal: what a search may do to it.
        where: what messages call the plan.

    Raises:
        PlanError: when the plan is for another algorithm or other sizes, or for a structure that is not allowed.
    """
    if bundle.graph is not None:
        return _replayed(bundle.graph, base, where)
    found = structures(base, max(goal.max_staleness, base.contract.max_staleness), goal.allow)
    for each in found:
        if each.graph.digest() == bundle.plan.graph:
            return each.graph
    text = f"is for graph {bundle.plan.graph[:8]}, which is none of the {len(found)} structures of {base.name}"
    allowed = ", ".join(goal.allow) or "no rewrite that changes learning"
    sought = f"these have staleness up to {goal.max_staleness} and {allowed}"
    remedy = f"{sought}: give --staleness-max and --allow as when it was planned, or the file of rpeg plan --out"
    raise PlanError(where, [Fault("plan", text, remedy)])


def _replayed(graph: Graph, base: Graph, where: str) -> Graph:
    """Return a graph that its history makes of the algorithm's own."""
    start, further = widened(base, graph), graph.history[len(base.history) :]  # the base may be rewritten itself
    try:
        after = replay(start, further)
    except TransformError as error:
        fault = _other_base(graph, start) if further[0].before != start.digest() else error.faults[0]
        raise PlanError(where, [fault]) from error
    if after.digest() != graph.digest():
        raise PlanError(where, [_other_base(graph, after)])
    return graph


def _other_base(graph: Graph, base: Graph) -> Fault:
    """Return the fault of a plan for other sizes or another algorithm, with the first differences."""
    changes = diff(base, graph)
    sizes = [each for each in changes if each.part == "symbol"]
    changes = sizes or [each for each in changes if each.part == "contract"] or changes
    said = "; ".join(f"{each.name} {each.said()}" for each in changes[:_MOST_DIFFERENCES])
    text = f"is for another graph than that of the recipe ({said or 'see rpeg diff'})"
    return Fault("graph", text, "give the recipe and the overrides that it was planned with")


def unqueued(base: Graph, graph: Graph) -> Graph:
    """Return a structure as rewrites left it, before delays were moved from weights to rows: others fit onto that."""
    moved = 0
    for applied in reversed(graph.history):
        if not applied.transform.startswith("retime{"):
            break
        moved += 1
    try:
        return undo(widened(base, graph), graph, moved)
    except TransformError:  # a history that begins elsewhere
        return graph
