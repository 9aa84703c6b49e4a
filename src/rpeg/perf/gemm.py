"""Seconds of one matrix product: a start, then whatever is slower of arithmetic and memory, blended smoothly.

``t = t0 + (c^p + (bytes / (W e_m))^p)^(1/p)``. The arithmetic ``c`` is counted in blocks: a processor computes one
block of the result at a time, all processors together a wave, and the last wave takes as long as a full one. Short
arithmetic runs near the peak of the data sheet; arithmetic that lasts is slowed down to the best product of the chip.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rpeg.perf.chip import Tiling
from rpeg.shapes.operations import Real

__all__ = ["GemmConstants", "GemmFigures", "blocks_s", "gemm_s", "heat_fraction", "quantise_s"]

_SPLITS = (1.0, 2.0, 4.0)
"""Parts of the sum over ``k`` that processors may share when there are fewer blocks than processors."""
_PARTIAL_BYTES = 8.0
"""One fp32 partial sum, written and read again."""
_CACHE_SPEED = 2.0
"""Partial sums stay in the last-level cache, which is faster than memory by at least so much."""
_MOST_HEAT = 0.4
"""A little more than on H100. Where the best product is further below the peak, power is not all: cold is slow too."""
_CAST_BYTES = 4.0
"""Inputs in 16 bits are read twice to be quantised: for the scale and for the values."""


@dataclass(frozen=True, slots=True)
class GemmConstants:
    """What is fitted for one generation of devices, one dtype and one library."""

    start_s: float
    """Seconds of a product of nothing: start and end of the kernel."""
    flops_fraction: float
    """Of the peak of the data sheet, in blocks of the largest size, before the chip is hot."""
    bandwidth_fraction: float
    """Of the memory bandwidth, in thin products."""
    sharpness: float
    """``p``. Large: the slower of the two hides the other entirely; 1: they add up."""
    side_tokens: float = 0.0
    """What bringing in one row or column of a block costs, in values of the block: small blocks are less efficient."""
    ramp_tokens: float = 0.0
    """What beginning and ending a block costs, in steps of ``k``."""
    hot_fraction: float = 1.0
    """Of the best product anybody measured on the chip (`Chip.best_fraction`), in such blocks when power is capped."""
    heat_s: float = 0.0
    """Seconds of arithmetic after which half of what slows it down is felt."""
    cast_fraction: float = 1.0
    """Of the memory bandwidth, while inputs are quantised."""
    grouped_fraction: float = 1.0
    """Of the arithmetic of one product, where many small ones share a kernel, as experts do."""


@dataclass(frozen=True, slots=True)
class GemmFigures:
    """What a product meets: a device's figures for one dtype."""

    peak_flops: float
    """Of the data sheet: no product is faster."""
    best_flops: float
    """Of the best product anybody measured on the chip."""
    bytes_per_s: float
    processors: int
    tiling: Tiling
    weight_bytes: float = 2.0
    """Of one weight."""
    input_bytes: float = 2.0
    """Of one input, as the product reads it."""
    output_bytes: float = 2.0
    """Of one value of the result."""


def heat_fraction(figures: GemmFigures, constants: GemmConstants) -> float:
    """Return by which long arithmetic is slower than short, where the best product is slower than the data sheet says.

    ``peak e_f / (best e_h) - 1``, from 0 to 0.4.

    >>> constants = GemmConstants(4e-6, 1.0, 0.8, 4.0)
    >>> [round(heat_fraction(GemmFigures(10e12, best, 1e12, 4, Tiling(())), constants), 2) for best in (10e12, 8e12)]
    [0.0, 0.25]
    """
    return max(_cold_flops(figures, constants) / (figures.best_flops * constants.hot_fraction) - 1.0, 0.0)


def _cold_flops(figures: GemmFigures, constants: GemmConstants) -> float:
    """Return the operations per second of all processors in blocks of the largest size, before the chip is hot."""
    hot_flops = figures.best_flops * constants.hot_fraction
    return min(figures.peak_flops * constants.flops_fraction, hot_flops * (1.0 + _MOST_HEAT))


def blocks_s(
    m: Real, n: Real, k: Real, figures: GemmFigures, constants: GemmConstants, groups: Real = 1.0
) -> npt.NDArray[np.float64]:
    """Return the seconds of the arithmetic in blocks: of all sizes and ways to split ``k`` the best.

    ``waves · 2 · rows · columns · (k/s + ramp) · side / (peak e_f / processors)``, where ``waves`` is the number of
    blocks per processor, ``s`` times over and rounded up; ``side`` is ``1 + side_tokens (w/rows + 1/columns)``,
    relative to the largest block, with the bytes ``w`` of a weight in those of an input.

    >>> figures, constants = GemmFigures(8e12, 8e12, 1e30, 4, Tiling(((128.0, 128.0),))), GemmConstants(0, 1, 1, 4)
    >>> [round(float(blocks_s(m, 128.0, 1000.0, figures, constants)) * 1e6, 3) for m in (512.0, 1024.0)]
    [16.384, 32.768]
    >>> round(float(blocks_s(513.0, 128.0, 1000.0, figures, constants)) * 1e6, 3)  # a fifth block: k is split by 4
    20.48
    """
    ndim = np.broadcast(m, n, k, groups).ndim
    rows, columns, splits, step_s, partial_s = _ways(figures, constants, ndim)
    blocks = groups * np.ceil(m / groups / rows) * np.ceil(n / columns) * splits
    waves = np.ceil(np.maximum(blocks / figures.processors - 1e-9, 1e-9))
    return (waves * (k / splits + constants.ramp_tokens) * step_s + m * n * partial_s).min(axis=0)


@lru_cache(maxsize=256)
def _ways(figures: GemmFigures, constants: GemmConstants, ndim: int) -> tuple[npt.NDArray[np.float64], ...]:
    """Return every way to divide a product, along a first axis before ``ndim`` others.

    That is its rows, columns and splits, the seconds of one step of ``k`` in one block, and those of storing and
    reading again the partial sums of one value.
    """
    every = [(rows, columns, splits) for rows, columns in figures.tiling.sizes for splits in _SPLITS]
    rows, columns, splits = (np.array(each) for each in zip(*every, strict=True))
    # A row of a block waits for its weights, a column for its inputs; narrow weights are brought in faster.
    narrow = figures.weight_bytes / figures.input_bytes
    side = 1.0 + constants.side_tokens * (narrow / rows + 1.0 / columns)
    least = 1.0 + constants.side_tokens * (1.0 / rows + 1.0 / columns).min()
    per_processor = _cold_flops(figures, constants) / figures.processors
    speed = figures.bytes_per_s * constants.bandwidth_fraction * _CACHE_SPEED
    partial_bytes = np.where(splits > 1.0, _PARTIAL_BYTES * splits, 0.0)
    step_s = 2.0 * rows * columns * np.maximum(side / least, 1.0) / per_processor
    ways = rows, columns, splits, step_s, partial_bytes / speed
    return tuple(each.reshape(-1, *[1] * ndim) for each in ways)


def gemm_s(
    m: Real,
    n: Real,
    k: Real,
    figures: GemmFigures,
    constants: GemmConstants,
    *,
    groups: Real = 1.0,
    is_hot: bool = False,
) -> Real:
    """Return the seconds of ``m`` by ``k`` inputs times ``k`` by ``n`` weights; arrays are taken element by element.

    ``t0 + (c^p + (bytes / (W e_m))^p)^(1/p)``. With ``groups`` the rows are spread over that many matrices of their
    own, as over experts. ``is_hot``: among much other arithmetic, so that power is capped however short the product.

    >>> figures = GemmFigures(1e15, 1e15, 1e12, 4, Tiling(((128.0, 128.0),)))
    >>> f"{gemm_s(1.0, 4096.0, 4096.0, figures, GemmConstants(4e-6, 1.0, 0.8, 4.0)) * 1e6:.1f}"  # 34 MB at 0.8 TB/s
    '46.0'
    """
    busy_s = blocks_s(m, n, k, figures, constants, groups)
    busy_s = busy_s / np.where(np.greater(groups, 1.0), constants.grouped_fraction, 1.0)
    felt = 1.0 if is_hot else busy_s / (busy_s + constants.heat_s)
    slower = 1.0 + heat_fraction(figures, constants) * felt
    busy_s = np.maximum(busy_s * slower, 2.0 * m * n * k / figures.peak_flops)
    read_bytes = figures.input_bytes * m * k + figures.weight_bytes * groups * k * n
    memory_s = (read_bytes + figures.output_bytes * m * n) / (figures.bytes_per_s * constants.bandwidth_fraction)
    p = constants.sharpness
    return constants.start_s + (busy_s**p + memory_s**p) ** (1.0 / p)


def quantise_s(m: Real, k: Real, figures: GemmFigures, constants: GemmConstants) -> Real:
    """Return the seconds of quantising ``m`` by ``k`` inputs: read in 16 bits, twice, and written as they will be read.

    >>> figures = GemmFigures(8e12, 8e12, 1e12, 4, Tiling(((128.0, 128.0),)), input_bytes=1.0)
    >>> quantise_s(1000.0, 1000.0, figures, GemmConstants(4e-6, 1.0, 0.8, 4.0, cast_fraction=0.5))
    1e-05
    """
    return (_CAST_BYTES + figures.input_bytes) * m * k / (figures.bytes_per_s * constants.cast_fraction)
