"""The wall clock of the interpreter: firing an event is calling the workers that its stage is bound to.

    consumes     firings that `rpeg.plan.play` says may start
    produces     outcomes, put into the store; one span per firing
    waits for    the next group to finish, at most ``wait_limit_s``
    unblocked by the callback of a group's future

A call may return before its firing is done: then it is made again, behind what else was asked of the worker meanwhile.
From the moment the worker could do other things, tokens lie on the arcs that wait for the worker; those that wait for
rows get theirs at the end, in the order of the firings.

Everything that limits what runs at the same time is an arc of the event graph; there is no other lock here.
"""

from __future__ import annotations

import queue
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from rpeg.errors import WaitLimit
from rpeg.graph.graph import Graph
from rpeg.observe.trace import RankSpan, Span
from rpeg.plan.events import Event, EventGraph
from rpeg.plan.play import Firing
from rpeg.runtime.group import Groups, Ran
from rpeg.runtime.hauls import Hauls
from rpeg.runtime.store import Store
from rpeg.runtime.task import Outcome, Progress, Task

__all__ = ["Finished", "StepDone", "WallClock"]

_POLL_S = 0.2
"""How often the main thread wakes so that Ctrl-C is heard."""

Finished = Callable[[Span, Outcome], None]
"""Hears of every firing that did something."""
StepDone = Callable[[int], None]
"""Hears of every step (from 1) whose events have all fired."""
_Done = tuple[Firing, Sequence[int], Task | None, "Future[Any] | None"]
_Ended = tuple[Sequence[int], Outcome, Sequence[RankSpan]]
"""Arcs that get their tokens now, what was made, and when each rank worked on it on the clock of the run."""
_FOR_ROWS = ("data:", "keep:", "drain:", "room:", "transfer:")
"""Reasons of arcs whose tokens say that the rows of a firing are there, and its weights no longer needed."""


class WallClock:
    """Starts firings on workers and waits for them."""

    def __init__(
        self,
        graph: Graph,
        events: EventGraph,
        groups: Groups,
        store: Store,
        steps: range,
        hear: tuple[Finished, StepDone],
        wait_limit_s: float,
        hauls: Hauls,
    ) -> None:
        """Run ``steps`` of ``graph`` on ``groups``: the first is where the run stands, the last where it ends."""
        self._hauls = hauls
        self._graph, self._events, self._groups, self._store = graph, events, groups, store
        self._steps, self._wait_limit_s = steps, wait_limit_s
        self._on_finished, self._on_step_done = hear
        self._done: queue.SimpleQueue[_Done] = queue.SimpleQueue()
        self._under_way: dict[Firing, float] = {}
        self._began_s: dict[Firing, Mapping[str, float]] = {}  # by worker, of firings that take several calls
        self._released: dict[Firing, list[int]] = {}  # the arcs that still have to get their tokens
        self._started: dict[str, deque[Firing]] = defaultdict(deque)  # of every event, until it has ended
        self._early: dict[Firing, _Ended] = {}  # what ended before an earlier firing of its event
        self._left: dict[int, int] = defaultdict(lambda: len(events.events))
        for event in events.events:  # what ran ahead of the cut we stand at was heard of before
            for step in range(steps.start, steps.start + event.shift if steps.start else 0):
                self._left[step] -= 1
        self._zero_s = time.monotonic()
        """When the run began."""

    def resume_at(self, seconds: float) -> None:
        """Let the time of the run go on from ``seconds``, where an earlier process left off."""
        self._zero_s = time.monotonic() - seconds

    def start(self, firing: Firing, arcs: Sequence[int]) -> None:
        """Call the group; a stage that rests in this step is done at once."""
        event = self._events.event_of[firing.event]
        if (moved := self._hauls.move(self._groups, event)) is None and not self._acts(event.stage, firing.index):
            self._rest(firing, arcs)
            return
        self._under_way[firing] = time.monotonic()
        self._started[firing.event].append(firing)
        if moved is not None:
            moved.add_done_callback(lambda done: self._done.put((firing, arcs, None, done)))
            return
        task = self._store.task(event, firing.index)
        self._call(firing, arcs, replace(task, lets_go=self._hauls.let_go_after(event)))

    def _rest(self, firing: Firing, arcs: Sequence[int]) -> None:
        """Do no more for a firing than to let go of what it would have used for the last time."""
        freed = self._hauls.let_go(self._groups, self._events.event_of[firing.event])
        if freed is None:
            self._done.put((firing, arcs, None, None))
        else:
            freed.add_done_callback(lambda done: self._done.put((firing, arcs, None, done)))

    def _call(self, firing: Firing, arcs: Sequence[int], task: Task) -> None:
        future = self._groups.run(task)
        future.add_done_callback(lambda done: self._done.put((firing, arcs, task, done)))

    def _acts(self, stage: str, step: int) -> bool:
        firings = self._graph.firings(stage)
        return firings >= 1 or (step + 1) * firings % 1 == 0 or step + 1 == self._steps.stop

    def wait(self) -> Iterable[tuple[Firing, Sequence[int]]]:
        """Wait for the next firing to be done; what a worker raises is raised here."""
        firing, arcs, task, future = self._next()
        if (ran := future.result() if future is not None else None) is None:
            self._finish(firing, Outcome())
            return [(firing, arcs)]
        outcome = ran.outcome
        self._began_s.setdefault(firing, {worker: start_s for worker, (start_s, _) in ran.times.items()})
        if outcome.progress is Progress.DONE:
            return self._end(firing, (self._released.pop(firing, arcs), outcome, self._ranks(firing, ran)))
        assert task is not None, f"{firing.event} moves data and is not done"
        self._call(firing, arcs, task.again())
        if outcome.progress is Progress.RELEASED and firing not in self._released:
            freed, left = self._split(arcs)
            self._released[firing] = left
            return [(firing, freed)]
        return []

    def _ranks(self, firing: Firing, ran: Ran) -> list[RankSpan]:
        """Return what each rank did from its first call to the end of the last."""
        began_s = self._began_s[firing]
        return [
            RankSpan(worker, began_s[worker] - self._zero_s, end_s - self._zero_s)
            for worker, (_, end_s) in ran.times.items()
        ]

    def _split(self, arcs: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the arcs that wait for a worker, and those that wait for what the firing makes."""
        waits_for_rows = [self._events.arcs[index].reason.startswith(_FOR_ROWS) for index in arcs]
        pairs = list(zip(arcs, waits_for_rows, strict=True))
        return [arc for arc, waits in pairs if not waits], [arc for arc, waits in pairs if waits]

    def _end(self, firing: Firing, ended: _Ended) -> list[tuple[Firing, Sequence[int]]]:
        """Enter a firing that has ended, and what had to wait for it; behind an earlier one it waits itself."""
        self._early[firing] = ended
        queue, found = self._started[firing.event], list[tuple[Firing, Sequence[int]]]()
        while queue and queue[0] in self._early:
            first = queue.popleft()
            arcs, outcome, ranks = self._early.pop(first)
            del self._under_way[first], self._began_s[first]
            self._on_finished(_span(self._events.event_of[first.event], first.index + 1, outcome, ranks), outcome)
            self._finish(first, outcome)
            found.append((first, arcs))
        return found

    def _finish(self, firing: Firing, outcome: Outcome) -> None:
        event = self._events.event_of[firing.event]
        if event.stage in self._graph.stage_of:  # a move makes nothing
            self._store.finish(event, firing.index, outcome)
        self._left[firing.index] -= 1
        if not self._left[firing.index]:
            del self._left[firing.index]
            self._on_step_done(firing.index + 1)

    def _next(self) -> _Done:
        deadline_s = time.monotonic() + self._wait_limit_s
        while True:
            try:
                return self._done.get(timeout=_POLL_S)
            except queue.Empty:
                if time.monotonic() > deadline_s:
                    raise WaitLimit(self._explain()) from None

    def _explain(self) -> str:
        now = time.monotonic()
        waits = [f"  {f.event} of step {f.index + 1}, for {now - since:.0f} s" for f, since in self._under_way.items()]
        return "\n".join([f"nothing finished for {self._wait_limit_s:.0f} s; still waiting for:", *waits])


def _span(event: Event, step: int, outcome: Outcome, ranks: Sequence[RankSpan]) -> Span:
    """Return the one span of a firing; that of one rank is the rank's."""
    times = (min(rank.start_s for rank in ranks), max(rank.end_s for rank in ranks))
    sizes = (outcome.num_rows, outcome.num_tokens, outcome.version, outcome.num_bytes)
    several = tuple(ranks) if len(ranks) > 1 else ()
    return Span(event.id, event.stage, event.firing, step, event.resources, *times, *sizes, several)
