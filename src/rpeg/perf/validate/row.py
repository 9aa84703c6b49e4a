"""What the comparison of one kind of measurement yields for a row of its file."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Priced", "Skip"]


class Skip(Exception):
    """A row that cannot be priced, with the reason: it is counted, not dropped in silence."""

    def __init__(self, reason: str, *, set: str = "") -> None:
        """Say why; ``set`` is the table of errors that the row would belong to, where that is known."""
        self.reason = reason
        self.set = set
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Priced:
    """A prediction beside its measurement, in the same unit (any: errors are relative)."""

    set: str
    """Which table of errors it belongs to: ``gemm bf16``, ``dense training``."""
    source: str
    model: str
    """What is broken down by: a model's name, or a device's where there is no model."""
    measured: float
    predicted: float
    ideal: float
    """The same quantity at the peak of the hardware: a constant efficiency, fitted per set, is the baseline."""
    unit: str
    group: str = ""
    """Rows of one group are alternatives for the same work on the same machine, so their order can be judged."""
    better: str = "low"
    """Which of two measurements of a group is the better one: ``low`` or ``high``."""
    extrapolates: str = ""
    """What of the row lies outside of what the profile was fitted on; empty where nothing does."""
