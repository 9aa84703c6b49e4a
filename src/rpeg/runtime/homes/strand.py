"""A thread that does one call after the other, and that nobody has to wait for when a call hangs.

Python waits for the threads of its executors before it ends, so a call that hangs would keep the process for ever.
These threads are daemons. But a thread that is inside of torch while Python takes itself down aborts the process, so
one with a strand that still works is ended by `end_process` before it comes to that.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

__all__ = ["Strand", "end_process"]

_Entry = tuple["Future[Any]", Callable[[], Any]]


class Strand(threading.Thread):
    """Does calls in their order until it is told to end."""

    def __init__(self, name: str) -> None:
        """Start at once; ``name`` is the thread's."""
        super().__init__(name=name, daemon=True)
        self._calls: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self.start()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Do a call behind those that wait; the future has what it returns or raises."""
        future: Future[Any] = Future()
        self._calls.put((future, call))
        return future

    def finish(self, last: Callable[[], Any]) -> Future[Any]:
        """Cancel the calls that wait, and end with ``last`` once the one under way is done, whenever that is."""
        with suppress(queue.Empty):
            while (entry := self._calls.get_nowait()) is not None:
                entry[0].cancel()
        done = self.submit(last)
        self._calls.put(None)
        return done

    def join_until(self, deadline_s: float) -> None:
        """Wait for the end, but no longer than to a time on the monotonic clock."""
        self.join(max(0.0, deadline_s - time.monotonic()))

    def run(self) -> None:
        """Do what comes."""
        while (entry := self._calls.get()) is not None:
            _do(*entry)
            del entry  # what was called with must not live until the next call


def _do(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # whatever it is, it is for whoever asked
        future.set_exception(error)
    else:
        future.set_result(result)


def end_process(status: int) -> None:
    """End this process here with a status if a strand still works; else do nothing, and let it end by itself."""
    if any(isinstance(thread, Strand) for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


atexit.register(end_process, 1)
