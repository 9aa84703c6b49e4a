"""Rows of training throughput against the model: tokens, samples, steps, TFLOP/s and shares of the peak."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from rpeg.perf.dtype import dtype_of
from rpeg.perf.trainer import trainer_for
from rpeg.perf.training import TrainingTime, training_time
from rpeg.perf.validate.row import Priced, Skip
from rpeg.perf.validate.training_flops import counted_flops_per_token
from rpeg.perf.validate.training_run import Run, number, release_of, run_of
from rpeg.plan.plan import Recompute
from rpeg.shapes.operations import causal_flops_per_token

__all__ = ["COLUMNS", "measured_s", "price", "profile_of", "run_time"]

COLUMNS = frozenset({"model", "hardware", "gpus", "tp", "pp", "seq_len", "metric", "value"})
_SECONDS = {"s": 1.0, "ms": 1e-3, "min": 60.0, "h": 3600.0}
_EARLIER = {"megatron-bridge": (26.05, "megatron-bridge-26.04")}
"""Frameworks whose releases before this one have a profile of their own."""


def profile_of(record: Mapping[str, str], run: Run) -> str:
    """Return the name of the profile for the framework of a row, in its release."""
    until, earlier = _EARLIER.get(run.framework, (0.0, run.framework))
    return earlier if 0.0 < release_of(record) < until else run.framework


@lru_cache(maxsize=4096)
def run_time(run: Run, profile: str) -> TrainingTime:
    """Return the predicted seconds of one update."""
    trainer = trainer_for(run.system, profile)
    return training_time(trainer, run.shape, run.layout, run.rows, run.length_tokens, trains_weights=not run.is_adapter)


def price(record: Mapping[str, str]) -> list[Priced]:
    """Return the prediction for a row.

    Raises:
        Skip: when the model, the metric or the value cannot be told.
        HardwareError: when the device cannot be told.
    """
    run = run_of(record)
    measured = number(record, "value")
    if not measured:
        raise Skip(f"no value: {record.get('value')!r}")
    profile = profile_of(record, run)
    predicted = _in_metric(record, run, float(run_time(run, profile).total_s))
    ideal = _in_metric(record, run, _ideal_s(run))
    is_time = _is_time(_metric(record))
    same = (run.shape.name, run.system.name, f"{run.gpus:g}", run.layout.dtype, f"{run.length_tokens:g}")
    group = "|".join((*same, profile, f"{release_of(record):.2f}"))
    return [
        Priced(
            _set_of(run), record.get("source", ""), run.shape.name, measured, predicted, ideal, record.get("unit", ""),
            f"{group}|{_metric(record)}", "low" if is_time else "high", _extrapolates(run, profile),
        )
    ]  # fmt: skip


def measured_s(record: Mapping[str, str], run: Run) -> float:
    """Return the seconds of one update that the value of a row means."""
    value, one = number(record, "value"), _in_metric(record, run, 1.0)
    return value / one if _is_time(_metric(record)) else one / value


def _metric(record: Mapping[str, str]) -> str:
    return (record.get("metric") or "").lower().strip()


def _is_time(metric: str) -> bool:
    return re.search(r"time|latency|seconds|_s$", metric) is not None and "per_s" not in metric


def _dtype(run: Run) -> str:
    return dtype_of(run.layout.dtype)


def _set_of(run: Run) -> str:
    if run.shape.experts is not None:
        return "moe training"
    if re.match(r"[AH][18]00-", run.system.device.name) is None:
        return "dense training, other devices"
    return "dense training fp8" if _dtype(run) in ("float8", "float4") else "dense training"


def _ideal_s(run: Run) -> float:
    """Return the seconds of one update at the peak of the products' dtype."""
    flops = 3.0 * float(causal_flops_per_token(run.shape, run.length_tokens))
    peaks = dict(run.system.device.peak_flops)
    peak = peaks.get(_dtype(run)) or peaks.get("bfloat16") or max(peaks.values())
    return flops * run.rows * run.length_tokens / run.gpus / peak


def _in_metric(record: Mapping[str, str], run: Run, seconds: float) -> float:
    """Return what a step of so many seconds is in the metric and unit of a row."""
    metric, unit = _metric(record), (record.get("unit") or "").lower()
    if _is_time(metric):
        return seconds / _SECONDS.get(unit, 1.0)
    tokens_per_s = run.rows * run.length_tokens / seconds
    if "mfu" in metric or "hfu" in metric or "utili" in metric:
        return _share(record, run, tokens_per_s)
    found = _rate(metric, record, run, tokens_per_s)
    return found if _is_total(metric, unit) else found / run.gpus


def _share(record: Mapping[str, str], run: Run, tokens_per_s: float) -> float:
    """Return the share of the peak in 16 bits, in percent unless the row counts in ones."""
    peaks = dict(run.system.device.peak_flops)
    flops = counted_flops_per_token(record, run) * tokens_per_s / run.gpus
    is_recomputed = "hfu" in _metric(record) and run.layout.recompute is Recompute.FULL
    share = flops / peaks.get("bfloat16", max(peaks.values())) * (4.0 / 3.0 if is_recomputed else 1.0)
    is_percent = "%" in (record.get("unit") or "") or number(record, "value") > 1.0
    return share * (100.0 if is_percent else 1.0)


def _rate(metric: str, record: Mapping[str, str], run: Run, tokens_per_s: float) -> float:
    """Return what all GPUs together do per second, in tokens, samples or operations."""
    unit = (record.get("unit") or "").lower()
    if "flop" in metric or "flop" in unit:
        scale = {"p": 1e15, "g": 1e9}.get(next(iter(re.findall(r"([tpg])flop", f"{metric} {unit}")), "t"), 1e12)
        return counted_flops_per_token(record, run) * tokens_per_s / scale
    if re.search(r"sample|sequence|seqs", metric):
        return tokens_per_s / run.length_tokens
    if "tok" in metric or "tok" in unit or metric == "throughput":
        return tokens_per_s * (86400.0 if "day" in f"{metric} {unit}" else 1.0)
    raise Skip(f"unknown metric {metric!r}")


def _is_total(metric: str, unit: str) -> bool:
    """Return whether a rate is of all GPUs together; TFLOP/s are per GPU unless they say otherwise."""
    is_per_gpu = re.search(r"(per|/)[_ ]?(gpu|device|chip)", f"{metric} {unit}") is not None
    return not is_per_gpu and ("flop" not in metric or "total" in metric or "aggregate" in metric)


def _extrapolates(run: Run, profile: str) -> str:
    outside = trainer_for(run.system, profile).outside(run.shape, run.layout, run.length_tokens)
    unknown = "framework not told" if profile == "generic" else ""
    return ", ".join(text for text in (unknown, outside, run.assumed) if text)
