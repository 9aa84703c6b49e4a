"""Rows of whole steps of reinforcement learning, of their stages, of trainers alone, and of weights on their way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rpeg.errors import InvalidInput
from rpeg.perf.software import Software
from rpeg.perf.validate.memory import price_peak
from rpeg.perf.validate.rl_plan import RunTime, run_time
from rpeg.perf.validate.rl_row import RlRun, run_of
from rpeg.perf.validate.rl_sync import is_sync, price_sync
from rpeg.perf.validate.rl_text import number, text_of
from rpeg.perf.validate.rl_trainer import is_trainer, price_trainer
from rpeg.perf.validate.row import Priced, Skip
from rpeg.shapes.operations import causal_flops_per_token

__all__ = ["COLUMNS", "price"]

COLUMNS = frozenset({"system", "hardware", "gpus", "model", "algorithm", "mode", "metric", "value"})

_STEPS, _STAGES = "RL steps", "RL stages"
_STAGE_NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"ref(?:erence)?(?:_|$|\b)|ref_?log", ("ref",)),
    (r"old_?log|log_?prob|logp", ("old", "old_logp")),
    (r"value", ("value",)),
    (r"update_critic|train_critic|critic", ("train_critic", "update_critic")),
    (
        r"update_actor|policy_training|actor_(?:train|update)|train|update_policy|learn|update",
        ("train", "update", "train_actor", "update_actor"),
    ),
    (r"gen|rollout|sampling|inference", ("gen",)),
    (r"reward|verif", ("reward",)),
    (r"adv", ("advantage", "gae")),
)
"""What a metric is called, and the stages whose seconds it is; the first that fits."""


def price(record: Mapping[str, str], software: Software | None = None) -> list[Priced]:
    """Return the price of the one quantity of a row; of steps and stages with another software if one is given.

    Raises:
        Skip: when the model, the device, the batch or the metric is unknown.
    """
    metric = text_of(record, "metric")
    if number(record, "value") <= 0:
        raise Skip("no value", set=_STEPS)
    try:
        if re.search(r"memory|_gib|_gb\b", metric):
            return [price_peak(record)]
        if is_trainer(record):
            return [price_trainer(record)]
        if is_sync(metric):
            return [price_sync(record)]
        return [_of_run(record, metric, software)]
    except InvalidInput as error:
        raise Skip(error.faults[0].what, set=_STEPS) from error


def _of_run(record: Mapping[str, str], metric: str, software: Software | None) -> Priced:
    run = run_of(record)
    time = run_time(run, software)
    quantity = _quantity(run, time, metric, record.get("unit", "").lower())
    scale = 1e3 if record.get("unit", "").strip().lower() == "ms" else 1.0
    return Priced(
        quantity.set,
        record.get("source", ""),
        f"{run.shape.name} {run.software}",
        number(record, "value"),
        quantity.predicted * scale,
        quantity.ideal * scale,
        record.get("unit", ""),
        better=quantity.better,
        extrapolates=", ".join(filter(None, (run.assumed, time.extrapolates))),
    )


@dataclass(frozen=True, slots=True)
class _Quantity:
    set: str
    predicted: float
    ideal: float
    better: str = "low"


def _quantity(run: RlRun, time: RunTime, metric: str, unit: str) -> _Quantity:
    ideal_s = _ideal_s(run, time)
    if re.search(r"throughput|tokens|samples|/s", metric) or "/s" in unit:
        devices = run.num_devices if "gpu" in metric or "gpu" in unit else 1.0
        items = time.rows * (1.0 if "sample" in metric or "sample" in unit else time.tokens_per_row)
        return _Quantity(_STEPS, items / time.step_s / devices, items / ideal_s / devices, "high")
    if "mfu" in metric:
        share = 100.0 if "%" in unit else 1.0
        return _Quantity(_STEPS, share * ideal_s / time.step_s, share, "high")
    if re.search(r"step|iteration|total", metric):
        several = re.search(r"(\d+)_?steps", metric)
        scale = (float(several[1]) if several else 1.0) * (1.0 / 3600.0 if unit.startswith("h") else 1.0)
        return _Quantity(_STEPS, scale * time.step_s, scale * ideal_s)
    for pattern, names in _STAGE_NAMES:
        if re.search(pattern, metric) and (found := [name for name in names if name in time.stages]):
            seconds = sum(time.stages[name] for name in found)
            if found == ["gen"] and not run.is_colocated and run.staleness:
                seconds = max(_LEAST_WAIT * time.step_s, time.step_s - time.trainer_s)
            return _Quantity(_STAGES, seconds, ideal_s * _shares(found))
    raise Skip(f"unknown metric {metric!r}", set=_STAGES)


_LEAST_WAIT = 0.02
"""Of a step, what a trainer waits for samples that are there already."""


def _shares(names: list[str]) -> float:
    """Return which part of the ideal step a stage is: of training, a pass, and writing, 3 : 1 : 1."""
    return 0.6 if any(name.startswith(("train", "update")) for name in names) else 0.2


def _ideal_s(run: RlRun, time: RunTime) -> float:
    """Return the seconds of all operations of the model at the peak of all devices: writing, a pass, and training."""
    flops = float(causal_flops_per_token(run.shape, time.tokens_per_row)) * 5.0
    peak = dict(run.system.device.peak_flops)["bfloat16"]
    return time.rows * time.tokens_per_row * flops / (peak * run.num_devices)
