"""Products, attention and streams on this processor: measured over their sizes, and the constants that fit them.

Shapes: M rows, N columns, K summed; B sequences, H heads, L new tokens, C tokens of context, D size of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from rpeg.hardware.topology import Device
from rpeg.perf import attention, elementwise, gemm
from rpeg.perf.attention import AttentionConstants, Heads
from rpeg.perf.chip import chip_of
from rpeg.perf.elementwise import ElementwiseConstants
from rpeg.perf.fit import fit
from rpeg.perf.gemm import GemmConstants
from rpeg.perf.kernels import DeviceProfile, Kernels
from rpeg.runtime.calibrate.clock import seconds_of

__all__ = ["KernelFits", "Peaks", "fit_kernels", "kernels_of", "measure_peaks"]

_Floats = npt.NDArray[np.float64]
_Call = Callable[[], object]
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

_PRODUCTS = [
    (m, n, k)
    for n, k in ((32, 32), (96, 64), (128, 128), (384, 128), (512, 128), (256, 320), (768, 256), (640, 256), (512, 512))
    for m in (16, 128, 1024, 4096)
] + [(1024, 1024, 1024), (2048, 1024, 512)]
_STREAM_BYTES = tuple(2**power for power in range(12, 25))
_PREFILL = [
    (rows, heads, length, size)
    for rows, length in ((16, 16), (64, 32), (256, 32), (64, 64), (16, 128), (4, 512))
    for heads, size in ((2, 16), (4, 32), (8, 32), (4, 64))
]
_DECODE = [
    (rows, heads, context, size)
    for rows, context in ((16, 16), (64, 32), (256, 32), (64, 64), (256, 64), (32, 256))
    for heads, size in ((2, 16), (4, 32), (8, 32), (4, 64))
]
_PEAK_SIZE = 1024
_COPY_BYTES = 2**26
_WIDE = (1e-3, 20.0)
"""Fractions may be far above 1: small operands stay in caches, which are faster than memory."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """The best of this processor."""

    flops: dict[str, float]
    """By dtype, of a large product."""
    copy_bytes_per_s: float
    """Of a large copy, read and written bytes together."""
    launch_s: float
    """Of one operation on one number."""


@dataclass(frozen=True, slots=True)
class KernelFits:
    """Constants, and how far they are off in percent."""

    constants: DeviceProfile
    errors_pct: dict[str, dict[str, float]]


def measure_peaks(rounds: int) -> Peaks:
    """Return the best products and copies on one thread."""
    torch.set_num_threads(1)
    square = {name: torch.randn(_PEAK_SIZE, _PEAK_SIZE, dtype=dtype) for name, dtype in _DTYPES.items()}
    work: dict[str, _Call] = {name: lambda x=x: functional.linear(x, x) for name, x in square.items()}
    source, target = (torch.zeros(_COPY_BYTES, dtype=torch.uint8) for _ in range(2))
    one = torch.ones(1)
    work |= {"copy": lambda: target.copy_(source), "launch": lambda: one + one}
    with torch.inference_mode():
        found = seconds_of(work, rounds)
    flops = {name: 2.0 * _PEAK_SIZE**3 / found[name] for name in _DTYPES}
    return Peaks(flops, 2.0 * _COPY_BYTES / found["copy"], found["launch"])


def fit_kernels(device: Device, peaks: Peaks, rounds: int) -> KernelFits:
    """Return the constants of all kernels on one thread; ``device`` has the figures they are relative to."""
    torch.set_num_threads(1)
    bare = kernels_of(device, _START)
    errors: dict[str, dict[str, float]] = {"gemm": {}}
    products: dict[str, GemmConstants] = {}
    with torch.inference_mode():
        for dtype in _DTYPES:
            products[dtype], errors["gemm"][dtype] = _fit_products(bare, dtype, rounds)
        streams, errors["elementwise"] = _fit_streams(bare, rounds)
        attended, errors["attention"] = _fit_attention(bare, rounds)
    return KernelFits(DeviceProfile(products, attended, streams, peaks.launch_s), errors)


def kernels_of(device: Device, constants: DeviceProfile) -> Kernels:
    """Return the kernels of a device with these constants, without a look at any profile."""
    return Kernels(device, chip_of(device.name), constants, constants.launch_s)


_NEVER_HOT = 2.0
"""A processor is measured at the speed it keeps: the peak is its best product, and nothing slows it down from there."""
_START = DeviceProfile(
    {"bfloat16": GemmConstants(3e-6, 0.8, 2.0, 2.0, ramp_tokens=10.0, hot_fraction=_NEVER_HOT)},
    AttentionConstants(1e-5, 0.2, 1.0, 1e-5, 1.0, 0.0, 1e-7, block_tokens=1.0),
    ElementwiseConstants(2e-6, 1.0),
    2e-6,
)


def _fit_products(kernels: Kernels, dtype: str, rounds: int) -> tuple[GemmConstants, float]:
    work: dict[int, _Call] = {}
    for i, (rows, columns, summed) in enumerate(_PRODUCTS):
        x_MK, w_NK = torch.randn(rows, summed, dtype=_DTYPES[dtype]), torch.randn(columns, summed, dtype=_DTYPES[dtype])
        work[i] = lambda x=x_MK, w=w_NK: functional.linear(x, w)
    measured = np.array(list(seconds_of(work, rounds).values()))
    figures, base = kernels.gemm_figures(dtype), _START.gemm["bfloat16"]
    m, n, k = np.array(_PRODUCTS, dtype=float).T

    def predict(values: Mapping[str, float]) -> _Floats:
        return np.asarray(gemm.gemm_s(m, n, k, figures, replace(base, **values)))

    names = ("start_s", "flops_fraction", "bandwidth_fraction", "ramp_tokens")
    start = {name: getattr(base, name) for name in names}
    limits = {"flops_fraction": (0.05, 1.2), "bandwidth_fraction": _WIDE, "ramp_tokens": (0.1, 1000.0)}
    found = fit(predict, measured, start, limits)
    return replace(base, **found.values), found.error_pct


def _fit_streams(kernels: Kernels, rounds: int) -> tuple[ElementwiseConstants, dict[str, float]]:
    work: dict[int, _Call] = {}
    for size in _STREAM_BYTES:
        a, b = torch.ones(size // 4), torch.ones(size // 4)
        work[3 * size] = lambda a=a, b=b: a + b
    found_s = seconds_of(work, rounds)
    moved, measured = np.array(list(found_s), dtype=float), np.array(list(found_s.values()))

    def predict(values: Mapping[str, float]) -> _Floats:
        constants = ElementwiseConstants(**values)
        speed = kernels.memory_bytes_per_s
        return np.asarray(elementwise.stream_s(moved, bytes_per_s=speed, constants=constants))

    start = {"start_s": 1e-6, "bandwidth_fraction": 1.0, "cached_bytes": 1e6, "cached_fraction": 4.0}
    limits = {"bandwidth_fraction": _WIDE, "cached_bytes": (1e4, 1e8), "cached_fraction": (1.0, 100.0)}
    found = fit(predict, measured, start, limits)
    return ElementwiseConstants(**found.values), {"fitted": found.error_pct}


def _fit_attention(kernels: Kernels, rounds: int) -> tuple[AttentionConstants, dict[str, float]]:
    base, figures = _START.attention, kernels.attention_figures("float32")
    prefill_s = np.array(list(seconds_of({i: _prefill(*each) for i, each in enumerate(_PREFILL)}, rounds).values()))
    decode_s = np.array(list(seconds_of({i: _decode(*each) for i, each in enumerate(_DECODE)}, rounds).values()))

    def prefill(values: Mapping[str, float]) -> _Floats:
        used = replace(base, **values)
        rows, heads, length, size = np.array(_PREFILL, dtype=float).T
        return np.array(
            [
                float(attention.prefill_s(r, n, n, Heads(h, h, d, d), figures, used))
                for r, h, n, d in zip(rows, heads, length, size, strict=True)
            ]
        )

    def decode(values: Mapping[str, float]) -> _Floats:
        used = replace(base, flops_fraction=found.values["flops_fraction"], **values)
        rows, heads, context, size = np.array(_DECODE, dtype=float).T
        return np.array(
            [
                float(attention.decode_s(r, c, Heads(h, h, d, d), figures, used, item_bytes=4.0))
                for r, h, c, d in zip(rows, heads, context, size, strict=True)
            ]
        )

    wide = {"flops_fraction": (1e-3, 1.5), "query_passes": (0.01, 100.0), "bandwidth_fraction": _WIDE}
    first = {"prefill_start_s": 1e-5, "flops_fraction": 0.2, "query_passes": 1.0}
    found = fit(prefill, prefill_s, first, wide)
    second = {"decode_start_s": 1e-5, "bandwidth_fraction": 1.0, "sequence_s": 1e-7}
    later = fit(decode, decode_s, second, wide)
    errors = {"prefill": found.error_pct, "decode": later.error_pct}
    return replace(base, **found.values, **later.values), errors


def _prefill(rows: int, heads: int, length: int, size: int) -> _Call:
    q_BHLD, k_BHLD, v_BHLD = (torch.randn(rows, heads, length, size) for _ in range(3))
    return lambda: functional.scaled_dot_product_attention(q_BHLD, k_BHLD, v_BHLD, is_causal=True)


def _decode(rows: int, heads: int, context: int, size: int) -> _Call:
    """One new token of every row against a window of a larger cache, with the mask that the sampler gives."""
    q_BH1D = torch.randn(rows, heads, 1, size)
    k_BHCD, v_BHCD = (torch.randn(rows, heads, context + 16, size)[:, :, 4 : 4 + context] for _ in range(2))
    mask_B11C = torch.ones(rows, 1, 1, context, dtype=torch.bool)
    return lambda: functional.scaled_dot_product_attention(q_BH1D, k_BHCD, v_BHCD, attn_mask=mask_B11C)
