"""Graph and plan and costs to the event graph: a table of rules, one small function each.

=====================================  ====================================================================
from                                   arcs (tokens count steps back)
=====================================  ====================================================================
STREAM written q_w times, read q_r     last needed producer firing ``ceil((j + 1) q_w / q_r) - 1`` to reader j
times with delay d                     with d tokens, plus the tail of the producer's last firing; each sweep of a
                                       TRAIN begins with the first part again
bounded queue of C batches             ``r.last -> w.0`` with C - d tokens
STATE updated by u, read by r          ``u.last -> r.0`` with d tokens
... EXACT, C versions kept             ``r.last -> u.0`` with C - d tokens (negative is legal)
... by the TRAIN that feeds q_u        the same for each optimizer mini-batch: it sees the version that the update
updates a step                         before it made, in its own step (d - 1 tokens)
order on a resource                    each to its neighbour, ``shift`` differences as tokens; the closing arc + 1
a reader with a tail                   to the stage that installs its next weights, in the order of the resource
a stage with itself                    ``last -> first`` with 1 token, with n on n servers; so is the closing arc
                                       of a resource all of whose stages have n
a firing in the order of two           one event: it occupies both (a rendezvous)
a transfer                             see `rpeg.plan.lower_shipments`
=====================================  ====================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from rpeg.graph.access import Access, Bound, Refresh
from rpeg.graph.data import Data, DataKind
from rpeg.graph.graph import Graph
from rpeg.plan.costs import Costs, Duration
from rpeg.plan.events import Arc, Event, EventGraph, beyond_cut, dead_cycle, tokenless_cycle, unreachable_cut
from rpeg.plan.firings import event_id, num_events, optimizer_batches, row_parts
from rpeg.plan.lower_shipments import haul_arcs, link_arcs, reshard_arcs, shipment_events
from rpeg.plan.plan import Plan, Slot
from rpeg.plan.shipments import Cause, Shipment, shipments

__all__ = ["lower"]

_Durations = Mapping[str, Duration]
_Relays = Mapping[tuple[str, str, str], Shipment]
"""Data, writer and reader to the reshard between them."""


def lower(graph: Graph, plan: Plan, costs: Costs) -> EventGraph:
    """Return the event graph of ``graph`` under ``plan``, a legal plan of it, priced by ``costs``.

    Raises:
        PlanError: when a cycle has no tokens, so nothing on it could ever start, or when an event waits for one that
            the shifts put behind the cut, so no run of the plan could end.
    """
    durations = {binding.stage: costs.seconds(binding.stage, binding) for binding in plan.bindings}
    inserted = [shipment for shipment in shipments(graph, plan) if shipment.carrier is None]
    relays = {(s.data, s.writer, reader): s for s in inserted if s.cause is Cause.RESHARD for reader in s.readers}
    events = [*_events(graph, plan, durations), *shipment_events(graph, plan, inserted, costs)]
    arcs = [
        *_data_arcs(graph, durations, relays),
        *_order_arcs(graph, plan, durations),
        *_self_arcs(graph, plan),
        *(arc for relay in dict.fromkeys(relays.values()) for arc in reshard_arcs(graph, relay, durations)),
        *haul_arcs(graph, plan, inserted, durations),
    ]
    lowered = _checked(EventGraph(tuple(events), tuple(arcs)))
    return EventGraph(lowered.events, (*arcs, *link_arcs(lowered, inserted))) if inserted else lowered


def _checked(lowered: EventGraph) -> EventGraph:
    if (cycle := tokenless_cycle(lowered)) is not None:
        raise dead_cycle(cycle)
    if beyond := beyond_cut(lowered):
        raise unreachable_cut(lowered, beyond)
    return lowered


def _events(graph: Graph, plan: Plan, durations: _Durations) -> Iterator[Event]:
    standing = plan.standing
    for stage in graph.stages:
        name, occupancy_s = stage.name, durations[stage.name].occupancy_s
        for j in range(num_events(graph, name)):
            resources, shift = standing[name, j]
            yield Event(event_id(name, j), name, j, occupancy_s, resources, shift)


def _data_arcs(graph: Graph, durations: _Durations, relays: _Relays) -> Iterator[Arc]:
    for data in graph.data:
        for writer, reader in graph.dependences(data.name):
            relay = relays.get((data.name, writer.stage, reader.stage)) if relays else None
            if data.kind is DataKind.STREAM:
                yield from _stream_arcs(graph, data, writer, reader, durations, relay)
            else:  # what comes from outside has no writer
                yield from _state_arcs(graph, data, writer, reader, durations, relay)


def _stream_arcs(
    graph: Graph, data: Data, writer: Access, reader: Access, durations: _Durations, relay: Shipment | None
) -> Iterator[Arc]:
    made, used = num_events(graph, writer.stage), num_events(graph, reader.stage)
    wants, parts = relay.name if relay else reader.stage, row_parts(graph, reader.stage)
    for j in range(used):
        i = -(-(j % parts + 1) * made // parts) - 1
        latency_s = durations[writer.stage].tail_s if i == made - 1 else 0.0
        yield Arc(event_id(writer.stage, i), event_id(wants, j), reader.delay, latency_s, f"data:{data.name}")
    if data.versions:
        src, dst = event_id(reader.stage, used - 1), event_id(writer.stage, 0)
        yield Arc(src, dst, data.versions - reader.delay, durations[reader.stage].tail_s, f"room:{data.name}")


def _state_arcs(
    graph: Graph, data: Data, writer: Access, reader: Access, durations: _Durations, relay: Shipment | None
) -> Iterator[Arc]:
    made, used = num_events(graph, writer.stage), num_events(graph, reader.stage)
    batches = optimizer_batches(graph, reader, made)
    size, tail_s, maker = used // batches, durations[writer.stage].tail_s, writer.stage
    if relay:
        made, tail_s, maker = relay.firings, 0.0, relay.name
    for n in range(batches):
        update = made - 1 if n == 0 else n - 1
        first, last = event_id(reader.stage, n * size), event_id(reader.stage, (n + 1) * size - 1)
        tokens = reader.delay if n == 0 else reader.delay - 1
        yield Arc(event_id(maker, update), first, tokens, tail_s, f"state:{data.name}")
        if maker != reader.stage and (relay or reader.bound is Bound.EXACT):  # what is being read is not written to
            kept, used_until_s = data.versions - reader.delay, durations[reader.stage].tail_s
            yield Arc(last, event_id(maker, n), kept, used_until_s, f"keep:{data.name}")


def _order_arcs(graph: Graph, plan: Plan, durations: _Durations) -> Iterator[Arc]:
    for resource, slots in plan.order:
        for a, b in pairwise(slots):
            yield _order_arc(a, b, b.shift - a.shift, 0.0, f"device:{resource}")
        if slots:
            first, last = slots[0], slots[-1]
            servers = min([plan.binding_of[slot.stage].servers for slot in slots])
            yield _order_arc(last, first, first.shift - last.shift + servers, 0.0, f"device:{resource}")
        yield from _drain_arcs(graph, resource, slots, durations)


def _drain_arcs(graph: Graph, resource: str, slots: tuple[Slot, ...], durations: _Durations) -> Iterator[Arc]:
    """Yield the arcs that keep weights in place until the tail of what uses them on this resource is over."""
    for i, a in enumerate(slots):
        tail_s = durations[a.stage].tail_s
        if not tail_s or a.firing != num_events(graph, a.stage) - 1:
            continue
        for j, b in enumerate(slots):
            if _replaces_weights(graph, b.stage, a.stage):
                yield _order_arc(a, b, b.shift - a.shift + (j < i), tail_s, f"drain:{resource}")


def _replaces_weights(graph: Graph, writer: str, reader: str) -> bool:
    """Whether ``writer`` makes a STATE that another holds on to; with ``refresh=TOKEN`` it takes the new at once."""
    if writer == reader:
        return False
    held = {access.data for access in graph.reads(reader) if access.refresh is not Refresh.TOKEN}
    return any(access.data in held and graph.is_state(access.data) for access in graph.writes(writer))


def _order_arc(a: Slot, b: Slot, tokens: int, latency_s: float, reason: str) -> Arc:
    return Arc(event_id(a.stage, a.firing), event_id(b.stage, b.firing), tokens, latency_s, reason)


def _self_arcs(graph: Graph, plan: Plan) -> Iterator[Arc]:
    for stage in graph.stages:
        last = num_events(graph, stage.name) - 1
        yield Arc(event_id(stage.name, last), event_id(stage.name, 0), plan.binding_of[stage.name].servers, 0.0, "self")
