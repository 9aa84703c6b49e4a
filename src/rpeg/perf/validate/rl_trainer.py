"""Rows of trainers of reinforcement learning that ran alone on made-up samples."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rpeg.hardware.topology import System
from rpeg.perf.software import Software, software_for
from rpeg.perf.trainer import TrainingLayout
from rpeg.perf.training import training_time
from rpeg.perf.validate.rl_lengths import said_of
from rpeg.perf.validate.rl_row import machine_of, software_of
from rpeg.perf.validate.rl_text import number, text_of
from rpeg.perf.validate.row import Priced, Skip
from rpeg.plan.plan import Recompute
from rpeg.shapes.columns import shape_from_columns
from rpeg.shapes.model import ModelShape
from rpeg.shapes.operations import causal_flops_per_token
from rpeg.shapes.parameters import active_parameters, num_parameters

__all__ = ["Job", "is_trainer", "job_of", "price_trainer"]

_SET = "RL trainer"
_MICRO_BATCHES = 2.0


@dataclass(frozen=True, slots=True)
class Job:
    """A trainer as a row tells of it."""

    shape: ModelShape
    system: System
    software: Software
    gpus: float
    length_tokens: float
    layout: TrainingLayout
    is_adapter: bool
    is_supervised: bool
    has_optimizer_on_host: bool
    is_offloaded: bool
    """Whether activations go to the host."""
    assumed: str


def is_trainer(record: Mapping[str, str]) -> bool:
    """Whether a row is of a trainer alone.

    >>> is_trainer({"mode": "training stage only (fake data)"}), is_trainer({"mode": "sync colocated"})
    (True, False)
    """
    text = text_of(record, "mode", "system")
    return "train" in text and re.search(r"only|fake|alone|benchmark", text) is not None


def price_trainer(record: Mapping[str, str]) -> Priced:
    """Return the price of a micro-batch, a throughput or a utilisation.

    Raises:
        Skip: when the model, the device, the length or the metric is unknown.
    """
    job = job_of(record)
    seconds = _micro_batch_s(job)
    rate = job.length_tokens * job.gpus / seconds
    peak = dict(job.system.device.peak_flops)["bfloat16"]
    ideal = peak * job.gpus / (3.0 * float(causal_flops_per_token(job.shape, job.length_tokens)))
    counted = _counted_flops(job) / (job.gpus * peak)
    scale = 100.0 if "%" in record.get("unit", "") else 1.0
    metric, unit = text_of(record, "metric"), record.get("unit", "").lower()
    per_device = job.gpus if "gpu" in metric or "gpu" in unit else 1.0
    if "mfu" in metric:
        found, best, better = scale * rate * counted, scale * ideal * counted, "high"
    elif "throughput" in metric or "tokens" in metric:
        found, best, better = rate / per_device, ideal / per_device, "high"
    elif "step" in metric:
        found, best, better = _MICRO_BATCHES * seconds, _MICRO_BATCHES * job.length_tokens * job.gpus / ideal, "low"
    elif "time" in metric:
        found, best, better = seconds, job.length_tokens * job.gpus / ideal, "low"
    else:
        raise Skip(f"unknown metric {record.get('metric', '')!r}", set=_SET)
    return Priced(
        _SET, record.get("source", ""), job.shape.name, number(record, "value"), found, best, record.get("unit", ""),
        better=better, extrapolates=job.assumed,
    )  # fmt: skip


def job_of(record: Mapping[str, str]) -> Job:
    """Return the trainer that a row tells of.

    Raises:
        Skip: when the model, the device or the length is unknown.
    """
    shape = shape_from_columns(record)
    if shape is None:
        raise Skip(f"unknown model {record.get('model', '')!r}", set=_SET)
    gpus = int(number(record, "gpus")) or 1
    system, assumed = machine_of(record, gpus)
    said = said_of(record)
    length = said.mean_total_tokens or said.cap_total_tokens or said.cap_tokens or said.mean_tokens
    if not length:
        raise Skip("no length of sequences", set=_SET)
    text = text_of(record, "parallelism", "algorithm")
    degrees = {name: int(value) for name, value in re.findall(r"(tp|cp|ep)\s*=?\s*(\d+)", text)}
    cp = min(degrees.get("cp", 1), gpus)
    is_recomputed = re.search(r"recompute|offload|checkpoint|\bac\b", text) is not None
    software = software_for(software_of(record))
    layout = TrainingLayout(
        dp=gpus / cp,
        cp=float(cp),
        ep=float(min(degrees.get("ep", 1), gpus)) if shape.experts is not None else 1.0,
        micro_rows=float(cp),
        zero=3,
        recompute=Recompute.FULL if is_recomputed else Recompute.NONE,
    )
    notes = (assumed, shape.note, software.loaded.extrapolates())
    is_adapter = "lora" in text
    is_supervised = "sft" in text
    return Job(
        shape,
        system,
        software,
        float(gpus),
        length,
        layout,
        is_adapter,
        is_supervised,
        "optimizer states in cpu" in text_of(record, "notes") and not is_supervised,
        "offload" in text,
        ", ".join(filter(None, notes)),
    )


def _micro_batch_s(job: Job) -> float:
    """Return the seconds of a micro-batch, with its share of what comes once for both of a step."""
    used, trainer = job.software.constants, job.software.trainer(job.system)
    rows = _MICRO_BATCHES * job.gpus
    time = training_time(trainer, job.shape, job.layout, rows, job.length_tokens, trains_weights=not job.is_adapter)
    step_s = float(time.total_s) * used.training_factor
    tokens = _MICRO_BATCHES * job.length_tokens
    if not job.is_supervised:
        step_s += tokens * job.shape.vocabulary * used.logit_s
    if job.has_optimizer_on_host and not job.is_adapter:
        step_s += num_parameters(job.shape) / job.system.num_hosts / used.host_parameters_per_s
    return step_s / _MICRO_BATCHES


def _counted_flops(job: Job) -> float:
    """Return the operations per token as the source counts them.

    Six per parameter that is trained, four of others, and all pairs of tokens of a model as wide as its hidden states.
    """
    each = 4.0 if job.is_adapter else 6.0
    attention = 12.0 * job.shape.layers * job.shape.hidden * job.length_tokens
    return each * active_parameters(job.shape) + attention
