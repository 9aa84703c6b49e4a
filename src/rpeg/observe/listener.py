"""What a run tells those who watch it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Listener", "RunInfo", "RunSummary"]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run that begins or goes on."""

    name: str
    """Name of the recipe."""
    folder: str
    """Path of the run folder."""
    steps: int
    """Number of the last step."""
    first_step: int = 1
    """Number of the first step to come; above 1 when a run is resumed."""
    warmup_updates: int = 0
    """Supervised updates before the first step; 0 for none."""
    model: str = ""
    """The model in a few words."""
    device: str = ""
    """Where it runs."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run that has ended."""

    status: str
    """``finished``, ``interrupted`` or ``failed``."""
    steps: int
    """Number of the last step done."""
    duration_s: float
    """Wall time of this process's part of the run, in seconds."""
    accuracy_before: float | None = None
    """Held-out accuracy before the first step, 0 to 1; None if not evaluated."""
    accuracy_after: float | None = None
    """Held-out accuracy at the last evaluation, 0 to 1; None if not evaluated."""
    model: str | None = None
    """Path of the trained model's folder; None if there is none."""
    report: str | None = None
    """Path of the report; None if there is none."""


class Listener(Protocol):
    """Watches a run. The runtime calls `on_start` first, `on_end` last and whatever happens, all from one thread."""

    def on_start(self, info: RunInfo) -> None:
        """A run begins, or goes on after an interruption."""

    def on_warmup(self, update: int, total: int, loss: float) -> None:
        """Supervised update number ``update`` (from 1) of ``total`` is done."""

    def on_step(self, metrics: Mapping[str, object]) -> None:
        """A step is done; ``metrics`` is its line of ``metrics.jsonl``, with ``eval/*`` if it was evaluated."""

    def on_evaluation(self, metrics: Mapping[str, object]) -> None:
        """An evaluation outside a step is done (before the first step): ``step`` and ``eval/*``."""

    def on_message(self, text: str) -> None:
        """Something is worth saying in one line."""

    def on_end(self, summary: RunSummary) -> None:
        """The run has ended."""
