"""Workers in this process, each on a thread of its own."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

from rpeg.runtime.homes.home import LOOPBACK, Seat
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
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._workers: dict[str, Worker] = {}

    def spawn(self, name: str, spec: WorkerSpec) -> Future[Any]:
        """Build the worker on its thread."""
        self._threads[name] = ThreadPoolExecutor(1, thread_name_prefix=name)

        def build() -> None:
            with _LOADING:
                self._workers[name] = Worker(spec)

        return self._threads[name].submit(build)

    def call(self, name: str, method: str, *args: object) -> Future[Any]:
        """Call ``method`` on the worker's thread."""
        return self._threads[name].submit(lambda: getattr(self._workers[name], method)(*args))

    def seats(self) -> Mapping[str, Seat]:
        """Return that all of them are here."""
        return dict.fromkeys(self._workers, Seat(LOOPBACK))

    def close(self) -> None:
        """Let every thread finish its call and end."""
        for thread in self._threads.values():
            thread.shutdown(wait=True, cancel_futures=True)
        for worker in self._workers.values():
            worker.close()
        self._threads.clear()
        self._workers.clear()
