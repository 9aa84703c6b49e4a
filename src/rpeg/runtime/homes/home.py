"""The protocol of a home: start workers, call them, end them."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from rpeg.runtime.worker import WorkerSpec

__all__ = ["LOOPBACK", "Home", "Seat"]

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a worker lives."""

    host: str
    """Address at which other workers reach its machine."""
    device: str = ""
    """The device that it has for itself; empty where it was given none."""
    node: str = ""
    """Name of its machine, where a launcher says so."""
    rank: int | None = None
    """The process of a launcher that it lives in."""
    process: int | None = None
    """The process of its machine that it lives in, where nothing else tells workers apart."""

    @property
    def text(self) -> str:
        """The place in words: ``n2 (10.0.0.2), rank 3, cuda 1``."""
        place = f"{self.node} ({self.host})" if self.node else self.host
        numbers = {"rank": self.rank, "process": self.process}
        return ", ".join(
            [place, *(f"{name} {number}" for name, number in numbers.items() if number is not None), self.device]
        )


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

    def seats(self) -> Mapping[str, Seat]:
        """Return where every worker lives, by its name."""
        ...

    def close(self) -> None:
        """End all workers, in seconds; afterwards nothing of them is left but a thread here whose call does not end."""
        ...
