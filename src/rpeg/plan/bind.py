"""Bind a graph to the slots of this machine: which stages share a device, and in which order they run."""

from __future__ import annotations

from dataclasses import replace

from rpeg.graph.graph import Graph
from rpeg.graph.lineage import generators, lead, staleness
from rpeg.graph.stage import Stage, StageKind
from rpeg.plan.events import Event
from rpeg.plan.orders import alone, dealt, depths, in_sequence, rendezvous
from rpeg.plan.plan import Binding, Layout, Mesh, Plan
from rpeg.plan.rules import check_plan

__all__ = ["HOST", "ROLLING", "SAMPLING", "bind_local", "sampled_by"]

HOST = "host"
"""The mesh of stages that need no accelerator: verifiers and advantages."""

SAMPLING = (StageKind.GENERATE, StageKind.EVALUATE)
"""Kinds of stages whose engine samples; all others compute with torch."""
ROLLING = (*SAMPLING, StageKind.PULL)
"""Kinds of stages that a worker has a sampler for, one for all of them."""

_ON_HOST = (StageKind.VERIFY, StageKind.ADVANTAGE, StageKind.FILTER, StageKind.SOURCE)


def sampled_by(graph: Graph, plan: Plan, engine: str) -> Plan:
    """Return the plan with ``engine`` for all that samples."""
    bindings = tuple(
        replace(binding, engine=engine) if graph.stage_of[binding.stage].kind in SAMPLING else binding
        for binding in plan.bindings
    )
    return replace(plan, bindings=bindings)


def bind_local(graph: Graph, engine: str = "torch") -> Plan:
    """Return the plan for one machine, on which ``engine`` samples.

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
    shifts = {stage.name: lead(graph, stage.name) for stage in generators(graph)}
    depth = depths(graph)

    def first(event: Event) -> tuple[int, int]:
        """One kind of work after the other; beside a generator, what its rows allow is taken as far as it goes."""
        if event.stage not in depth:  # a transfer, which has no slot of its own: as soon as it can
            return -2 * len(depth), event.firing
        is_downstream = is_split and graph.stage_of[event.stage].kind is not StageKind.GENERATE
        return -depth[event.stage] if is_downstream else depth[event.stage] - is_split * len(depth), event.firing

    slots = in_sequence(alone(graph, bindings, shifts), first)
    plan = Plan(graph.digest(), meshes, bindings, dealt(slots, meshes, bindings, rendezvous(graph, bindings), None))
    return check_plan(graph, sampled_by(graph, plan, engine))


def _mesh(stage: Stage, is_split: bool) -> str:
    if stage.kind in _ON_HOST:
        return HOST
    if not is_split:
        return "all"
    return "roll" if stage.kind in ROLLING else "trn"
