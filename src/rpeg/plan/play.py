"""The interpreter of the event graph: one loop, two clocks.

An event fires when every arc into it holds a token; when it has fired it puts tokens on the arcs out of it. Nothing
else decides what may run when. What firing means is asked of a `Clock`: the simulator's passes virtual time and draws
durations, the runtime's calls workers and waits for them.

    start ──▶ clock.start(firing, arcs) ──▶ clock.wait() ──▶ tokens on the arcs ──▶ what may fire now

The loop stops at *cuts*. The cut n is the moment when every event has fired ``n + shift`` times: steps before n are
complete, events that run ahead have done so by their shift, and nothing is under way. There a run can be saved, and
resumed from nothing but the number n and the data on the arcs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rpeg.errors import Stalled
from rpeg.plan.events import EventGraph

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
        """Block until tokens arrive; return the firings they come from and the arcs they lie on."""
        ...


class Player:
    """Plays an event graph on a clock, from cut to cut."""

    def __init__(self, graph: EventGraph, clock: Clock, cut: int = 0) -> None:
        """Stand at ``cut``, with the tokens on the arcs that lie there then; 0 is before anything has fired."""
        self._graph, self._clock = graph, clock
        ahead = cut > 0  # events that run ahead have not done so before the first step
        self.fired = {event.id: cut + event.shift * ahead for event in graph.events}
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

        It is the smallest n such that no event has fired more than n + shift times; a nearer end stays as it is. What
        has begun is finished, and what is missing to the cut is done. To be called from within `Clock.wait`, by the
        handler of a signal for example: then no firing is half begun.
        """
        nearest = max((self.fired[event.id] - event.shift for event in self._graph.events), default=0)
        self._until = min(self._until, max(nearest, 0))
        return self._until

    def _start_ready(self, candidates: Iterable[str]) -> None:
        for name in dict.fromkeys(candidates):
            event, arcs = self._graph.event_of[name], self._graph.arcs_out_of[name]
            while self.fired[name] < self._until + event.shift and not self._lacking(name):
                firing = Firing(name, self.fired[name])
                self.fired[name] += 1
                self._under_way += len(arcs)
                self._clock.start(firing, arcs)

    def _lacking(self, event: str) -> list[int]:
        """Arcs into ``event`` that hold no token for its next firing."""
        return [i for i in self._graph.arcs_into[event] if self._arrived[i] <= self.fired[event]]

    def _short(self) -> list[str]:
        return [event.id for event in self._graph.events if self.fired[event.id] < self._until + event.shift]

    def _explain(self, short: list[str]) -> str:
        lines = ["nothing can fire; each waits for:"]
        for name in short:
            waits = (self._graph.arcs[i] for i in self._lacking(name))
            texts = ", ".join(f"{arc.src} ({arc.reason})" for arc in waits)
            lines.append(f"  {name} of step {self.fired[name] + 1}: {texts}")
        return "\n".join(lines)
