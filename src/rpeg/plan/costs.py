"""What a plan costs: the protocols that the performance model, measurements and tests implement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rpeg.plan.plan import Binding, Layout
from rpeg.plan.shipments import Shipment

__all__ = ["Costs", "Duration", "KnownCosts", "KnownSizes", "Sizes"]


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds of one firing: until its resources are free, and from then until its last row is out."""

    occupancy_s: float
    tail_s: float = 0.0
    """Seconds after the resources are free; the latency of the firing is ``occupancy_s + tail_s``."""


class Costs(Protocol):
    """Prices what happens."""

    def seconds(self, stage: str, binding: Binding) -> Duration:
        """Return how long one firing of ``stage`` takes under ``binding``."""
        ...

    def transfer_s(self, shipment: Shipment) -> float:
        """Return how many seconds the links are busy with one firing of ``shipment``."""
        ...


class Sizes(Protocol):
    """Says what lies in memory."""

    def held_bytes(self, data: str, layout: Layout) -> int:
        """Return the bytes of one version of ``data`` (of a STREAM: of one batch) on its fullest device."""
        ...

    def working_bytes(self, stage: str, binding: Binding) -> int:
        """Return the bytes that one firing of ``stage`` needs besides its data: activations, logits, caches."""
        ...


@dataclass(frozen=True, slots=True)
class KnownCosts:
    """Costs that are simply known; a stage or a shipment that is not named takes no time."""

    by_stage: Mapping[str, Duration]
    by_shipment: Mapping[str, float] = field(default_factory=dict[str, float])

    def seconds(self, stage: str, binding: Binding) -> Duration:
        """Return the known duration of ``stage``."""
        return self.by_stage.get(stage, Duration(0.0))

    def transfer_s(self, shipment: Shipment) -> float:
        """Return the known seconds of ``shipment``."""
        return self.by_shipment.get(shipment.name, 0.0)


@dataclass(frozen=True, slots=True)
class KnownSizes:
    """Sizes that are simply known, whatever the layout; what is not named takes no room."""

    by_data: Mapping[str, int]
    by_stage: Mapping[str, int] = field(default_factory=dict[str, int])

    def held_bytes(self, data: str, layout: Layout) -> int:
        """Return the known bytes of ``data``."""
        return self.by_data.get(data, 0)

    def working_bytes(self, stage: str, binding: Binding) -> int:
        """Return the known bytes of ``stage``."""
        return self.by_stage.get(stage, 0)
