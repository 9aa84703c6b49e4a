"""The event graph: timed events, arcs with tokens; its period is the largest cycle ratio.

Self-timed execution settles to the period ``max over cycles of sum(occupancy + latency) / sum(tokens)`` (Reiter 1968;
Karp 1978 for one token per arc). The cycle that reaches it is the critical one: the explanation of the step time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import lcm

from rpeg.errors import Fault, PlanError
from rpeg.plan.cycles import forward_order, largest_ratio, positive_cycles

__all__ = [
    "Arc",
    "ArcIndex",
    "Event",
    "EventGraph",
    "beyond_cut",
    "cycle_ratio",
    "dead_cycle",
    "tokenless_cycle",
    "unreachable_cut",
]


@dataclass(frozen=True, slots=True)
class Event:
    """One firing of one stage in every step."""

    id: str
    stage: str
    firing: int
    occupancy_s: float
    """Seconds until its resources are free again."""
    resources: tuple[str, ...]
    """All that it occupies, the mesh of its stage first."""
    shift: int = 0
    """Steps ahead of the others, from the plan's order."""


@dataclass(frozen=True, slots=True)
class Arc:
    """``dst`` of step t waits for ``src`` of step ``t - tokens``, and ``latency_s`` seconds more."""

    src: str
    dst: str
    tokens: int
    latency_s: float
    reason: str
    """What is waited for: ``data:rollouts``, ``room:rollouts``, ``state:actor.master``, ``keep:actor.master``,
    ``device:trn``, ``drain:roll`` or ``self``.
    """


@dataclass(frozen=True, slots=True)
class ArcIndex:
    """The arcs of an event graph in an order in which those without tokens run forward."""

    arcs: list[Arc]
    ends: list[tuple[int, int]]
    """Of each arc, the places of its source and its target among the events."""
    tokens: list[int]
    """Of each arc at a cut. Around a cycle they sum to the tokens of its arcs."""
    is_live: bool
    """Whether that order alone proves that every cycle has tokens; a live graph with negative tokens needs a look."""


@dataclass(frozen=True)
class EventGraph:
    """Events and arcs; what the model prices, the simulator plays and the runtime executes.

    Every event has an arc out of it, if only to itself: the end of a firing shows in the tokens it leaves.
    """

    events: tuple[Event, ...]
    arcs: tuple[Arc, ...]

    @cached_property
    def event_of(self) -> dict[str, Event]:
        """Events by id."""
        return {event.id: event for event in self.events}

    @cached_property
    def arcs_into(self) -> dict[str, list[int]]:
        """Indices of the arcs into each event."""
        into: dict[str, list[int]] = {event.id: [] for event in self.events}
        for index, arc in enumerate(self.arcs):
            into[arc.dst].append(index)
        return into

    @cached_property
    def arcs_out_of(self) -> dict[str, list[int]]:
        """Indices of the arcs out of each event."""
        out: dict[str, list[int]] = {event.id: [] for event in self.events}
        for index, arc in enumerate(self.arcs):
            out[arc.src].append(index)
        return out

    @cached_property
    def index(self) -> ArcIndex:
        """Arcs and events as numbers, for what looks for cycles."""
        number = {event.id: i for i, event in enumerate(self.events)}
        shift = {event.id: event.shift for event in self.events}
        ends = [(number[arc.src], number[arc.dst]) for arc in self.arcs]
        # What lies on an arc at a cut: shifts telescope around a cycle, and mostly none of these is negative.
        at_cut = [arc.tokens + shift[arc.src] - shift[arc.dst] for arc in self.arcs]
        order, is_ordered = forward_order(len(self.events), ends, at_cut)
        return ArcIndex(
            [self.arcs[i] for i in order],
            [ends[i] for i in order],
            [at_cut[i] for i in order],
            is_ordered and min(at_cut, default=0) >= 0,
        )


def cycle_ratio(graph: EventGraph) -> tuple[Fraction, list[Arc]]:
    """Return the period in seconds per step, exactly, and the critical cycle (empty if all takes no time).

    Raises:
        PlanError: when a cycle with positive time has no positive number of tokens, so it can never turn.
    """
    arcs, occupancies_s = graph.index.arcs, [_ratio(event.occupancy_s) for event in graph.events]
    latencies_s = [_ratio(arc.latency_s) for arc in arcs]
    unit = lcm(*{denominator for _, denominator in (*occupancies_s, *latencies_s)})
    busy = [number * (unit // denominator) for number, denominator in occupancies_s]
    waits = [number * (unit // denominator) for number, denominator in latencies_s]
    lengths = [busy[source] + wait for (source, _), wait in zip(graph.index.ends, waits, strict=True)]
    found = largest_ratio(len(busy), graph.index.ends, lengths, graph.index.tokens)
    cycle = [arcs[i] for i in found.cycle]
    if found.tokens <= 0:
        raise dead_cycle(cycle)
    return Fraction(found.length, found.tokens * unit), cycle


def _ratio(seconds: float) -> tuple[int, int]:
    """Return seconds as a numerator and a denominator: every float is a fraction."""
    return seconds.as_integer_ratio() if seconds else (0, 1)


def tokenless_cycle(graph: EventGraph) -> list[Arc] | None:
    """Return a cycle whose tokens sum to zero or less, or None when the graph is live.

    A separate check: a tokenless cycle of events without length has no weight, so the cycle ratio does not see it.
    """
    index = graph.index
    if index.is_live:
        return None
    size = len(graph.events)
    # A cycle of n arcs and 1 token must not look positive, one without tokens must.
    cycles = positive_cycles(size, index.ends, [1 - (size + 1) * count for count in index.tokens])
    return [index.arcs[i] for i in cycles[0]] if cycles else None


def dead_cycle(arcs: Iterable[Arc]) -> PlanError:
    """Return the error that names the events of a cycle that can never turn."""
    arcs = list(arcs)
    path = " -> ".join([arcs[0].src, *(arc.dst for arc in arcs)])
    tokens = sum(arc.tokens for arc in arcs)
    reasons = ", ".join(arc.reason for arc in arcs)
    text = f"{tokens} tokens on the cycle ({reasons}), so it never starts"
    return PlanError("event graph", [Fault(path, text, "shift the order or keep more versions")])


def beyond_cut(graph: EventGraph) -> list[Arc]:
    """Return the arcs over which an event waits for one that a cut puts off.

    At the cut n every event has fired n + shift times. An arc with fewer tokens than the difference of the shifts would
    need more firings of its source than that.
    """
    event_of = graph.event_of
    return [arc for arc in graph.arcs if arc.tokens < event_of[arc.dst].shift - event_of[arc.src].shift]


def unreachable_cut(graph: EventGraph, arcs: Iterable[Arc]) -> PlanError:
    """Return the error that names the arcs for which no run could come to an end."""
    faults: list[Fault] = []
    for arc in arcs:
        ahead = graph.event_of[arc.dst].shift - graph.event_of[arc.src].shift
        text = f"{arc.tokens} tokens ({arc.reason}) do not let {arc.dst} run {ahead} steps ahead"
        faults.append(Fault(f"{arc.src} -> {arc.dst}", text, "lower its shift, or raise the delay or the room"))
    return PlanError("event graph", faults)
