"""Graph and plan and costs to the event graph: a table of rules, one small function each.

=====================================  ====================================================================
from                                   arcs (tokens count steps back)
=====================================  ====================================================================
STREAM written q_w times, read q_r     last needed producer firing ``ceil((j + 1) q_w / q_r) - 1`` to reader j
times with delay d                     with d tokens, plus the tail of the producer's last firing
bounded queue of C batches             ``r.last -> w.0`` with C - d tokens
STATE updated by u, read by r          ``u.last -> r.0`` with d tokens
... EXACT, C versions kept             ``r.last -> u.0`` with C - d tokens (negative is legal)
... by the TRAIN that feeds q_u        the same for each optimizer mini-batch: it sees the version that the update
updates a step                         before it made, in its own step (d - 1 tokens)
order on a resource                    each to its neighbour, ``shift`` differences as tokens; the closing arc + 1
a reader with a tail                   to the stage that installs its next weights, in the order of the resource
a stage with itself                    ``last -> first`` with 1 token
a firing in the order of two           one event: it occupies both (a rendezvous)
=====================================  ====================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from rpeg.graph.access import Access, Bound, Refresh
from rpeg.graph.data import Data, DataKind
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.plan.costs import Costs, Duration
from rpeg.plan.events import Arc, Event, EventGraph, beyond_cut, dead_cycle, tokenless_cycle, unreachable_cut
from rpeg.plan.firings import event_id, num_events
from rpeg.plan.plan import Plan, Slot

__all__ = ["lower"]

_Durations = Mapping[str, Duration]


def lower(graph: Graph, plan: Plan, costs: Costs) -> EventGraph:
    """Return the event graph of ``graph`` under ``plan``, a legal plan of it, priced by ``costs``.

    Raises:
        PlanError: when a cycle has no tokens, so nothing on it could ever start, or when an event waits for one that
            the shifts put behind the cut, so no run of the plan could end.
    """
    durations = {binding.stage: costs.seconds(binding.stage, binding) for binding in plan.bindings}
    arcs = [*_data_arcs(graph, durations), *_order_arcs(graph, plan, durations), *_self_arcs(graph)]
    lowered = EventGraph(tuple(_events(graph, plan, durations)), tuple(arcs))
    if (cycle := tokenless_cycle(lowered)) is not None:
        raise dead_cycle(cycle)
    if beyond := beyond_cut(lowered):
        raise unreachable_cut(lowered, beyond)
    return lowered


def _events(graph: Graph, plan: Plan, durations: _Durations) -> Iterator[Event]:
    for stage in graph.stages:
        for j in range(num_events(graph, stage.name)):
            shift, resources = plan.shift_of(stage.name, j), plan.resources_of(stage.name, j)
            occupancy_s = durations[stage.name].occupancy_s
            yield Event(event_id(stage.name, j), stage.name, j, occupancy_s, resources, shift)


def _data_arcs(graph: Graph, durations: _Durations) -> Iterator[Arc]:
    for data in graph.data:
        for writer, reader in graph.dependences(data.name):
            if data.kind is DataKind.STREAM:
                yield from _stream_arcs(graph, data, writer, reader, durations)
            else:  # what comes from outside has no writer
                yield from _state_arcs(graph, data, writer, reader, durations)


def _stream_arcs(graph: Graph, data: Data, writer: Access, reader: Access, durations: _Durations) -> Iterator[Arc]:
    made, used = num_events(graph, writer.stage), num_events(graph, reader.stage)
    for j in range(used):
        i = -(-(j + 1) * made // used) - 1
        latency_s = durations[writer.stage].tail_s if i == made - 1 else 0.0
        yield Arc(event_id(writer.stage, i), event_id(reader.stage, j), reader.delay, latency_s, f"data:{data.name}")
    if data.versions:
        src, dst = event_id(reader.stage, used - 1), event_id(writer.stage, 0)
        yield Arc(src, dst, data.versions - reader.delay, durations[reader.stage].tail_s, f"room:{data.name}")


def _state_arcs(graph: Graph, data: Data, writer: Access, reader: Access, durations: _Durations) -> Iterator[Arc]:
    made, used = num_events(graph, writer.stage), num_events(graph, reader.stage)
    batches = _optimizer_batches(graph, reader, made, used)
    size, tail_s = used // batches, durations[writer.stage].tail_s
    for n in range(batches):
        update = made - 1 if n == 0 else n - 1
        first, last = event_id(reader.stage, n * size), event_id(reader.stage, (n + 1) * size - 1)
        tokens = reader.delay if n == 0 else reader.delay - 1
        yield Arc(event_id(writer.stage, update), first, tokens, tail_s, f"state:{data.name}")
        if reader.bound is Bound.EXACT:
            kept, used_until_s = data.versions - reader.delay, durations[reader.stage].tail_s
            yield Arc(last, event_id(writer.stage, n), kept, used_until_s, f"keep:{data.name}")


def _optimizer_batches(graph: Graph, reader: Access, made: int, used: int) -> int:
    """Return how often within a step the reader turns to a newer version: once, but a TRAIN after every update."""
    is_train = graph.stage_of[reader.stage].kind is StageKind.TRAIN
    return made if is_train and used % made == 0 else 1


def _order_arcs(graph: Graph, plan: Plan, durations: _Durations) -> Iterator[Arc]:
    for resource, slots in plan.order:
        for a, b in pairwise(slots):
            yield _order_arc(a, b, b.shift - a.shift, 0.0, f"device:{resource}")
        if slots:
            first, last = slots[0], slots[-1]
            yield _order_arc(last, first, first.shift - last.shift + 1, 0.0, f"device:{resource}")
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
    """Whether ``writer`` makes a STATE that ``reader`` holds on to; with ``refresh=TOKEN`` it takes the new at once."""
    held = {access.data for access in graph.reads(reader) if access.refresh is not Refresh.TOKEN}
    return any(access.data in held and graph.is_state(access.data) for access in graph.writes(writer))


def _order_arc(a: Slot, b: Slot, tokens: int, latency_s: float, reason: str) -> Arc:
    return Arc(event_id(a.stage, a.firing), event_id(b.stage, b.firing), tokens, latency_s, reason)


def _self_arcs(graph: Graph) -> Iterator[Arc]:
    for stage in graph.stages:
        last = num_events(graph, stage.name) - 1
        yield Arc(event_id(stage.name, last), event_id(stage.name, 0), 1, 0.0, "self")
