"""The protocol of a home: start workers, call them, end them."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol

from rpeg.runtime.worker import WorkerSpec

__all__ = ["Home"]


class Home(Protocol):
    """Where workers live. Calls to one worker run one after the other; calls to different workers may overlap."""

    @property
    def address(self) -> str:
        """Under which address of this machine workers reach what it lets them connect to."""
        ...

    def spawn(self, name: str, spec: WorkerSpec) -> Future[Any]:
        """Start a worker called ``name``; the future is done when it is ready to be called."""
        ...

    def call(self, name: str, method: str, *args: object) -> Future[Any]:
        """Call a method of a worker."""
        ...

    def close(self) -> None:
        """End all workers; afterwards nothing of them is left."""
        ...
