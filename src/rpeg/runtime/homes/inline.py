"""Workers in this process, each on a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import Any

from rpeg.runtime.homes.home import LOOPBACK, Seat
from rpeg.runtime.homes.line import GRACE_S
from rpeg.runtime.homes.strand import Strand
from rpeg.runtime.worker import Worker, WorkerSpec

__all__ = ["InlineHome"]

_LOADING = Lock()
"""Loading a model changes settings of its library for a moment, and a second thread would load with those."""


class InlineHome:
    """One thread per worker: a worker's calls keep their order, workers overlap while torch holds no lock of Python."""

    address = "127.0.0.1"
    """Workers are on this machine, so nothing listens to others."""

    def __init__(self) -> None:
        """Hold no workers yet."""
        self._strands: dict[str, Strand] = {}
        self._workers: dict[str, Worker] = {}

    def spawn(self, name: str, spec: WorkerSpec) -> Future[Any]:
        """Build the worker on its thread."""
        self._strands[name] = Strand(name)

        def build() -> None:
            with _LOADING:
                self._workers[name] = Worker(spec)

        return self._strands[name].submit(build)

    def call(self, name: str, method: str, *args: object) -> Future[Any]:
        """Call ``method`` on the worker's thread."""
        return self._strands[name].submit(lambda: getattr(self._workers[name], method)(*args))

    def seats(self) -> Mapping[str, Seat]:
        """Return that all of them are here."""
        return dict.fromkeys(self._workers, Seat(LOOPBACK))

    def close(self) -> None:
        """Let every thread finish its call and end; one that takes longer than seconds does so by itself, later."""
        ends = [strand.finish(partial(self._end, name)) for name, strand in self._strands.items()]
        deadline_s = time.monotonic() + GRACE_S
        for strand in self._strands.values():
            strand.join_until(deadline_s)
        self._strands.clear()
        for end in ends:
            if end.done():
                end.result()

    def _end(self, name: str) -> None:
        """Close a worker on its thread, if it was built."""
        if (worker := self._workers.pop(name, None)) is not None:
            worker.close()
