"""Prices of generation for a table of layouts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rpeg.hardware.topology import System
from rpeg.perf.demand import Demand
from rpeg.perf.engine import Engine, cache_bytes, engine_for, weight_bytes
from rpeg.perf.generation import GenerationTime, Turns, Work, generation_time, recompute_s
from rpeg.perf.inference_memory import Generation, generation_memory
from rpeg.perf.layouts import Choice, LayoutTable, faults_of
from rpeg.perf.lengths import carried
from rpeg.perf.load import Precision
from rpeg.perf.software import Software
from rpeg.perf.stage_parameters import Degrees
from rpeg.perf.stage_prices import StagePrices
from rpeg.perf.workload import added
from rpeg.shapes.model import ModelShape
from rpeg.shapes.operations import causal_flops_per_token, flops_per_token

__all__ = ["price_generation", "work_of"]

_NOT_HELD = ("weights", "keys and values")


def price_generation(
    demand: Demand, region: System, table: LayoutTable, software: Software, memory_bytes: float | None = None
) -> StagePrices:
    """Return the prices of a GENERATE or EVALUATE.

    Args:
        demand: what is asked for.
        region: the devices.
        table: layouts, of which data parallel ranks are replicas; rows of a micro-batch above 1 bound their slots.
        software: whose engine it is.
        memory_bytes: of each device, what the engine may take for weights and caches; None: its usual share.
    """
    assert demand.shape is not None, demand
    reasons = faults_of(demand.shape, table, region.num_devices, demand.rows)
    rows = [
        _row(demand, demand.shape, region, table.choice(row), software, memory_bytes)
        if not reason
        else (np.inf, np.inf, np.inf, 0.0, np.inf, 0.0, "")
        for row, reason in enumerate(reasons)
    ]
    said = dict.fromkeys(row[-1] for row in rows if row[-1])
    numbers = np.array([row[:-1] for row in rows], dtype=float).reshape(len(rows), 6).T
    occupancy_s, tail_s, held, gradients, working, flops = numbers
    return StagePrices(occupancy_s, tail_s, held, gradients, working, flops, reasons, ", ".join(said))


def _row(
    demand: Demand, shape: ModelShape, region: System, choice: Choice, software: Software, memory_bytes: float | None
) -> tuple[float, float, float, float, float, float, str]:
    engine = _engine(demand, region, choice, software, memory_bytes)
    work, replicas = work_of(demand, software), float(choice.dp * choice.cp)
    time = generation_time(engine, shape, work, replicas)
    occupancy_s, latency_s = _seconds(demand, shape, engine, time, software, region)
    return (
        occupancy_s * demand.share,
        (latency_s - occupancy_s) * demand.share,
        weight_bytes(engine, shape),
        0.0,
        _working_bytes(demand, shape, choice, engine, time, software),
        _flops(demand, shape, work, time),
        engine.extrapolates,
    )


def _engine(demand: Demand, region: System, choice: Choice, software: Software, memory_bytes: float | None) -> Engine:
    precision = Precision.of(demand.workload.dtype)
    serving = software.constants.serving
    engine = engine_for(region, serving, tp=choice.tp, pp=choice.pp, ep=min(choice.ep, choice.tp), precision=precision)
    if choice.micro_rows > 1:
        engine = engine.with_constants(slots=choice.micro_rows)
    elif demand.workload.slots is not None:
        engine = engine.with_constants(slots=demand.workload.slots)
    if memory_bytes is not None:
        share = memory_bytes / engine.kernels.device.memory_bytes
        engine = engine.with_constants(memory_fraction=min(engine.constants.memory_fraction, share))
    return engine


def work_of(demand: Demand, software: Software) -> Work:
    """Return what the engines are asked for.

    Where samples are carried over, those of a step are the ones that begin in it and those brought along from earlier
    ones, whose tokens so far are read like a prompt.
    """
    load = demand.workload
    turns = None
    if demand.turns:
        pause_s = software.constants.environment_s if load.environment_s is None else load.environment_s
        turns = Turns(demand.turns, pause_s, load.observation_tokens)
    found = Work(demand.rows, load.prompts, load.responses, demand.group_size, demand.needed, turns)
    if not demand.max_carry:
        return found
    new, brought = carried(load.responses, demand.budget_tokens, demand.max_carry)
    begun = load.responses.mean_tokens / new.mean_tokens
    return replace(found, requests=demand.rows * begun, prompts=added(load.prompts, brought), responses=new)


def _seconds(
    demand: Demand, shape: ModelShape, engine: Engine, time: GenerationTime, software: Software, region: System
) -> tuple[float, float]:
    """Return occupancy and latency of all rounds, with what judges inside of them take."""
    used = software.constants
    occupancy_s, latency_s = time.occupancy_s * used.generation_factor, time.latency_s * used.generation_factor
    if demand.recomputes_cache:
        again_s = recompute_s(engine, shape, time.sequences, time.kv_tokens / max(1.0, time.sequences))
        occupancy_s, latency_s = occupancy_s + again_s, latency_s + again_s
    if demand.rounds > 1:
        judged_s = demand.rows * used.verify_s / (used.cores * region.num_hosts)
        before_s = (demand.rounds - 1.0) * (latency_s + judged_s)
        occupancy_s, latency_s = before_s + occupancy_s, before_s + latency_s + judged_s
    return occupancy_s + used.firing_s, latency_s + used.firing_s


def _working_bytes(
    demand: Demand, shape: ModelShape, choice: Choice, engine: Engine, time: GenerationTime, software: Software
) -> float:
    """Return caches at their fullest, one pass, logits and what the libraries take."""
    degrees = Degrees(float(choice.tp), float(choice.pp), ep=float(min(choice.ep, choice.tp)))
    context = time.kv_tokens / max(1.0, time.sequences)
    job = Generation(
        shape,
        degrees,
        time.sequences / choice.pp,
        context,
        min(engine.constants.chunk_tokens, demand.rows * demand.workload.prompts.mean_tokens),
        demand.workload.item_bytes,
        demand.workload.item_bytes,
    )
    found = generation_memory(job, software.memory).residents
    caches = time.sequences * float(cache_bytes(engine, shape, context))
    return caches + sum(float(size) for name, size in found.items() if name not in _NOT_HELD)


def _flops(demand: Demand, shape: ModelShape, work: Work, time: GenerationTime) -> float:
    """Return the operations of reading prompts once for each group, and of writing responses."""
    prompt, response = work.prompts.mean_tokens, work.responses.mean_tokens
    prompts = work.requests / work.group_size * prompt * float(causal_flops_per_token(shape, prompt))
    # A token sees its prompt and what was written before it; long responses have most of the tokens.
    seen = prompt + work.responses.moment(2) / response / 2.0
    return (prompts + time.output_tokens * float(flops_per_token(shape, seen))) * demand.rounds * demand.share
