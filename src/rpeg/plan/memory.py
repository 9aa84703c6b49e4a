"""What is in the memory of each resource, and when: what P4 holds against the capacity of its devices.

A STATE has as many versions as the graph keeps, all the time, unless a residency has it elsewhere; a reader that wants
another layout has a copy of its own. A batch of rows lies with its writer until it is written, then with its readers
until they have read it. A firing has its working memory, and a transfer its buffers, while it runs; what takes no time
takes no room.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from rpeg.graph.data import Data, DataKind
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.plan.costs import Sizes
from rpeg.plan.firings import event_id, num_events
from rpeg.plan.plan import Home, Layout, Method, Plan, Residency
from rpeg.plan.shipments import Cause, Shipment, shipments
from rpeg.plan.timeline import Resident, Schedule

__all__ = ["Copy", "copies", "residency_on", "residents", "staging_bytes"]


@dataclass(frozen=True, slots=True)
class Copy:
    """One place where a state or frozen weights are kept."""

    name: str
    data: str
    layout: Layout
    versions: int


def copies(graph: Graph, plan: Plan) -> Iterator[Copy]:
    """Yield every copy of what survives the step: with its writer, and with readers that want another layout."""
    for data in graph.data:
        if data.kind is not DataKind.STREAM:
            yield from _copies_of(graph, plan, data)


def _copies_of(graph: Graph, plan: Plan, data: Data) -> Iterator[Copy]:
    kind_of = {stage.name: stage.kind for stage in graph.stages}
    readers = [reader.stage for reader in graph.readers(data.name)]
    # What a PULL reads lies where it was pushed, and goes straight into what the PULL writes. Without a PULL, a PUSH
    # goes straight into what others read.
    is_fetched = any(kind_of[name] is StageKind.PULL for name in readers)
    users = [name for name in readers if kind_of[name] not in (StageKind.PUSH, StageKind.PULL)]
    writers = [writer.stage for writer in graph.writers(data.name)]
    makers = [name for name in writers if is_fetched or not users or kind_of[name] is not StageKind.PUSH]
    found: list[Layout] = []
    for stage in dict.fromkeys([*makers, *users]):
        layout = plan.binding_of[stage].layout
        if not any(layout.holds_like(other) for other in found):
            name = f"{data.name} for {stage}" if found else data.name
            found.append(layout)
            yield Copy(name, data.name, layout, data.versions if data.kind is DataKind.STATE else 1)


def residents(graph: Graph, plan: Plan, sizes: Sizes, played: Schedule) -> dict[str, list[Resident]]:
    """Return what is in the memory of each resource, and when."""
    found: dict[str, list[Resident]] = {resource: [] for resource, _ in plan.order}
    for mesh, resident in _all_residents(graph, plan, sizes, played):
        if resident.num_bytes:
            for resource, _ in plan.slots_of(mesh):
                found[resource].append(resident)
    return found


def _all_residents(graph: Graph, plan: Plan, sizes: Sizes, played: Schedule) -> Iterator[tuple[str, Resident]]:
    """Yield mesh and resident."""
    for copy in copies(graph, plan):
        yield from _of_copy(graph, plan, sizes, played, copy)
    for data in graph.data:
        if data.kind is DataKind.STREAM:
            yield from _of_stream(graph, plan, sizes, played, data.name)
    for binding in plan.bindings:
        num_bytes = sizes.working_bytes(binding.stage, binding)
        for start_s, end_s in _firings_of(graph, played, binding.stage, binding.servers):
            yield binding.mesh, Resident(f"{binding.stage} (working)", num_bytes, start_s, end_s)
    for shipment in shipments(graph, plan):
        yield from _of_staging(graph, sizes, played, shipment)


def _of_copy(graph: Graph, plan: Plan, sizes: Sizes, played: Schedule, copy: Copy) -> Iterator[tuple[str, Resident]]:
    num_bytes = copy.versions * sizes.held_bytes(copy.data, copy.layout)
    residency = residency_on(plan, copy.data, copy.layout.mesh)
    times = [(0.0, inf)] if residency is None else _times_on_device(graph, played, residency)
    for start_s, end_s in times:
        yield copy.layout.mesh, Resident(copy.name, num_bytes, start_s, end_s)


def residency_on(plan: Plan, data: str, mesh: str) -> Residency | None:
    """Return the residency that keeps ``data`` away from ``mesh`` for a time, None when it is always there."""
    found = (each for each in plan.residencies if each.data == data and each.home is not Home.HBM)
    return next((each for each in found if plan.mesh_of(each.between[0][0]) == mesh), None)


def _times_on_device(graph: Graph, played: Schedule, residency: Residency) -> Iterator[tuple[float, float]]:
    for n, (_, last) in enumerate(residency.between):
        load = event_id(f"{Cause.LOAD}:{residency.data}.{n}", 0)
        store = event_id(f"{Cause.STORE}:{residency.data}.{n}", 0)
        end = store if store in played.events.event_of else event_id(last, num_events(graph, last) - 1)
        ahead = played.events.event_of[end].shift - played.events.event_of[load].shift
        yield from ((played.start_of(load, step), played.end_of(end, step + ahead)) for step in played.steps_of(load))


def _of_stream(graph: Graph, plan: Plan, sizes: Sizes, played: Schedule, data: str) -> Iterator[tuple[str, Resident]]:
    """Yield the batches: with the writer until it has written, and wherever they are read until they have been."""
    for writer in graph.writers(data):
        made_on, layout = plan.mesh_of(writer.stage), plan.binding_of[writer.stage].layout
        written = event_id(writer.stage, num_events(graph, writer.stage) - 1)
        ends: dict[str, list[tuple[str, int]]] = {made_on: [(written, 0)]}
        layouts: dict[str, Layout] = {made_on: layout}
        for reader in graph.readers(data):
            read = event_id(reader.stage, num_events(graph, reader.stage) - 1)
            ends.setdefault(plan.mesh_of(reader.stage), []).append((read, reader.delay))
            layouts.setdefault(plan.mesh_of(reader.stage), plan.binding_of[reader.stage].layout)
        for step in played.steps_of(event_id(writer.stage, 0)):
            start_s, written_s = played.start_of(event_id(writer.stage, 0), step), played.end_of(written, step)
            for mesh, last in ends.items():
                end_s = max(played.end_of(event, step + delay) for event, delay in last)
                since_s = start_s if mesh == made_on else written_s
                yield mesh, Resident(data, sizes.held_bytes(data, layouts[mesh]), since_s, end_s)


def _of_staging(graph: Graph, sizes: Sizes, played: Schedule, shipment: Shipment) -> Iterator[tuple[str, Resident]]:
    """Yield the buffers of a reshard at both of its ends, while it goes on."""
    if shipment.cause is not Cause.RESHARD:
        return
    num_bytes, name = staging_bytes(sizes, shipment), shipment.carrier or shipment.name
    firings = num_events(graph, name) if shipment.carrier else shipment.firings
    for j in range(firings):
        for step in played.steps_of(event_id(name, j)):
            start_s, end_s = played.start_of(event_id(name, j), step), played.end_of(event_id(name, j), step)
            for mesh in dict.fromkeys((shipment.src.mesh, shipment.dst.mesh)):
                yield mesh, Resident(f"{shipment.data} (sent)", num_bytes, start_s, end_s)


def staging_bytes(sizes: Sizes, shipment: Shipment) -> int:
    """Return the buffers of a reshard on the fullest device: one message per pair is as much as what it becomes."""
    how = shipment.how
    if how is not None and how.method is Method.GATHER:
        return sizes.held_bytes(shipment.data, Layout(shipment.dst.mesh, dtype=shipment.dst.dtype))
    whole = sizes.held_bytes(shipment.data, shipment.dst)
    return whole if how is None or how.bucket_bytes is None else min(whole, how.bucket_bytes)


def _firings_of(graph: Graph, played: Schedule, stage: str, servers: int) -> Iterator[tuple[float, float]]:
    """Yield when a stage runs on one device: of several servers, what the first one has.

    A firing that begins while the last rows of the one before come out works in the same room, it needs no second one.
    """
    times = (
        (played.start_of(event, step), played.end_of(event, step))
        for event in (event_id(stage, j) for j in range(num_events(graph, stage)))
        for step in played.steps_of(event)
        if step % servers == 0
    )
    since_s, until_s = -inf, -inf
    for start_s, end_s in sorted(times):
        if start_s >= until_s:
            if until_s > -inf:
                yield since_s, until_s
            since_s = start_s
        until_s = max(until_s, end_s)
    if until_s > -inf:
        yield since_s, until_s
