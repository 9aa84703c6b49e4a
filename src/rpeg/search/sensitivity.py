"""How the period of an event graph follows from its durations and tokens: exactly, from the cycles themselves.

========  ==============================================================================================
T         the period: the largest of (seconds on a cycle) / (tokens on it)
w(C)      seconds on a cycle C less T times its tokens: 0 on critical ones, below 0 on all others
n(C)      how often a stage fires on C
========  ==============================================================================================

A stage whose firings all take x seconds more leaves the period as it is while ``w(C) + x n(C) <= 0`` on every cycle:
its slack is the least ``-w(C) / n(C)``. Without slack, a second more of every firing costs the largest
``n(C) / tokens(C)`` of the critical cycles. Whole numbers only (every float is a fraction), so both are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm

from rpeg.plan.cycles import largest_ratio, positive_cycles
from rpeg.plan.events import EventGraph, cycle_ratio
from rpeg.search.reprice import Step

__all__ = ["Margin", "TokenWorth", "margins", "token_worths"]

_BY_PLACE = ("device", "self", "drain")
"""Reasons whose tokens nobody chooses: they follow from the order of work."""


@dataclass(frozen=True, slots=True)
class Margin:
    """One stage, or one transfer, in the period."""

    stage: str
    firings: int
    occupancy_s: float
    """Of one firing."""
    tail_s: float
    cycle_s: float
    """Of the cycle that limits, what this stage takes: occupancies and tails."""
    share: float
    """The same over the whole cycle; shares sum to 1."""
    worth: float
    """Seconds that a step gets longer when each firing takes a second more: counted on the cycle, over its tokens."""
    slack_s: float
    """By how much each firing could take longer with the step as it is."""
    tail_worth: float = 0.0
    """As ``worth``, of the tail."""
    tail_slack_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenWorth:
    """What one more token would do, with the order of work as it is."""

    reason: str
    """Of the arcs that get one more: ``state:actor.rollout``, ``room:rollouts``."""
    tokens: int
    """On each of these arcs now, at most."""
    step_s: float
    """The step with one more."""


class _Cycles:
    """The arcs of an event graph in whole numbers, with the period."""

    def __init__(self, step: Step) -> None:
        graph, index = step.events, step.events.index
        self.sources = [graph.events[source] for source, _ in index.ends]
        self.latencies_s = [arc.latency_s for arc in index.arcs]
        lengths = [
            Fraction(event.occupancy_s) + Fraction(latency_s)
            for event, latency_s in zip(self.sources, self.latencies_s, strict=True)
        ]
        self.unit = lcm(step.period_s.denominator, *(length.denominator for length in lengths))
        self.size, self.ends, self.tokens = len(graph.events), index.ends, index.tokens
        self.lengths = [int(length * self.unit) for length in lengths]
        self.weights = [
            length - int(step.period_s * self.unit) * tokens
            for length, tokens in zip(self.lengths, self.tokens, strict=True)
        ]
        self._most_tokens = 1 + sum(abs(tokens) for tokens in self.tokens)

    def slack_s(self, counts: Sequence[int]) -> Fraction | None:
        """Return the least ``-w(C) / n(C)``; None where no cycle counts anything.

        Newton's iteration from above: while a cycle is positive with so much more, no more than what it has is free.
        """
        best = Fraction(sum(map(abs, self.weights)) + 1)
        is_bounded = False
        while True:
            more, scale = best.numerator, best.denominator
            weights = [scale * w + more * n for w, n in zip(self.weights, counts, strict=True)]
            cycles = positive_cycles(self.size, self.ends, weights)
            if not cycles:
                return best / self.unit if is_bounded else None
            is_bounded = True
            best = min(
                Fraction(-sum(self.weights[arc] for arc in cycle), sum(counts[arc] for arc in cycle))
                for cycle in cycles
            )

    def worth(self, counts: Sequence[int]) -> Fraction:
        """Return the largest ``n(C) / tokens(C)`` of critical cycles.

        With so small a weight on what is counted that a cycle which is not critical cannot become so.
        """
        scale = 1 + self.size * self._most_tokens**2
        lengths = [scale * length + count for length, count in zip(self.lengths, counts, strict=True)]
        found = largest_ratio(self.size, self.ends, lengths, self.tokens)
        return Fraction(sum(counts[arc] for arc in found.cycle), found.tokens) if found.cycle else Fraction(0)


def margins(step: Step) -> tuple[Margin, ...]:
    """Return every stage and transfer of a step with what it is worth and its slack, those on the cycle first."""
    cycles, on_cycle = _Cycles(step), _cycle_s(step)
    total_s = sum(on_cycle.values())
    found = [_margin(step, cycles, name, on_cycle.get(name, 0.0), total_s) for name in _stages(step.events)]
    return tuple(sorted(found, key=lambda each: (-each.cycle_s, each.slack_s)))


def _stages(events: EventGraph) -> list[str]:
    return list(dict.fromkeys(event.stage for event in events.events))


def _cycle_s(step: Step) -> dict[str, float]:
    """Return the seconds of every stage on the cycle that limits."""
    found: dict[str, float] = {}
    for arc in step.cycle:
        event = step.events.event_of[arc.src]
        found[event.stage] = found.get(event.stage, 0.0) + event.occupancy_s + arc.latency_s
    return found


def _margin(step: Step, cycles: _Cycles, name: str, cycle_s: float, total_s: float) -> Margin:
    mine = [event for event in step.events.events if event.stage == name]
    fires = [int(source.stage == name) for source in cycles.sources]
    waits = [int(n and latency_s > 0) for n, latency_s in zip(fires, cycles.latencies_s, strict=True)]
    worth, slack_s = _worth(cycles, fires)
    tail_worth, tail_slack_s = _worth(cycles, waits) if any(waits) else (0.0, 0.0)
    return Margin(
        name,
        len(mine),
        mine[0].occupancy_s,
        step.tails_s.get(name, 0.0),
        cycle_s,
        cycle_s / total_s if total_s else 0.0,
        worth,
        slack_s,
        tail_worth,
        tail_slack_s,
    )


def _worth(cycles: _Cycles, counts: Sequence[int]) -> tuple[float, float]:
    slack_s = cycles.slack_s(counts)
    if slack_s is None:
        return 0.0, float("inf")
    return (float(cycles.worth(counts)) if not slack_s else 0.0), float(slack_s)


def token_worths(step: Step) -> tuple[TokenWorth, ...]:
    """Return what one more token would do for every reason on the cycle that limits; elsewhere it does nothing.

    The order of work stays as it is: what a generator gains that may run further ahead, and then does, is more.
    """
    reasons = dict.fromkeys(arc.reason for arc in step.cycle if arc.reason.partition(":")[0] not in _BY_PLACE)
    found = [_token_worth(step, reason) for reason in reasons]
    return tuple(sorted(found, key=lambda each: each.step_s))


def _token_worth(step: Step, reason: str) -> TokenWorth:
    arcs = tuple(replace(arc, tokens=arc.tokens + 1) if arc.reason == reason else arc for arc in step.events.arcs)
    most = max(arc.tokens for arc in step.events.arcs if arc.reason == reason)
    return TokenWorth(reason, most, float(cycle_ratio(EventGraph(step.events.events, arcs))[0]))
