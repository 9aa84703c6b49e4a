"""Cycles of a graph whose arcs carry whole lengths and tokens: the largest ratio, and those of positive weight.

Whole numbers only, so every answer is exact. Events and arcs are numbers from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Ends", "Ratio", "forward_order", "largest_ratio", "positive_cycles"]

Ends = Sequence[tuple[int, int]]
"""Source and target of every arc."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Length and tokens of a cycle, and its arcs in their direction; a graph without length has ``(0, 1, ())``."""

    length: int
    tokens: int
    cycle: tuple[int, ...]


def forward_order(size: int, ends: Ends, tokens: Sequence[int]) -> tuple[list[int], bool]:
    """Return the arcs in an order in which those without tokens run forward, and whether there is one.

    Kahn's topological sort of ``size`` events. There is none when a cycle has no tokens; its arcs then come last. In
    this order a pass of `positive_cycles` carries along all that happens between two tokens.
    """
    out: list[list[int]] = [[] for _ in range(size)]
    waits = [0] * size
    for arc, (source, target) in enumerate(ends):
        out[source].append(arc)
        if tokens[arc] <= 0:
            waits[target] += 1
    ready = [event for event, count in enumerate(waits) if not count]
    for event in ready:
        for arc in out[event]:
            if tokens[arc] <= 0:
                target = ends[arc][1]
                waits[target] -= 1
                if not waits[target]:
                    ready.append(target)
    rest = [event for event, count in enumerate(waits) if count]
    return [arc for event in ready + rest for arc in out[event]], not rest


def largest_ratio(size: int, ends: Ends, lengths: Sequence[int], tokens: Sequence[int]) -> Ratio:
    """Return the cycle with the largest ratio of length to tokens, or one that has length and no tokens.

    Dinkelbach's iteration: the ratio rises to that of any cycle whose weight ``length - ratio * tokens`` is still
    positive; when none is left it is the largest. Arcs in the order of `forward_order` make it quick.
    """
    best = Ratio(0, 1, ())
    while True:
        weights = [best.tokens * length - best.length * count for length, count in zip(lengths, tokens, strict=True)]
        cycles = positive_cycles(size, ends, weights)
        if not cycles:
            return best
        for cycle in cycles:
            found = Ratio(sum([lengths[arc] for arc in cycle]), sum([tokens[arc] for arc in cycle]), tuple(cycle))
            if found.tokens <= 0:
                return found
            if found.length * best.tokens > best.length * found.tokens:
                best = found


def positive_cycles(size: int, ends: Ends, weights: Iterable[int]) -> list[list[int]]:
    """Return cycles of positive weight, no two of them with an event in common; none only if there is none.

    Bellman and Ford on longest paths. A cycle among the parents has positive weight, so the passes can end as soon as
    one closes, which is long before they would have to.
    """
    rows = [
        (arc, source, target, weight) for arc, ((source, target), weight) in enumerate(zip(ends, weights, strict=True))
    ]
    longest = [0] * size
    parents = [-1] * size
    while True:
        changed = False
        for arc, source, target, weight in rows:
            reached = longest[source] + weight
            if reached > longest[target]:
                longest[target] = reached
                parents[target] = arc
                changed = True
        if not changed:
            return []
        if cycles := _cycles_among(parents, ends):
            return cycles


def _cycles_among(parents: Sequence[int], ends: Ends) -> list[list[int]]:
    """Return the arcs of every cycle when each event has at most one arc into it (-1 is none)."""
    cycles: list[list[int]] = []
    seen = [-1] * len(parents)
    for start in range(len(parents)):
        event = start
        while seen[event] < 0 and parents[event] >= 0:
            seen[event] = start
            event = ends[parents[event]][0]
        if seen[event] == start:
            cycle = [parents[event]]
            while (source := ends[cycle[-1]][0]) != event:
                cycle.append(parents[source])
            cycles.append(cycle[::-1])
    return cycles
