"""Prices of passes over rows: training, optimizer steps, and passes without gradients, for a table of layouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rpeg.graph.stage import StageKind
from rpeg.hardware.topology import System
from rpeg.perf.demand import Demand
from rpeg.perf.layouts import LayoutTable, faults_of
from rpeg.perf.memory import gradient_bytes, optimizer_bytes, weights_bytes
from rpeg.perf.micro_batches import seen_tokens
from rpeg.perf.reshard import num_tensors
from rpeg.perf.software import Software
from rpeg.perf.stage_batches import Batches, batches_of
from rpeg.perf.stage_bytes import pass_bytes
from rpeg.perf.stage_parameters import stage_parameters
from rpeg.perf.stage_prices import StagePrices, merged, unpriced
from rpeg.perf.trainer import TrainingLayout
from rpeg.perf.training import TrainingTime, forward_time, training_time
from rpeg.plan.plan import Pipeline
from rpeg.shapes.model import ModelShape
from rpeg.shapes.operations import causal_flops_per_token

__all__ = ["price_passes", "price_updates"]

_Floats = npt.NDArray[np.float64]


def price_passes(demand: Demand, region: System, table: LayoutTable, software: Software) -> StagePrices:
    """Return the prices of a FORWARD or TRAIN; of a TRAIN without the optimizer's step, which its UPDATE makes."""
    assert demand.shape is not None, demand
    reasons = faults_of(demand.shape, table, region.num_devices, demand.rows)
    parts = [
        (rows, _alike(demand, demand.shape, region, table.take(rows), software, [reasons[int(row)] for row in rows]))
        for rows in _groups(table, reasons)
    ]
    return merged(len(table), parts)


def _groups(table: LayoutTable, reasons: tuple[str, ...]) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the rows of layouts that differ in numbers only."""
    keys: dict[tuple[object, ...], list[int]] = {}
    for row, kinds in enumerate(table.kinds):
        keys.setdefault((*kinds, table.zero[row], bool(reasons[row])), []).append(row)
    yield from (np.array(rows, dtype=np.intp) for rows in keys.values())


def _alike(
    demand: Demand, shape: ModelShape, region: System, table: LayoutTable, software: Software, reasons: list[str]
) -> StagePrices:
    if reasons[0]:
        return unpriced(reasons)
    _, _, is_packed, balance = table.kinds[0]
    load = demand.workload
    batches = batches_of(
        load.samples, demand.rows, table, is_packed=is_packed, balance=balance, budget_tokens=load.micro_batch_tokens
    )
    seconds = _time(demand, shape, region, table, batches, software)
    used = software.constants
    factor = used.training_factor if demand.kind is StageKind.TRAIN else used.forward_factor
    busy_s = (np.asarray(seconds.total_s) - seconds.optimizer_s) * factor
    rows_s = (used.forward_row_s if demand.kind is StageKind.FORWARD else used.training_row_s) * demand.rows
    held, gradients, working = pass_bytes(demand, shape, table, batches, software)
    return StagePrices(
        (np.broadcast_to(busy_s, (len(table),)) + used.firing_s + rows_s) * demand.share,
        np.zeros(len(table)),
        held,
        gradients,
        working,
        np.full(len(table), _flops(demand, shape)),
        reasons,
        software.trainer(region).extrapolates,
    )


def _time(
    demand: Demand, shape: ModelShape, region: System, table: LayoutTable, batches: Batches, software: Software
) -> TrainingTime:
    trainer = software.trainer(region)
    layout = _training_layout(table, batches, demand.workload.dtype)
    if layout.zero in (1, 2) and trainer.constants.is_sharded_each_pass:
        layout = replace(layout, zero=3, has_kept_gathers=True)
    rows = batches.count * batches.rows * table.dp
    if demand.kind is StageKind.TRAIN:
        return training_time(
            trainer, shape, layout, rows, batches.length_tokens,
            trains_weights=demand.trains_weights, has_logits=demand.has_logits,
        )  # fmt: skip
    return forward_time(trainer, shape, layout, rows, batches.length_tokens, has_logits=demand.has_logits)


def _training_layout(table: LayoutTable, batches: Batches, dtype: str) -> TrainingLayout:
    recompute, pipeline, _, _ = table.kinds[0]
    virtual = np.where((table.pp > 1) & (pipeline is Pipeline.INTERLEAVED), 2.0, 1.0)
    return TrainingLayout(
        tp=table.tp,
        pp=table.pp,
        dp=table.dp,
        cp=table.cp,
        ep=table.ep,
        micro_rows=batches.rows,
        virtual_stages=virtual,
        zero=int(table.zero[0]),
        recompute=recompute,
        pipeline=pipeline,
        dtype=dtype,
    )


def _flops(demand: Demand, shape: ModelShape) -> float:
    """Return the operations of the model that a firing is worth: recomputation does not count."""
    lengths = demand.workload.samples
    per_token = float(causal_flops_per_token(shape, seen_tokens(lengths), has_head=demand.has_logits))
    sweeps = 3.0 if demand.kind is StageKind.TRAIN else 1.0
    return per_token * lengths.mean_tokens * demand.rows * sweeps * demand.share


def price_updates(demand: Demand, region: System, table: LayoutTable, software: Software) -> StagePrices:
    """Return the prices of an UPDATE: the optimizer's steps, or weights that move an average."""
    assert demand.shape is not None, demand
    reasons = faults_of(demand.shape, table, region.num_devices, 0.0)
    degrees, state = table.degrees, software.memory.state
    held = stage_parameters(demand.shape, degrees)
    sharded = optimizer_bytes(held, degrees, 1.0)
    moved = software.trainer(region).constants.optimizer_bytes if not demand.is_average else 12.0
    if not demand.trains_weights:
        moved = 0.0
    trainer = software.trainer(region)
    each_s = trainer.kernels.stream_s(sharded * moved, 1) + trainer.constants.tensor_s * num_tensors(demand.shape)
    busy_s = each_s * demand.updates
    zeros = np.zeros(len(table))
    optimizer = 0.0 if demand.is_average else optimizer_bytes(held, degrees, state.optimizer)
    return StagePrices(
        busy_s + software.constants.firing_s + zeros,
        zeros,
        weights_bytes(held, degrees, state.weights) + optimizer + zeros,
        gradient_bytes(held, degrees, state.gradients) * float(not demand.is_average) + zeros,
        optimizer_bytes(held, degrees, software.memory.update_bytes) + zeros,
        zeros,
        reasons,
        software.trainer(region).extrapolates,
    )
