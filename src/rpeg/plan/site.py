"""What a plan is judged against besides its graph: the machine, what the weights are made of, times and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rpeg.hardware.topology import System
from rpeg.plan.costs import Costs, Sizes
from rpeg.plan.workers import Workers
from rpeg.shapes.tensor import Tensor

__all__ = ["Site"]


@dataclass(frozen=True, slots=True)
class Site:
    """A machine and what is known about running there; rules that need what is not known say nothing."""

    system: System
    tensors: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict[str, tuple[Tensor, ...]])
    """Weights by model."""
    costs: Costs | None = None
    sizes: Sizes | None = None
    workers: Workers | None = None
    """Who carries the plan out; None: other software, which may do everything."""
