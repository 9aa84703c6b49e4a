"""What an event costs: the protocol that the performance model, measurements and tests implement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rpeg.plan.plan import Binding

__all__ = ["Costs", "Duration", "KnownCosts"]


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds of one firing: until its resources are free, and from then until its last row is out."""

    occupancy_s: float
    tail_s: float = 0.0
    """Seconds after the resources are free; the latency of the firing is ``occupancy_s + tail_s``."""


class Costs(Protocol):
    """Prices one firing of a bound stage."""

    def seconds(self, stage: str, binding: Binding) -> Duration:
        """Return how long one firing of ``stage`` takes under ``binding``."""
        ...


@dataclass(frozen=True, slots=True)
class KnownCosts:
    """Costs that are simply known, per stage; a stage that is not named takes no time."""

    by_stage: Mapping[str, Duration]

    def seconds(self, stage: str, binding: Binding) -> Duration:
        """Return the known duration of ``stage``."""
        return self.by_stage.get(stage, Duration(0.0))
