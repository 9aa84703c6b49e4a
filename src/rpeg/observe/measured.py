"""Costs as measured: what the stages of a run have taken so far, in the form the planner prices plans with."""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import median

from rpeg.plan.costs import Duration
from rpeg.plan.plan import Binding
from rpeg.plan.shipments import Shipment

__all__ = ["MeasuredCosts"]

_WINDOW = 32
"""Newest firings per stage that count: lengths grow while a model learns, so old ones mislead."""


class MeasuredCosts:
    """Implements `rpeg.plan.costs.Costs` with the median of the newest firings of each stage."""

    def __init__(self) -> None:
        """Know nothing yet; stages never seen take no time."""
        self._seconds: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_WINDOW))

    def add(self, stage: str, seconds: float) -> None:
        """Take one firing into account; of a stage that rests in some steps, ``seconds`` is its share of a step."""
        self._seconds[stage].append(seconds)

    def seconds(self, stage: str, binding: Binding) -> Duration:
        """Return the median duration of a firing of ``stage``; the binding is the one it was measured with."""
        return Duration(self._median_s(stage))

    def transfer_s(self, shipment: Shipment) -> float:
        """Return the median duration of a firing of ``shipment``, measured under its name."""
        return self._median_s(shipment.name)

    def _median_s(self, name: str) -> float:
        found = self._seconds.get(name)
        return median(found) if found else 0.0
