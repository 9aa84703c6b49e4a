"""The wall clock of the interpreter: firing an event is calling the workers that its stage is bound to.

    consumes     firings that `rpeg.plan.play` says may start
    produces     outcomes, put into the store; one span per firing
    waits for    the next group to finish, at most ``wait_limit_s``
    unblocked by the callback of a group's future

Everything that limits what runs at the same time is an arc of the event graph; there is no other lock here.
"""

from __future__ import annotations

import queue
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from rpeg.errors import WaitLimit
from rpeg.graph.graph import Graph
from rpeg.observe.trace import Span
from rpeg.plan.events import EventGraph
from rpeg.plan.play import Firing
from rpeg.runtime.group import Groups
from rpeg.runtime.store import Store
from rpeg.runtime.task import Outcome

__all__ = ["Finished", "StepDone", "WallClock"]

_POLL_S = 0.2
"""How often the main thread wakes so that Ctrl-C is heard."""

Finished = Callable[[Span, Outcome], None]
"""Hears of every firing that did something."""
StepDone = Callable[[int], None]
"""Hears of every step (from 1) whose events have all fired."""
_Done = tuple[Firing, Sequence[int], "Future[tuple[Outcome, float, float]] | None"]


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
    ) -> None:
        """Run ``steps`` of ``graph`` on ``groups``: the first is where the run stands, the last where it ends."""
        self._graph, self._events, self._groups, self._store = graph, events, groups, store
        self._steps, self._wait_limit_s = steps, wait_limit_s
        self._on_finished, self._on_step_done = hear
        self._done: queue.SimpleQueue[_Done] = queue.SimpleQueue()
        self._under_way: dict[Firing, float] = {}
        self._left: dict[int, int] = defaultdict(lambda: len(events.events))
        for event in events.events:  # what ran ahead of the cut we stand at was heard of before
            for step in range(steps.start, steps.start + event.shift if steps.start else 0):
                self._left[step] -= 1
        self._started_s = time.monotonic()

    def resume_at(self, seconds: float) -> None:
        """Let the time of the run go on from ``seconds``, where an earlier process left off."""
        self._started_s = time.monotonic() - seconds

    def start(self, firing: Firing, arcs: Sequence[int]) -> None:
        """Call the group; a stage that rests in this step is done at once."""
        event = self._events.event_of[firing.event]
        if not self._acts(event.stage, firing.index):
            self._done.put((firing, arcs, None))
            return
        self._under_way[firing] = time.monotonic()
        future = self._groups.run(self._store.task(event, firing.index))
        future.add_done_callback(lambda done: self._done.put((firing, arcs, done)))

    def _acts(self, stage: str, step: int) -> bool:
        firings = self._graph.firings(stage)
        return firings >= 1 or (step + 1) * firings % 1 == 0 or step + 1 == self._steps.stop

    def wait(self) -> Iterable[tuple[Firing, Sequence[int]]]:
        """Wait for the next firing to be done; what a worker raises is raised here."""
        firing, arcs, future = self._next()
        event = self._events.event_of[firing.event]
        outcome = Outcome()
        if future is not None:
            del self._under_way[firing]
            outcome, start_s, end_s = future.result()
            times = (start_s - self._started_s, end_s - self._started_s)
            sizes = (outcome.num_rows, outcome.num_tokens, outcome.version)
            span = Span(event.id, event.stage, event.firing, firing.index + 1, event.resources, *times, *sizes)
            self._on_finished(span, outcome)
        self._store.finish(event, firing.index, outcome)
        self._left[firing.index] -= 1
        if not self._left[firing.index]:
            del self._left[firing.index]
            self._on_step_done(firing.index + 1)
        return [(firing, arcs)]

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
