"""Orders of work, made and made anew: one sequence of all firings, of which every resource has its part.

A single sequence that agrees with what waits for what cannot stand in its own way: whatever resources it is dealt to,
each event comes after those it needs, and events on two resources stand in the same order on both.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.hardware.topology import System
from rpeg.plan.costs import KnownCosts
from rpeg.plan.events import Event, EventGraph
from rpeg.plan.firings import num_events
from rpeg.plan.lower import lower
from rpeg.plan.mesh import meshes_of, resources
from rpeg.plan.plan import Binding, Mesh, Plan, Slot
from rpeg.plan.shipments import reshards

__all__ = ["alone", "dealt", "depths", "guests", "in_sequence", "rebound", "rendezvous", "sequence"]


def depths(graph: Graph) -> dict[str, int]:
    """Longest path of zero-delay dependences that ends in each stage: generators come first, their weights are old."""
    depth = {stage.name: 0 for stage in graph.stages}
    edges = [edge for edge in graph.edges() if edge.delay == 0]
    for _ in graph.stages:
        for edge in edges:
            depth[edge.reader] = max(depth[edge.reader], depth[edge.writer] + 1)
    return depth


def alone(graph: Graph, bindings: Sequence[Binding], shifts: Mapping[str, int]) -> EventGraph:
    """Return the event graph in which nothing but data is waited for: every stage has a resource of its own."""
    order = [
        (
            stage.name,
            tuple(Slot(stage.name, j, shifts.get(stage.name, 0)) for j in range(num_events(graph, stage.name))),
        )
        for stage in graph.stages
    ]
    return lower(graph, Plan(graph.digest(), (), tuple(bindings), tuple(order)), KnownCosts({}))


def in_sequence(lowered: EventGraph, key: Callable[[Event], tuple[int, ...]]) -> list[Slot]:
    """Return all firings of stages, each after those it waits for; of several that may come next, the least by ``key``.

    What is waited for is what lies on an arc without tokens at a cut, where every event has fired as often as its shift
    wants. Events of transfers follow from the plan and are left out.
    """
    after: list[list[int]] = [[] for _ in lowered.events]
    waits = [0] * len(lowered.events)
    for (source, target), tokens in zip(lowered.index.ends, lowered.index.tokens, strict=True):
        if tokens <= 0:
            after[source].append(target)
            waits[target] += 1
    keys = [key(event) for event in lowered.events]
    ready = [(keys[i], i) for i, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    found: list[Event] = []
    while ready:
        _, i = heapq.heappop(ready)
        found.append(lowered.events[i])
        for target in after[i]:
            waits[target] -= 1
            if not waits[target]:
                heapq.heappush(ready, (keys[target], target))
    assert len(found) == len(lowered.events), "a graph without tokens on a cycle has no sequence"
    return [Slot(event.stage, event.firing, event.shift) for event in found if ":" not in event.stage]


def sequence(graph: Graph, plan: Plan) -> list[Slot]:
    """Return all firings of a legal plan in one order that agrees with the order of each of its resources."""
    depth = depths(graph)
    return in_sequence(lower(graph, plan, KnownCosts({})), lambda event: (depth.get(event.stage, 0),))


def rendezvous(graph: Graph, bindings: Iterable[Binding]) -> dict[str, set[str]]:
    """Return the stages that occupy other meshes than their own: a PUSH straight into weights that are in use there.

    A PUSH into a staged copy is none: the PULL that installs it comes when it suits the reader.
    """
    mesh_of = {binding.stage: binding.mesh for binding in bindings}
    found: dict[str, set[str]] = {}
    for stage in graph.stages:
        if stage.kind is StageKind.PUSH:
            readers = {reader.stage for written in graph.writes(stage.name) for reader in graph.readers(written.data)}
            users = {name for name in readers if graph.stage_of[name].kind is not StageKind.PULL}
            found[stage.name] = {mesh_of[name] for name in users} - {mesh_of[stage.name]}
    return {stage: meshes for stage, meshes in found.items() if meshes}


def guests(plan: Plan) -> dict[str, set[str]]:
    """Return the stages that stand in the orders of other meshes than their own, with these meshes."""
    found: dict[str, set[str]] = {}
    for (stage, _), (names, _) in plan.standing.items():
        own = {name for name, _ in plan.slots_of(plan.mesh_of(stage))}
        for mesh in {mesh for name in names for mesh in meshes_of(name)}:
            theirs = {name for name, _ in plan.slots_of(mesh)}
            if theirs <= set(names) and not theirs <= own:
                found.setdefault(stage, set()).add(mesh)
    return found


def dealt(
    slots: Iterable[Slot],
    meshes: Sequence[Mesh],
    bindings: Iterable[Binding],
    also: Mapping[str, set[str]],
    system: System | None,
) -> tuple[tuple[str, tuple[Slot, ...]], ...]:
    """Return the order of every resource: its part of the sequence ``slots``.

    Args:
        slots: all firings in one order.
        meshes: the meshes of the plan.
        bindings: where every stage is bound.
        also: meshes that a stage occupies besides its own.
        system: the machine, which says what meshes share; without it they are taken to be apart.
    """
    names = list(resources(meshes, system)) if system else [mesh.name for mesh in meshes]
    on = {binding.stage: {binding.mesh, *also.get(binding.stage, ())} for binding in bindings}
    sequenced = list(slots)
    return tuple((name, tuple(slot for slot in sequenced if on[slot.stage] & {*meshes_of(name)})) for name in names)


def rebound(
    graph: Graph, plan: Plan, meshes: Sequence[Mesh], bindings: Sequence[Binding], system: System | None
) -> Plan:
    """Return a plan with other meshes and bindings that keeps the order of work as far as it can.

    Meshes without work are dropped, and so is what was said about transfers that are no more. A stage stays a guest
    where it was one for another reason than a rendezvous, which follows the bindings.
    """
    used = {binding.mesh for binding in bindings}
    kept = tuple(mesh for mesh in meshes if mesh.name in used)
    before, after = rendezvous(graph, plan.bindings), rendezvous(graph, bindings)
    also = {
        stage: (meshes - before.get(stage, set())) & used | after.get(stage, set())
        for stage, meshes in {**{stage: set[str]() for stage in after}, **guests(plan)}.items()
    }
    order = dealt(sequence(graph, plan), kept, bindings, also, system)
    bound = replace(plan, meshes=kept, bindings=tuple(bindings), order=order)
    wanted = {(shipment.data, reader) for shipment in reshards(graph, bound) for reader in shipment.readers}
    return replace(bound, transfers=tuple(t for t in plan.transfers if (t.data, t.reader) in wanted))
