"""Reward functions in processes of their own, each call with a time limit.

    calls ──▶ idle processes ──pipe──▶ rpeg.environments.reward_process
    values ◀── whoever answers first; who takes too long is killed and replaced

A call is one row of a function that scores rows independently, or all rows of one that does not. When a call of the
latter kind takes too long it is made again for each group by itself, so that only the group that hangs is lost. Values
are put where they belong by row, so the numbers depend neither on how many processes there are nor on who is faster.

One thread does it all, and it need not be the main one: no signals are used to keep the time.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from rpeg.environments.problem import Problem
from rpeg.environments.reward_process import Answer, Loaded
from rpeg.environments.rewards import Failure, RewardSum, Scores, calls, parts, weighted_sums
from rpeg.errors import RunFault

__all__ = ["RewardPool"]

_LOAD_LIMIT_S = 300.0
"""How long a process may take to import its functions: a library on a cold network disk takes minutes."""
_END_S = 1.0
"""How long an idle process may take to end by itself."""
_START = "import sys; sys.path[:] = {path!r}; from rpeg.environments.reward_process import serve; serve{arguments!r}"


@dataclass(frozen=True, slots=True)
class _Call:
    """One function asked for some rows."""

    function: str
    rows: range


class RewardPool:
    """Scores like `RewardSum`, in other processes."""

    def __init__(self, build: Callable[[], RewardSum], processes: int, timeout_s: float) -> None:
        """Start nothing yet: the first call to `score` does.

        Args:
            build: makes the rewards; it is pickled and called in every process.
            processes: how many calls run at the same time.
            timeout_s: longest call, in seconds.
        """
        assert processes > 0, processes
        self._build, self._num_processes, self._timeout_s = build, processes, timeout_s
        self._workers: list[_Worker] = []
        self._loaded: Loaded | None = None

    def score(self, problems: Sequence[Problem], completions: list[str], group: int = 1) -> Scores:
        """Return the weighted sum per sample over the functions that have a value for it.

        Args:
            problems: what was asked, one per sample.
            completions: what was answered.
            group: samples of one prompt, adjacent; what a call that took too long is divided into.

        Raises:
            InvalidInput: the functions could not be loaded.
            RunFault: a process ended or did not answer while it loaded.
        """
        try:
            self._workers = self._workers or [_Worker(self._build) for _ in range(self._num_processes)]
            job = _Job(self._wait_for_load(), problems, completions, group)
            while job.waiting or any(worker.call for worker in self._workers):
                for worker in self._workers:
                    if job.waiting and worker.is_idle:
                        call = job.waiting.popleft()
                        rows = slice(call.rows.start, call.rows.stop)
                        worker.ask(call, (call.function, problems[rows], completions[rows]), self._timeout_s)
                self._hear(job)
        except BaseException:  # a call may be under way, and its answer must not be taken for that of a later one
            self.close()
            raise
        return job.scores()

    def _wait_for_load(self) -> Loaded:
        """Return what the first process to load says of its functions."""
        while self._loaded is None:
            self._hear(None)
        return self._loaded

    def _hear(self, job: _Job | None) -> None:
        """Wait for the next process to answer, to end or to run out of time."""
        soonest_s = min((w.deadline_s for w in self._workers if not w.is_idle), default=time.monotonic())
        ready = wait([w.pipe for w in self._workers], max(0.0, soonest_s - time.monotonic()))
        for place, worker in enumerate(self._workers):
            said = None
            if worker.pipe in ready:
                with suppress(EOFError, ConnectionError):
                    said = worker.pipe.recv()
            elif worker.is_idle or time.monotonic() < worker.deadline_s:
                continue
            if isinstance(said, Loaded):
                self._note_load(said)
                worker.is_loading = False
            elif isinstance(said, Answer):
                assert job is not None
                job.settle(worker.done(), said, worker.seconds)
            else:
                self._replace(place, job, is_late=worker.pipe not in ready)

    def _note_load(self, loaded: Loaded) -> None:
        if loaded.error is not None:
            raise loaded.error
        self._loaded = loaded

    def _replace(self, place: int, job: _Job | None, *, is_late: bool) -> None:
        """Kill a process that is late or has ended, note what it was asked, and start another in its place."""
        worker = self._workers[place]
        how = worker.kill(0.0 if is_late else _END_S)
        what = f"took longer than reward.timeout_s {self._timeout_s:g}" if is_late else f"its process {how}"
        if worker.is_loading:
            limit = f"took longer than {_LOAD_LIMIT_S:g} s" if is_late else f"did not end well: {what}"
            raise RunFault(f"loading the reward functions {limit}")
        if worker.call is not None and job is not None:
            job.give_up(worker.done(), what, worker.seconds, is_late=is_late)
        self._workers[place] = _Worker(self._build)

    def close(self) -> None:
        """End all processes; none is left, and another call to `score` would start new ones."""
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.end()
        self._workers = []


class _Job:
    """One call of `RewardPool.score`: what is still to be asked, and what was found."""

    def __init__(self, loaded: Loaded, problems: Sequence[Problem], completions: list[str], group: int) -> None:
        assert len(problems) == len(completions), (len(problems), len(completions))
        self._loaded, self._problems, self._group = loaded, problems, group
        self._values: dict[str, list[float | None]] = {name: [None] * len(problems) for name in loaded.row_by_row}
        self._failures: list[tuple[int, Failure]] = []
        self._failed: set[int] = set()
        self._slowest_s = 0.0
        self.waiting: deque[_Call] = deque()
        for name, row_by_row in loaded.row_by_row.items():
            self.waiting.extend(_Call(name, rows) for rows in calls(len(problems), row_by_row=row_by_row))

    def settle(self, call: _Call, answer: Answer, seconds: float) -> None:
        """Enter what a process answered."""
        self._slowest_s = max(self._slowest_s, seconds)
        if answer.reason:
            self._fail(call, answer.reason, is_late=False)
        else:
            self._values[call.function][call.rows.start : call.rows.stop] = answer.values

    def give_up(self, call: _Call, reason: str, seconds: float, *, is_late: bool) -> None:
        """Enter that a call has no answer; one of several groups is made again, group by group."""
        self._slowest_s = max(self._slowest_s, seconds)
        if is_late and len(call.rows) > self._group:
            self.waiting.extend(_Call(call.function, rows) for rows in parts(call.rows, self._group))
        else:
            self._fail(call, reason, is_late=is_late)

    def _fail(self, call: _Call, reason: str, *, is_late: bool) -> None:
        row_ids = tuple(self._problems[row].row_id for row in call.rows)
        self._failed.update(call.rows)
        self._failures.append((call.rows.start, Failure(call.function, row_ids, reason, is_late)))

    def scores(self) -> Scores:
        """Return everything, failures in the order of the functions and rows."""
        names = list(self._values)
        failures = sorted(self._failures, key=lambda found: (names.index(found[1].function), found[0]))
        totals = weighted_sums(self._values, self._loaded.weights, self._failed)
        return Scores(totals, self._values, tuple(failure for _, failure in failures), self._slowest_s)


class _Worker:
    """One reward process and the call it has not answered yet."""

    def __init__(self, build: Callable[[], RewardSum]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            code = _START.format(path=sys.path, arguments=(theirs.fileno(), os.getpid()))
            # In a session of its own: Ctrl-C does not reach it, and what it starts can be killed with it.
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.pipe = Connection(ours.detach())
        self.is_loading = True
        self.call: _Call | None = None
        self.seconds = 0.0
        """How long the call that ended last took."""
        self._asked_s = time.monotonic()
        self.deadline_s = self._asked_s + _LOAD_LIMIT_S
        with suppress(ConnectionError):  # the end of the process is heard of when its answer is awaited
            self.pipe.send(build)

    @property
    def is_idle(self) -> bool:
        """Whether it could be asked something."""
        return not self.is_loading and self.call is None

    def ask(self, call: _Call, message: object, timeout_s: float) -> None:
        """Start a call."""
        self.call, self._asked_s = call, time.monotonic()
        self.deadline_s = self._asked_s + timeout_s
        with suppress(ConnectionError):  # as above
            self.pipe.send(message)

    def done(self) -> _Call:
        """Return the call that has ended."""
        call, self.call, self.seconds = self.call, None, time.monotonic() - self._asked_s
        assert call is not None, "an answer without a question"
        return call

    def kill(self, grace_s: float) -> str:
        """Kill the process with everything it started; return how it ended, if it did so within ``grace_s``."""
        self.pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        code = self._process.poll()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if code is None:
            return "was killed"
        return f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"

    def end(self) -> None:
        """End the process after its pipe is closed: by itself when idle, else by force."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S if self.is_idle else 0)
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
