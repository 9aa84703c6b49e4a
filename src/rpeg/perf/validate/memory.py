"""Rows of memory: peaks of training jobs, their components, and published formulas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from rpeg.errors import HardwareError
from rpeg.hardware.naming import device_for
from rpeg.perf.activations import Kept, activation_bytes_per_layer, in_flight
from rpeg.perf.memory import MemoryConstants, StateBytes, collective_buffer_bytes
from rpeg.perf.stage_parameters import stage_layers, stage_parameters
from rpeg.perf.training_memory import Training, TrainingMemory, training_memory
from rpeg.perf.validate.memory_job import Job, constants_for, job_of, number, words_of
from rpeg.perf.validate.row import Priced, Skip

__all__ = ["COLUMNS", "price", "price_peak"]

COLUMNS = frozenset({"model", "tp", "pp", "dp", "micro_batch", "recompute", "metric", "value", "unit"})
_GIB = 2.0**30
_UNITS = {
    "tib": 2.0**40, "gib": _GIB, "mib": 2.0**20, "kib": 2.0**10, "tb": 1e12, "gb": 1e9, "mb": 1e6, "kb": 1e3, "b": 1.0
}  # fmt: skip
_PEAK, _COMPONENT, _FORMULA = "peak memory", "memory components", "memory formulas"
_OLD_CONTEXT_BYTES = 1.78 * _GIB
"""Of a CUDA context before kernels were loaded lazily (CUDA 11.7)."""

_STATE = {"weights": r"param|weight", "gradients": r"grad", "optimizer": r"optim"}
"""Residents of the state, and what metrics call them."""
_REMARKS = r"sft rows without lm-head chunking|default keeps optimizer states in cpu memory"
"""Of notes: what is true of other rows, or of a default that the peaks show not to be in use."""


def price(record: Mapping[str, str]) -> list[Priced]:
    """Return the price of a row of memory measurements.

    Raises:
        Skip: when a row names no model and no sizes, or no number.
    """
    metric = words_of(record, "metric")
    if number(record, "value") is None:
        raise Skip("no value", set=_PEAK)
    if "per_param" in metric or "b/param" in words_of(record, "unit"):
        return [_formula(record)]
    if "nccl" in metric or "buffer" in metric:
        size = number(record, "gpus") or 8.0
        found = float(collective_buffer_bytes(size, constants_for(record).constants))
        return [_priced(record, _COMPONENT, found, 4 * 2.0**20 * size)]
    if "context" in metric or "kernels" in metric or "overhead" in metric:
        newer = constants_for(record).constants.context_bytes
        found = _OLD_CONTEXT_BYTES if "old" in words_of(record, "notes") else newer
        return [_priced(record, _COMPONENT, found, newer)]
    return [_of_job(record, metric)]


def price_peak(record: Mapping[str, str]) -> Priced:
    """Return the price of a peak of a training job; also of rows of reinforcement-learning trainers.

    Those say in ``parallelism`` and ``max_or_mean_response_len`` what tables of training have columns for.
    """
    return _peak(record, job_of(_as_training(record) if "parallelism" in record else record))


def _of_job(record: Mapping[str, str], metric: str) -> Priced:
    job = job_of(record)
    if "pct" in metric or words_of(record, "unit").startswith("%"):
        return _share(record, job)
    if re.search(r"peak|max_|reserved|allocated|per_gpu|used", metric):
        return _peak(record, job)
    if "activation" in metric:
        found = _activations(job.training, job.constants)
        return _priced(record, _COMPONENT, found, _ideal_activations(job.training), job)
    return _state(record, job, metric)


def _peak(record: Mapping[str, str], job: Job) -> Priced:
    """Return the price of what the allocator has reserved, or a tool has seen used on the device."""
    memory = training_memory(job.training, job.constants)
    metric = words_of(record, "metric")
    found = float(memory.allocator_bytes)
    if re.search(r"nvidia|device|used|smi", metric):
        found = float(memory.total)
    elif "allocated" in metric:
        found -= float(memory.residents["allocator slack"])
    found = min(found, _capacity(record, memory))
    return _priced(record, _PEAK, found, _ideal_state(job), job)


def _capacity(record: Mapping[str, str], memory: TrainingMemory) -> float:
    """Return what the allocator can have on the device: a run that was measured has fitted.

    Sizes of HBM are given in GB and are GiB. A caching allocator that runs out gives back what it only keeps.
    """
    try:
        nominal = device_for(record.get("hardware", "")).memory_bytes / 1e9 * _GIB
    except HardwareError:
        return float("inf")
    outside = sum(float(memory.residents[name]) for name in ("context", "collective buffers"))
    return 0.99 * nominal - outside


def _state(record: Mapping[str, str], job: Job, metric: str) -> Priced:
    """Return the price of weights, gradients and optimizer state, as far as the metric names them."""
    wanted = [name for name, word in _STATE.items() if re.search(word, metric)]
    if "params_and_optimizer" in metric or not wanted:
        wanted = list(_STATE)
    if job.loaded.profile.name == "megatron-2022":
        return _priced(record, _COMPONENT, _layer_state(job), _ideal_state(job), job)
    residents = training_memory(job.training, job.constants).residents
    found = sum(float(residents[name]) for name in wanted)
    return _priced(record, _COMPONENT, found, _ideal_state(job), job)


def _layer_state(job: Job) -> float:
    """Return the state of the layers of a stage alone, as the paper counts it: embeddings are left out."""
    training = job.training
    layers = float(stage_layers(training.shape.layers, training.degrees.pp))
    held = stage_parameters(training.shape, training.degrees, layers=layers, is_first=0.0, is_last=0.0)
    return job.constants.state.total * float(held.total)


def _activations(training: Training, constants: MemoryConstants) -> float:
    """Return the activations of the first stage."""
    degrees = training.degrees
    flying = in_flight(
        training.pipeline,
        num_stages=degrees.pp,
        num_micro_batches=float("inf"),
        virtual_stages=degrees.virtual_stages,
    )
    of_layer = activation_bytes_per_layer(
        training.shape, training.tokens, degrees, length_tokens=training.length_tokens, kept=training.kept,
        operators=constants.operators,
    )  # fmt: skip
    return float(flying * stage_layers(training.shape.layers, degrees.pp) * of_layer)


def _share(record: Mapping[str, str], job: Job) -> Priced:
    """Return the price of activations in percent of those with tensor parallelism alone."""
    training = job.training
    degrees = replace(training.degrees, is_sequence_parallel=False)
    plain = _activations(replace(training, kept=Kept.ALL, degrees=degrees), job.constants)
    found = 100.0 * _activations(training, job.constants) / plain
    measured = number(record, "value") or 0.0
    return Priced(
        _COMPONENT, record.get("source", ""), record.get("model", ""), measured, found, 100.0 / float(degrees.tp), "%",
        extrapolates=_outside(job),
    )  # fmt: skip


def _formula(record: Mapping[str, str]) -> Priced:
    """Return the price of bytes per parameter from the dtypes of parameters and gradients."""
    text = words_of(record, "dtype")
    kinds = re.findall(r"(fp32|fp16|bf16|float32|float16|bfloat16|fp8)\s*(?:param|weight|grad)", text)
    weights, gradients = (kinds[0], kinds[-1]) if kinds else ("bfloat16", "float32")
    state = StateBytes.of(weights, gradients, has_gradient_copy=True)
    shards = number(record, "dp") or 1.0
    is_split = "distributed" in words_of(record, "metric") and "non_distributed" not in words_of(record, "metric")
    found = state.weights + state.gradients + state.optimizer / (shards if is_split else 1.0)
    source = record.get("source", "")
    return Priced(_FORMULA, source, record.get("model") or text, number(record, "value") or 0.0, found, 16.0, "B/param")


def _ideal_state(job: Job) -> float:
    """Return sixteen bytes per parameter, evenly over all devices that split the weights or the optimizer."""
    degrees = job.training.degrees
    held = float(stage_parameters(job.training.shape, replace(degrees, pp=1.0)).total) / float(degrees.pp)
    return 16.0 * held / (float(degrees.shards) if float(degrees.zero) >= 3.0 else 1.0)


def _ideal_activations(training: Training) -> float:
    """Return the hidden states between all layers."""
    return 2.0 * float(training.tokens) * training.shape.hidden * training.shape.layers / float(training.degrees.tp)


def _as_training(record: Mapping[str, str]) -> dict[str, str]:
    """Return the row of a trainer with the columns of a table of training."""
    text = words_of(record, "parallelism")
    found = {key: re.search(rf"(?<![a-z]){key}\s*=?\s*(\d+)", text) for key in ("tp", "pp", "cp", "ep")}
    length = number(record, "max_or_mean_response_len") or number(record, "prompt_len") or number(record, "seq_len")
    is_chunked = "rl" in words_of(record, "algorithm").split()
    notes = re.sub(_REMARKS, "", words_of(record, "notes"))
    return {
        **record,
        **{key: match.group(1) for key, match in found.items() if match},
        "seq_len": f"{length or 0:.0f}" if length else "",
        "micro_batch": "1",
        "recompute": text,
        "notes": f"{notes} {'chunked' if is_chunked else ''} {words_of(record, 'algorithm')}",
    }


def _priced(
    record: Mapping[str, str],
    name: str,
    num_bytes: float,
    ideal: float,
    job: Job | None = None,
) -> Priced:
    """Return predicted and ideal bytes in the unit of the row."""
    unit = (record.get("unit") or "GiB").strip()
    size = _UNITS.get(unit.lower().removesuffix("/gpu"), _GIB)
    if name == _PEAK and unit.lower() == "gb":
        size = _GIB  # frameworks divide what the allocator reports by 2**30 and print GB
    model = record.get("model") or record.get("hardware") or ""
    measured = number(record, "value") or 0.0
    return Priced(
        name, record.get("source", ""), model, measured, num_bytes / size, ideal / size, unit,
        extrapolates=_outside(job) if job else "",
    )  # fmt: skip


def _outside(job: Job) -> str:
    training = job.training
    values = {
        "gpus": job.gpus,
        "length_tokens": float(training.length_tokens),
        "tp": float(training.degrees.tp),
        "pp": float(training.degrees.pp),
    }
    return ", ".join(text for text in (job.loaded.extrapolates("", **values), job.assumed) if text)
