"""Bytes and seconds of what lies between the products: norms, rotation, activation, residuals, softmax of logits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from rpeg.shapes.operations import Real

__all__ = ["ElementwiseConstants", "Fusion", "passes", "stream_s"]


class Fusion(StrEnum):
    """How the software runs what lies between the products."""

    FUSED = "fused"
    """One kernel per norm with its residual, per rotation, per activation: engines, Megatron, compiled models."""
    EAGER = "eager"
    """One kernel per operator, as PyTorch runs a model as it is written."""


@dataclass(frozen=True, slots=True)
class ElementwiseConstants:
    """What holds for one generation of devices."""

    start_s: float
    """Seconds of a kernel that moves nothing."""
    bandwidth_fraction: float
    """Of the memory bandwidth, in large arrays."""
    cached_bytes: float = 0.0
    """That a kernel moves through caches before memory is felt; 0 where caches do not matter."""
    cached_fraction: float = 1.0
    """Of the memory bandwidth, through caches: above 1."""


_PASSES: dict[Fusion, dict[str, tuple[float, int]]] = {
    Fusion.FUSED: {"norm": (4.0, 1), "rotary": (2.0, 1), "activation": (3.0, 1), "softmax": (4.0, 2)},
    Fusion.EAGER: {"norm": (17.0, 7), "rotary": (10.0, 8), "activation": (5.0, 2), "softmax": (8.0, 5)},
}
"""Reads and writes of a value, and kernels: counted on the operators that run, not fitted.

A fused norm reads input and residual and writes both; an activation reads gate and value; a log-softmax is over fp32
logits, which are cast, reduced to a maximum and a sum, and written. Unfused, every operator reads and writes all.
"""


def passes(what: str, fusion: Fusion) -> tuple[float, int]:
    """Return how often a value of the operand is read or written, and the kernels that do it, for one operator.

    >>> passes("norm", Fusion.FUSED)
    (4.0, 1)
    """
    return _PASSES[fusion][what]


def stream_s(num_bytes: Real, *, launches: int = 1, bytes_per_s: float, constants: ElementwiseConstants) -> Real:
    """Return the seconds of ``launches`` kernels that read and write ``num_bytes`` together.

    ``launches · t0 + bytes / (W e)``; of each kernel the first ``C`` bytes at ``W e_c``, where there are caches.

    >>> round(stream_s(8e6, bytes_per_s=2e12, constants=ElementwiseConstants(2e-6, 0.5)) * 1e6, 3)
    10.0
    >>> cached = ElementwiseConstants(0.0, 0.5, cached_bytes=1e6, cached_fraction=4.0)
    >>> [round(stream_s(size, bytes_per_s=1e10, constants=cached) * 1e6, 3) for size in (1e6, 2e6)]
    [25.0, 225.0]
    """
    if not constants.cached_bytes:
        return launches * constants.start_s + num_bytes / (bytes_per_s * constants.bandwidth_fraction)
    near = np.minimum(num_bytes, max(1, launches) * constants.cached_bytes)
    moved_s = near / constants.cached_fraction + (num_bytes - near) / constants.bandwidth_fraction
    return launches * constants.start_s + moved_s / bytes_per_s
