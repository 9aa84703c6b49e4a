"""The interpreter of the event graph: one loop, two clocks.

An event fires when every arc into it holds a token; when it has fired it puts tokens on the arcs out of it. Nothing
else decides what may run when. What firing means is asked of a `Clock`: the simulator's passes virtual time and draws
durations, the runtime's calls workers and waits for them.

    start ──▶ clock.start(firing, arcs) ──▶ clock.wait() ──▶ tokens on the arcs ──▶ what may fire now

The loop stops at *cuts*. The cut n is the moment when every event has fired ``n + shift`` times: steps before n are
complete, events that run ahead have done so by their shift, and nothing is under way. There a run can be saved, and
resumed from nothing but the number n and the data on the arcs. At the cut 0 nothing has fired at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rpeg.errors import Stalled
from rpeg.plan.events import Event, EventGraph

__all__ = ["Clock", "Firing", "Player"]


@dataclass(frozen=True, slots=True)
class Firing:
    """The ``index``-th firing of an event: its work for step ``index`` of the run, counted from 0.

    What people read counts steps from 1.
    """

    event: str
    index: int


class Clock(Protocol):
    """Makes firings happen, and says when their tokens arrive."""

    def start(self, firing: Firing, arcs: Sequence[int]) -> None:
        """Begin ``firing``; its tokens belong on ``arcs``."""
        ...

    def wait(self) -> Iterable[tuple[Firing, Sequence[int]]]:
        """Block until tokens arrive; return the firings they come from and the arcs they lie on.

        Firings of one event end in their order: tokens are counted, they do not say which firing left them.
        """
        ...


class Player:
    """Plays an event graph on a clock, from cut to cut."""

    def __init__(self, graph: EventGraph, clock: Clock, cut: int = 0) -> None:
        """Stand at ``cut``, with the tokens on the arcs that lie there then."""
        self._graph, self._clock = graph, clock
        self.fired = {event.id: _due(event, cut) for event in graph.events}
        self._arrived = [self.fired[arc.src] + arc.tokens for arc in graph.arcs]
        self._under_way = 0
        self._until = cut

    def play(self, until: int) -> int:
        """Play to the cut ``until`` and return it, or the nearer one that `stop_at_nearest_cut` asked for meanwhile.

        A cut that has been passed is no reason to do anything: it returns where it stands.

        Raises:
            Stalled: when nothing is under way and nothing can fire before the cut is reached.
        """
        self._until = max(until, self._until)
        self._start_ready([event.id for event in self._graph.events])
        while self._under_way:
            touched: list[str] = []
            for _, arcs in self._clock.wait():
                self._under_way -= len(arcs)
                for index in arcs:
                    self._arrived[index] += 1
                    touched.append(self._graph.arcs[index].dst)
            self._start_ready(touched)
        if short := self._short():
            raise Stalled(self._explain(short))
        return self._until

    def stop_at_nearest_cut(self) -> int:
        """Let `play` end at the nearest cut that is still ahead of every event, and return that cut.

        It is the smallest n such that no event has fired more often than it has at the cut n; a nearer end stays as it
        is. What has begun is finished, and what is missing to the cut is done. Made for the handler of a signal: it may
        interrupt `play` anywhere. If it comes just when an event is about to fire, the end may be one cut later.
        """
        self._until = min(self._until, max((_cut_after(e, self.fired[e.id]) for e in self._graph.events), default=0))
        return self._until

    def _start_ready(self, candidates: Iterable[str]) -> None:
        for name in dict.fromkeys(candidates):
            event, arcs = self._graph.event_of[name], self._graph.arcs_out_of[name]
            while self.fired[name] < _due(event, self._until) and self._is_ready(name):
                firing = Firing(name, self.fired[name])
                self.fired[name] += 1
                # A stop asked for after the check above did not know of this firing.
                self._until = max(self._until, _cut_after(event, self.fired[name]))
                self._under_way += len(arcs)
                self._clock.start(firing, arcs)

    def _is_ready(self, event: str) -> bool:
        arrived, fired = self._arrived, self.fired[event]
        for index in self._graph.arcs_into[event]:  # the innermost loop of every simulation: no list is made here
            if arrived[index] <= fired:
                return False
        return True

    def _lacking(self, event: str) -> list[int]:
        """Arcs into ``event`` that hold no token for its next firing."""
        return [i for i in self._graph.arcs_into[event] if self._arrived[i] <= self.fired[event]]

    def _short(self) -> list[str]:
        return [event.id for event in self._graph.events if self.fired[event.id] < _due(event, self._until)]

    def _explain(self, short: list[str]) -> str:
        lines = ["nothing can fire; each waits for:"]
        for name in short:
            waits = (self._graph.arcs[i] for i in self._lacking(name))
            texts = ", ".join(f"{arc.src} ({arc.reason})" for arc in waits)
            lines.append(f"  {name} of step {self.fired[name] + 1}: {texts}")
        return "\n".join(lines)


def _due(event: Event, cut: int) -> int:
    """Return how often the event has fired at a cut; before the first step nothing has run ahead."""
    return cut + event.shift if cut else 0


def _cut_after(event: Event, fired: int) -> int:
    """Return the first cut at which the event has fired at least that often."""
    return max(1, fired - event.shift) if fired else 0
