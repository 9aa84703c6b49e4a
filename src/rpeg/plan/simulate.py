"""The virtual clock: plays an event graph with durations that are known or drawn, in no real time."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rpeg.plan.events import EventGraph
from rpeg.plan.play import Firing, Player

__all__ = ["Draw", "SimulatedFiring", "simulate"]

Draw = Callable[[Firing, float], float]
"""A firing and its expected occupancy to the occupancy in seconds that this one has."""


@dataclass(frozen=True, slots=True)
class SimulatedFiring:
    """One firing on the virtual clock."""

    event: str
    step: int
    start_s: float
    end_s: float


class _VirtualClock:
    """Keeps a heap of token arrivals; waiting is jumping to the next one."""

    def __init__(self, graph: EventGraph, draw: Draw | None) -> None:
        self._occupancy_s = {event.id: event.occupancy_s for event in graph.events}
        self._by_latency = {event.id: _by_latency(graph, event.id) for event in graph.events}
        self._num_arcs, self._draw = len(graph.arcs), draw
        self.now_s = 0.0
        self.firings: list[SimulatedFiring] = []
        self._arrivals: list[tuple[float, int, Firing, list[int]]] = []

    def start(self, firing: Firing, arcs: Sequence[int]) -> None:
        occupancy_s = self._occupancy_s[firing.event]
        if self._draw is not None:
            occupancy_s = self._draw(firing, occupancy_s)
        end_s = self.now_s + occupancy_s
        self.firings.append(SimulatedFiring(firing.event, firing.index, self.now_s, end_s))
        for latency_s, group in self._by_latency[firing.event]:
            serial = len(self.firings) * self._num_arcs + group[0]  # ties break by the order of starting
            heapq.heappush(self._arrivals, (end_s + latency_s, serial, firing, group))

    def wait(self) -> Iterable[tuple[Firing, Sequence[int]]]:
        self.now_s = self._arrivals[0][0]
        while self._arrivals and self._arrivals[0][0] == self.now_s:
            _, _, firing, arcs = heapq.heappop(self._arrivals)
            yield firing, arcs


def _by_latency(graph: EventGraph, event: str) -> list[tuple[float, list[int]]]:
    """Return the arcs out of an event, those whose tokens arrive together in one group."""
    groups: dict[float, list[int]] = defaultdict(list)
    for index in graph.arcs_out_of[event]:
        groups[graph.arcs[index].latency_s].append(index)
    return list(groups.items())


def simulate(graph: EventGraph, steps: int, draw: Draw | None = None) -> list[SimulatedFiring]:
    """Return every firing of ``steps`` steps in the order of starting, on a clock that begins at 0 s.

    Args:
        graph: what to play.
        steps: how many steps.
        draw: gives each firing its occupancy in seconds; without it every firing takes its expected time.
    """
    clock = _VirtualClock(graph, draw)
    Player(graph, clock).play(steps)
    return clock.firings
