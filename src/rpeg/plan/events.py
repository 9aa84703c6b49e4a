"""The event graph: timed events, arcs with tokens; its period is the largest cycle ratio.

Self-timed execution settles to the period ``max over cycles of sum(occupancy + latency) / sum(tokens)`` (Reiter 1968;
Karp 1978 for one token per arc). The cycle that reaches it is the critical one: the explanation of the step time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from rpeg.errors import Fault, PlanError

__all__ = [
    "Arc",
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


def cycle_ratio(graph: EventGraph) -> tuple[Fraction, list[Arc]]:
    """Return the period in seconds per step, exactly, and the critical cycle (empty if all takes no time).

    Dinkelbach's iteration: raise the period to the ratio of any cycle that still has positive weight
    ``occupancy + latency - period * tokens``; when none is left the period is the maximum.

    Raises:
        PlanError: when a cycle with positive time has no positive number of tokens, so it can never turn.
    """
    lengths = [Fraction(graph.event_of[a.src].occupancy_s) + Fraction(a.latency_s) for a in graph.arcs]
    period, critical = Fraction(0), list[int]()
    while (cycle := _positive_cycle(graph, lengths, period)) is not None:
        tokens = sum(graph.arcs[i].tokens for i in cycle)
        if tokens <= 0:
            raise dead_cycle([graph.arcs[i] for i in cycle])
        period, critical = sum((lengths[i] for i in cycle), Fraction(0)) / tokens, cycle
    return period, [graph.arcs[i] for i in critical]


def tokenless_cycle(graph: EventGraph) -> list[Arc] | None:
    """Return a cycle whose tokens sum to zero or less, or None when the graph is live.

    A separate check: a tokenless cycle of events without length has no weight, so the cycle ratio does not see it.
    """
    scale = Fraction(1, len(graph.events) + 1)  # a cycle of n arcs and 1 token must not look positive: n * scale < 1
    cycle = _positive_cycle(graph, [scale] * len(graph.arcs), Fraction(1))
    return None if cycle is None else [graph.arcs[i] for i in cycle]


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


def _positive_cycle(graph: EventGraph, lengths: Sequence[Fraction], period: Fraction) -> list[int] | None:
    """Return arc indices of a cycle with positive weight (Bellman-Ford on longest paths), or None."""
    weights = [length - period * arc.tokens for length, arc in zip(lengths, graph.arcs, strict=True)]
    distance: dict[str, Fraction] = defaultdict(Fraction)
    parent: dict[str, int] = {}
    changed: str | None = None
    for _ in range(len(graph.events) + 1):
        changed = None
        for index, arc in enumerate(graph.arcs):
            reached = distance[arc.src] + weights[index]
            if reached > distance[arc.dst]:
                distance[arc.dst], parent[arc.dst], changed = reached, index, arc.dst
        if changed is None:
            return None
    assert changed is not None
    return _walk_back(graph, parent, changed)


def _walk_back(graph: EventGraph, parent: dict[str, int], start: str) -> list[int]:
    node = start
    for _ in graph.events:  # step back far enough to stand on the cycle itself
        node = graph.arcs[parent[node]].src
    cycle = [parent[node]]
    while graph.arcs[cycle[-1]].src != node:
        cycle.append(parent[graph.arcs[cycle[-1]].src])
    return cycle[::-1]
