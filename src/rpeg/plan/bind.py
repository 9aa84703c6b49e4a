"""Bind a graph to the slots of this machine: which stages share a device, and in which order they run."""

from __future__ import annotations

from fractions import Fraction

from rpeg.graph.graph import Graph
from rpeg.graph.lineage import generators, lead, staleness
from rpeg.graph.stage import Stage, StageKind
from rpeg.plan.firings import num_events
from rpeg.plan.plan import Binding, Layout, Mesh, Plan, Slot
from rpeg.plan.rules import check_plan

__all__ = ["HOST", "bind_local"]

HOST = "host"
"""The mesh of stages that need no accelerator: verifiers and advantages."""

_ON_HOST = (StageKind.VERIFY, StageKind.ADVANTAGE, StageKind.FILTER, StageKind.SOURCE)
_ROLLING = (StageKind.GENERATE, StageKind.PULL, StageKind.EVALUATE)


def bind_local(graph: Graph) -> Plan:
    """Return the plan for one machine.

    A synchronous graph is colocated on one slot, in the order of its dependences. One with staleness k is split: slot 0
    generates k steps ahead (shift k) and installs weights between batches, slot 1 trains.
    """
    is_split = any(staleness(graph, stage.name) > 0 for stage in generators(graph))
    placed = {stage.name: _mesh(stage, is_split) for stage in graph.stages}
    names = [name for name in ("all", "roll", "trn", HOST) if name in placed.values()]
    meshes = tuple(
        Mesh(name, "local.host" if name == HOST else f"local.slot[{i}:{i + 1}]") for i, name in enumerate(names)
    )
    bindings = tuple(Binding(name, mesh, Layout(mesh)) for name, mesh in placed.items())
    order = tuple((name, _order(graph, [s for s in placed if placed[s] == name])) for name in names)
    return check_plan(graph, Plan(graph.digest(), meshes, bindings, order))


def _mesh(stage: Stage, is_split: bool) -> str:
    if stage.kind in _ON_HOST:
        return HOST
    if not is_split:
        return "all"
    return "roll" if stage.kind in _ROLLING else "trn"


def _order(graph: Graph, stages: list[str]) -> tuple[Slot, ...]:
    """Firings in topological order of the zero-delay dependences; optimizer mini-batches alternate train and update."""
    counts = {stage: num_events(graph, stage) for stage in stages}
    ranked = sorted(stages, key=_depths(graph).__getitem__)
    slots: list[Slot] = []
    for name in ranked:
        shift = lead(graph, name) if graph.stage_of[name].kind is StageKind.GENERATE else 0
        slots += [Slot(name, firing, shift) for firing in range(counts[name])]
    learning = [s for s in slots if graph.stage_of[s.stage].kind in (StageKind.TRAIN, StageKind.UPDATE)]
    alternated = iter(sorted(learning, key=lambda s: Fraction(s.firing + 1, counts[s.stage])))
    return tuple(next(alternated) if s in learning else s for s in slots)


def _depths(graph: Graph) -> dict[str, int]:
    """Longest path of zero-delay dependences that ends in each stage: generators come first, their weights are old."""
    depth = {stage.name: 0 for stage in graph.stages}
    edges = [edge for edge in graph.edges() if edge.delay == 0]
    for _ in graph.stages:
        for edge in edges:
            depth[edge.reader] = max(depth[edge.reader], depth[edge.writer] + 1)
    return depth
