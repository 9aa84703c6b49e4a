"""The part of lowering that inserts transfers: events on links, between those who make data and those who want it.

=====================================  ====================================================================
from                                   arcs (tokens count steps back)
=====================================  ====================================================================
RESHARD of a STATE, C versions kept    ``u -> reshard`` in the same step, and the next update but C - 1 waits for it;
                                       for its readers it stands in the place of u
RESHARD of a STREAM                    ``w -> reshard.j -> r.j``: for w it stands in the place of r
LOAD for a, led by n                   the slot 1 + n places before a in the order of each resource ``-> load -> a``
STORE after b                          ``b -> store -> `` the next load, which otherwise waits for b itself
a link                                 its transfers one after the other, in the order in which they could start
=====================================  ====================================================================

An event of a transfer occupies links only (``net:trn``, ``home:trn``), so it overlaps with what the devices do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from rpeg.graph.data import DataKind
from rpeg.graph.graph import Graph
from rpeg.plan.costs import Costs, Duration
from rpeg.plan.events import Arc, Event, EventGraph
from rpeg.plan.firings import event_id, num_events
from rpeg.plan.plan import Home, Plan, Residency, Slot
from rpeg.plan.shipments import Cause, Shipment

__all__ = ["haul_arcs", "link_arcs", "reshard_arcs", "shipment_events"]

_Durations = Mapping[str, Duration]


def shipment_events(graph: Graph, plan: Plan, inserted: Iterable[Shipment], costs: Costs) -> Iterator[Event]:
    """Yield the events of the transfers that no stage carries."""
    for shipment in inserted:
        occupancy_s, links = costs.transfer_s(shipment), _links(plan, shipment)
        for n in range(shipment.firings):
            shift = plan.shift_of(*_partner(graph, shipment, n))
            yield Event(event_id(shipment.name, n), shipment.name, n, occupancy_s, links, shift)


def _links(plan: Plan, shipment: Shipment) -> tuple[str, ...]:
    kind = "net" if shipment.cause is Cause.RESHARD else "home"
    meshes = dict.fromkeys((shipment.src.mesh, shipment.dst.mesh))
    return tuple(dict.fromkeys(f"{kind}:{name}" for mesh in meshes for name, _ in plan.slots_of(mesh)))


def _partner(graph: Graph, shipment: Shipment, n: int) -> tuple[str, int]:
    """Return the stage and firing in whose step the n-th firing of ``shipment`` happens."""
    if shipment.cause is Cause.RESHARD and graph.is_state(shipment.data):
        return shipment.writer, n + num_events(graph, shipment.writer) - shipment.firings
    if shipment.cause is Cause.RESHARD:
        return shipment.readers[0], n
    return shipment.writer, 0 if shipment.cause is Cause.LOAD else num_events(graph, shipment.writer) - 1


def reshard_arcs(graph: Graph, shipment: Shipment, durations: _Durations) -> Iterator[Arc]:
    """Yield the arcs between a reshard and its writer, or its reader; the others come from the rules for data."""
    yield _self_arc(shipment)
    reason = f"transfer:{shipment.data}"
    if graph.data_of[shipment.data].kind is DataKind.STREAM:
        for j in range(shipment.firings):
            yield Arc(event_id(shipment.name, j), event_id(shipment.readers[0], j), 0, 0.0, reason)
        return
    made, kept = num_events(graph, shipment.writer), graph.data_of[shipment.data].versions
    tail_s = durations[shipment.writer].tail_s
    for n in range(shipment.firings):
        _, update = _partner(graph, shipment, n)
        event, after = event_id(shipment.name, n), (update + 1) % made
        yield Arc(event_id(shipment.writer, update), event, 0, tail_s, reason)
        yield Arc(event, event_id(shipment.writer, after), kept - (after > 0), 0.0, reason)


def haul_arcs(graph: Graph, plan: Plan, inserted: Iterable[Shipment], durations: _Durations) -> Iterator[Arc]:
    """Yield the arcs of loads and stores."""
    names = {shipment.name for shipment in inserted}
    for residency in plan.residencies:
        if residency.home is not Home.HBM:
            yield from _residency_arcs(graph, plan, residency, names, durations)
    yield from (_self_arc(shipment) for shipment in inserted if shipment.cause is not Cause.RESHARD)


def _residency_arcs(
    graph: Graph, plan: Plan, residency: Residency, names: set[str], durations: _Durations
) -> Iterator[Arc]:
    reason, count = f"transfer:{residency.data}", len(residency.between)
    for n, (first, last) in enumerate(residency.between):
        load, store = f"{Cause.LOAD}:{residency.data}.{n}", f"{Cause.STORE}:{residency.data}.{n}"
        end, tail_s = event_id(last, num_events(graph, last) - 1), durations[last].tail_s
        yield Arc(event_id(load, 0), event_id(first, 0), 0, 0.0, reason)
        for _, slots in plan.slots_of(plan.mesh_of(first)):
            yield _anchor_arc(slots, first, event_id(load, 0), residency.lead, durations, reason)
        if store in names:
            yield Arc(end, event_id(store, 0), 0, tail_s, reason)
            end, tail_s = event_id(store, 0), 0.0
        following = residency.between[(n + 1) % count][0]
        tokens = plan.shift_of(following) - plan.shift_of(last, num_events(graph, last) - 1) + (n + 1 == count)
        again = event_id(f"{Cause.LOAD}:{residency.data}.{(n + 1) % count}", 0)
        yield Arc(end, again, tokens, tail_s, reason)


def _anchor_arc(slots: tuple[Slot, ...], stage: str, load: str, lead: int, durations: _Durations, reason: str) -> Arc:
    """Return the arc from the slot whose end allows the load to begin; it may stand in the period before."""
    place = next(i for i, slot in enumerate(slots) if slot.stage == stage)
    periods, anchor = divmod(place - 1 - lead, len(slots))
    a, b = slots[anchor], slots[place]
    return Arc(event_id(a.stage, a.firing), load, b.shift - a.shift - periods, 0.0, reason)


def _self_arc(shipment: Shipment) -> Arc:
    return Arc(event_id(shipment.name, shipment.firings - 1), event_id(shipment.name, 0), 1, 0.0, "self")


def link_arcs(lowered: EventGraph, inserted: Iterable[Shipment]) -> Iterator[Arc]:
    """Yield the arcs that make the transfers on each link follow each other in a ring.

    Their order is that of the earliest start within a step; events that start together follow the arcs between them. So
    the ring runs along with all other arcs and closes no cycle without tokens.
    """
    names = {shipment.name for shipment in inserted}
    waiting: dict[str, list[Event]] = defaultdict(list)
    rank = _start_ranks(lowered)
    for event in sorted((e for e in lowered.events if e.stage in names), key=lambda e: rank[e.id]):
        for link in event.resources:
            waiting[link].append(event)
    for link, events in waiting.items():
        pairs = [(a, b, 0) for a, b in pairwise(events)] + [(events[-1], events[0], 1)]
        yield from (Arc(a.id, b.id, b.shift - a.shift + more, 0.0, f"device:{link}") for a, b, more in pairs)


def _start_ranks(lowered: EventGraph) -> dict[str, tuple[float, int]]:
    """Return for each event its earliest start within a step, and its place in an order that follows the arcs."""
    start_s, place = [0.0] * len(lowered.events), dict[int, int]()
    for arc, (source, target), tokens in zip(lowered.index.arcs, lowered.index.ends, lowered.index.tokens, strict=True):
        place.setdefault(source, len(place))
        if tokens <= 0:
            end_s = start_s[source] + lowered.events[source].occupancy_s + arc.latency_s
            start_s[target] = max(start_s[target], end_s)
    return {event.id: (start_s[i], place[i]) for i, event in enumerate(lowered.events)}
