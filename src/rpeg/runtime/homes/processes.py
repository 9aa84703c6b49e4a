"""Workers in processes of their own on this machine: they compute at the same time on different cores.

    call ──▶ socket pair ──▶ worker process (`rpeg.runtime.homes.worker_process`)
    future ◀── reader thread ◀── socket pair ◀──┘

A worker is a fresh interpreter, not a fork (threads of torch do not survive one) and not a process of
`multiprocessing`, which would import the user's main program a second time and forbid rewards to start processes.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from rpeg.runtime.homes.home import LOOPBACK, Seat
from rpeg.runtime.homes.line import GRACE_S, Line
from rpeg.runtime.homes.messages import receive, send
from rpeg.runtime.homes.servant import BUILD
from rpeg.runtime.homes.worker_process import SIGNALS
from rpeg.runtime.worker import WorkerSpec

__all__ = ["ProcessHome"]

_START = "import sys; sys.path[:] = {path!r}; from rpeg.runtime.homes.worker_process import serve; serve{arguments!r}"
_REAP_S = 2.0
"""How long a process may take to end after it has closed its socket."""


class ProcessHome:
    """One process per worker; whatever becomes of this process, none of them outlives it by more than seconds."""

    address = "127.0.0.1"
    """Workers are on this machine, so nothing listens to others."""

    def __init__(self) -> None:
        """Hold no workers yet."""
        self._workers: dict[str, _Process] = {}

    def spawn(self, name: str, spec: WorkerSpec) -> Future[Any]:
        """Start a process and let it build the worker; several workers start at the same time."""
        self._workers[name] = _Process(name)
        return self._workers[name].call(BUILD, spec)

    def call(self, name: str, method: str, *args: object) -> Future[Any]:
        """Send a call; the future raises what the method raised, `WorkerDied` when its process ended.

        Only errors of `rpeg.errors` come back as they were; others as a `RunFault` with their type, text and traceback.
        """
        return self._workers[name].call(method, *args)

    def seats(self) -> Mapping[str, Seat]:
        """Return that all of them are here."""
        return dict.fromkeys(self._workers, Seat(LOOPBACK))

    def close(self) -> None:
        """Let every worker finish its call and end; kill those that take longer than a few seconds."""
        for worker in self._workers.values():
            worker.ask_to_end()
        deadline_s = time.monotonic() + GRACE_S
        for worker in self._workers.values():
            worker.end(deadline_s)
        self._workers.clear()


class _Process:
    """A worker's process and the line to it."""

    def __init__(self, name: str) -> None:
        self._name = name
        end, theirs = socket.socketpair()
        with theirs:
            self._process = _start(name, theirs)
        self._line = Line(name, end, send, receive, self._reap)
        self.call, self.ask_to_end = self._line.call, self._line.ask_to_end
        threading.Thread(target=self._watch, name=f"{name} end", daemon=True).start()

    def _watch(self) -> None:
        """Let the reader come to an end: what a reward function forked may hold the other side of the socket open."""
        self._process.wait()
        self._line.stop_reading()

    def _reap(self) -> str:
        """Return how the process ended."""
        try:
            code = self._process.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        hint = " (the system does that when memory runs out)" if code == -signal.SIGKILL else ""
        return f"worker {self._name} {how}{hint}"

    def end(self, deadline_s: float) -> None:
        try:
            self._process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):  # the system is at work for it, and ends it then
                self._process.wait(_REAP_S)
        self._line.close(_REAP_S)


def _start(name: str, theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Start the process with the signals held back that it ignores once it can."""
    code = _START.format(path=sys.path, arguments=(theirs.fileno(), os.getpid(), name))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        # On this thread: where the system ends a process with its parent, it does so when the starting thread ends.
        return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
