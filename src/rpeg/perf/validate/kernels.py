"""Measured kernels laid beside their formulas: products, attention in prefill and in decoding, plain copies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from rpeg.errors import HardwareError
from rpeg.hardware.naming import device_for
from rpeg.hardware.topology import Device, Link
from rpeg.perf.attention import Heads, attended_pairs
from rpeg.perf.dtype import dtype_of, item_bytes, unknown_dtype
from rpeg.perf.kernels import DeviceProfile, Kernels, kernels_for
from rpeg.perf.profile import Profile, extrapolates, read_table
from rpeg.perf.validate.row import Priced, Skip

__all__ = ["COLUMNS", "price"]

COLUMNS = frozenset({"op", "m", "n", "k", "isl_or_kvlen", "latency_us"})
"""The columns that tell a file of kernels."""

_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float8": "fp8", "float4": "fp4"}
_LATENT_RANK, _LATENT_ROPE, _LATENT_HEAD = 512.0, 64.0, 128.0
"""Of DeepSeek-V2 and V3, whose kernels these are: no file states them."""

_FLOPS_PER_BYTE = 295.0
"""Peak over memory bandwidth of H100, for devices of which only the peak is known."""


@dataclass(frozen=True)
class _Row:
    """One record, read."""

    record: Mapping[str, str]

    def text(self, *columns: str) -> str:
        """Return the texts of columns, those that are there."""
        return " ".join(filter(None, ((self.record.get(each) or "").strip() for each in columns)))

    def number(self, column: str, default: float | None = None) -> float:
        """Return a positive number, the default where there is none."""
        try:
            found = float(self.text(column))
        except ValueError:
            found = 0.0
        if found > 0:
            return found
        if default is None:
            raise Skip(f"{column} is {self.text(column)!r}, which is no positive number")
        return default

    def noted(self, pattern: str, default: float | None = None) -> float:
        """Return a number that the notes or the kernel's name give: ``topk=8``, ``window 128``."""
        found = re.search(rf"(?:{pattern})\s*[=: ]?\s*(\d+)", self.text("notes", "kernel", "op"), re.IGNORECASE)
        if found is None and default is None:
            raise Skip(f"neither notes nor kernel give {pattern.split('|')[0]}")
        return float(found[1]) if found else float(default or 0.0)

    @cached_property
    def op(self) -> str:
        """What was measured, in lower case."""
        return self.text("op").lower()

    @cached_property
    def kernels(self) -> Kernels:
        """Those of the device."""
        text = self.text("device", "hardware")
        try:
            return kernels_for(device_for(text))
        except HardwareError:
            return kernels_for(self._stated_device(text))

    def _stated_device(self, name: str) -> Device:
        """Return a device that is in no catalogue, by the peak that its row gives: a rate and the share it is."""
        rate, share = self.number("derived_tflops", 0.0), self.number("frac_peak_flops", 0.0)
        if not rate or not share:
            raise Skip(f"device {name!r} is unknown, and the row does not give its peak")
        peak = rate * 1e12 / share
        read, part = self.number("derived_GBps", 0.0), self.number("frac_peak_bw", 0.0)
        speed = read * 1e9 / part if read and part else peak / _FLOPS_PER_BYTE
        return Device(f"unlisted {name}", 1, speed, ((self.dtype, peak),), Link("pcie", 63e9, 1e-5), 1)

    @cached_property
    def dtype(self) -> str:
        """Of the arithmetic; caches may be narrower."""
        text = self.text("dtype") or self.text("kernel")
        if not self.op.startswith("gemm") and re.search(r"bf16|bfloat16|fp16|float16", text.lower()):
            return "float16" if re.search(r"(?<!b)(fp16|float16)", text.lower()) else "bfloat16"
        return dtype_of(text)

    @cached_property
    def kv_dtype(self) -> str:
        """Of the cache."""
        return "float8" if re.search(r"fp8|float8|e4m3", self.text("dtype", "kv_dtype").lower()) else "bfloat16"


@dataclass(frozen=True, slots=True)
class _Work:
    """What a row is about."""

    set: str
    seconds: float
    """Predicted."""
    flops: float
    num_bytes: float
    part: str
    """Of `Profile.covers`."""
    values: Mapping[str, float | str]
    """What is compared with it."""


def price(record: Mapping[str, str]) -> list[Priced]:
    """Return a row of kernels with its prediction.

    Raises:
        Skip: when its device or its operation is unknown, or a size is missing.
    """
    row = _Row(record)
    work = _reader(row.op)(row)
    kernels = row.kernels
    peak_s = work.flops / kernels.peak_flops(row.dtype)
    ideal_s = max(peak_s, work.num_bytes / kernels.memory_bytes_per_s)
    outside = extrapolates(_profile(kernels).covers, work.part, **work.values)
    flags = ", ".join(filter(None, (kernels.extrapolates, outside, unknown_dtype(row.text("dtype")))))
    name = kernels.device.name
    return [
        Priced(work.set, row.text("source"), name, _measured(row, work), work.seconds, ideal_s, "s", extrapolates=flags)
    ]


def _measured(row: _Row, work: _Work) -> float:
    """Return the measured seconds: the latency, or what a rate makes of the work."""
    latency_us = row.number("latency_us", 0.0)
    if latency_us:
        return latency_us * 1e-6
    if work.flops and (rate := row.number("derived_tflops", 0.0)):
        return work.flops / (rate * 1e12)
    if rate := row.number("derived_GBps", 0.0):
        return work.num_bytes / (rate * 1e9)
    raise Skip("neither a latency nor a rate is given")


def _reader(op: str) -> Callable[[_Row], _Work]:
    for pattern, read in _READERS:
        if re.search(pattern, op):
            return read
    raise Skip(f"operation {op!r} is unknown")


def _gemm(row: _Row) -> _Work:
    m, n, k = (row.number(each) for each in "mnk")
    is_best = "best" in row.op
    groups = row.noted("experts|groups", 1.0) if "group" in row.op else 1.0
    seconds = float(row.kernels.gemm_s(m, n, k, row.dtype, groups, is_quantised=is_best))
    size = item_bytes(row.dtype)
    num_bytes = size * (m * k + groups * n * k) + 2.0 * m * n
    name = "gemm best shape" if is_best else f"gemm {_SHORT.get(row.dtype, row.dtype)}"
    return _Work(name, seconds, 2.0 * m * n * k, num_bytes, "gemm", {"m": m, "n": n, "k": k, "dtype": row.dtype})


def _experts(row: _Row) -> _Work:
    """Price the products of a block of experts: ``m`` tokens, width ``n``, hidden ``k``; the rest is in the notes."""
    tokens, width, hidden = row.number("m"), row.number("n"), row.number("k")
    count, active = row.noted("num_experts|experts"), row.noted("top_?k")
    ranks, parts = row.noted(r"moe_ep(?:_size)?|ep", 1.0), row.noted(r"moe_tp(?:_size)?|tp", 1.0)
    pairs, width = tokens * active / ranks, width / parts
    touched = count / ranks * (1.0 - (1.0 - active / count) ** tokens)
    up_s = row.kernels.gemm_s(pairs, 2.0 * width, hidden, row.dtype, touched)
    down_s = row.kernels.gemm_s(pairs, hidden, width, row.dtype, touched)
    around_s = row.kernels.stream_s(4.0 * pairs * hidden + 6.0 * pairs * width, 3)
    weights = 3.0 * touched * width * hidden * item_bytes(row.dtype)
    seconds = float(up_s + down_s + around_s)
    return _Work(
        "experts", seconds, 6.0 * pairs * width * hidden, weights + 4.0 * pairs * hidden, "gemm", {"m": tokens}
    )


def _heads(row: _Row, *, is_decode: bool) -> Heads:
    queries, window = row.number("heads"), row.noted("window(?:_size)?", 0.0) or None
    if not re.search("mla|latent", row.op):
        size = row.number("head_dim", 128.0)
        return Heads(queries, row.number("kv_heads", queries), size, size, window=window)
    if is_decode:
        return Heads(queries, 1.0, _LATENT_RANK + _LATENT_ROPE, _LATENT_RANK, is_shared=True)
    return Heads(queries, queries, _LATENT_HEAD + _LATENT_ROPE, _LATENT_HEAD)


def _prefill(row: _Row) -> _Work:
    rows, length, heads = row.number("batch"), row.number("isl_or_kvlen"), _heads(row, is_decode=False)
    context = length + row.noted("prefix|past", 0.0)
    seconds = float(row.kernels.prefill_attention_s(rows, length, context, heads, row.dtype))
    flops = float(rows * heads.pair_flops() * attended_pairs(length, context, heads.window))
    num_bytes = float(rows * length * (heads.queries + heads.keys) * (heads.qk_size + heads.value_size) * 2.0)
    values = {"prefill": length, "head_size": heads.qk_size, "dtype": row.dtype}
    return _Work("attention prefill", seconds, flops, num_bytes, "attention", values)


def _decode(row: _Row) -> _Work:
    rows, context, heads = row.number("batch"), row.number("isl_or_kvlen"), _heads(row, is_decode=True)
    # A benchmark reads the same cache over and over: what fits stays in the last-level cache.
    near = row.kernels.chip.cache_bytes
    seconds = float(row.kernels.decode_attention_s(rows, context, heads, row.kv_dtype, cache_bytes=near))
    seen = min(context, heads.window or context)
    num_bytes = float(rows * seen * heads.keys * heads.kept_size * item_bytes(row.kv_dtype))
    values = {"decode": context, "head_size": heads.qk_size, "dtype": row.kv_dtype}
    return _Work("attention decode", seconds, float(rows * seen * heads.pair_flops()), num_bytes, "attention", values)


def _absorbed(row: _Row) -> _Work:
    """Price the products, one per head, that bring queries to the latent rank or values back."""
    tokens, heads = row.number("m", row.number("batch", 1.0)), row.number("heads", 128.0)
    seconds = float(row.kernels.gemm_s(tokens * heads, _LATENT_RANK, _LATENT_HEAD, row.dtype, heads))
    weights = heads * _LATENT_RANK * _LATENT_HEAD * item_bytes(row.dtype)
    flops = 2.0 * tokens * heads * _LATENT_RANK * _LATENT_HEAD
    return _Work("gemm absorbed", seconds, flops, weights, "gemm", {"m": tokens})


def _stream(row: _Row) -> _Work:
    num_bytes = 2.0 * row.number("m") * row.number("n", 1.0) * item_bytes(row.dtype)
    return _Work("elementwise", float(row.kernels.stream_s(num_bytes)), 0.0, num_bytes, "", {})


_READERS: tuple[tuple[str, Callable[[_Row], _Work]], ...] = (
    (r"bmm", _absorbed),
    (r"moe|expert", _experts),
    (r"gemm|linear|matmul", _gemm),
    (r"generation|decode", _decode),
    (r"context|prefill|attention|mla", _prefill),
    (r"copy|mem|norm|act|elementwise|softmax|rotary|rope", _stream),
)


def _profile(kernels: Kernels) -> Profile:
    name = kernels.profile.split()[0].removeprefix("devices/")
    return read_table("devices", name, DeviceProfile).profile
