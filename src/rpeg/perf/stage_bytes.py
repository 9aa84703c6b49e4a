"""Bytes of passes over rows, for a table of layouts: what stays, gradients, and what a firing needs besides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rpeg.graph.stage import StageKind
from rpeg.perf.activations import Kept
from rpeg.perf.demand import Demand
from rpeg.perf.layouts import LayoutTable
from rpeg.perf.memory import weights_bytes
from rpeg.perf.software import Software
from rpeg.perf.stage_batches import Batches
from rpeg.perf.stage_parameters import stage_parameters
from rpeg.perf.training_memory import Moment, Training, training_memory
from rpeg.plan.plan import Recompute
from rpeg.shapes.model import ModelShape

__all__ = ["pass_bytes"]

_Floats = npt.NDArray[np.float64]
_ADAPTER_RANK = 16
"""Of low-rank adapters, which a graph does not say."""
_STATE = ("weights", "gradients", "optimizer")
_ALWAYS = ("collective buffers", "context")
_LIVE_LOGITS = 8.0 / 18.0
"""Of the copies of logits in training, those of a pass without gradients: fp32, and their log-softmax."""


def pass_bytes(
    demand: Demand, shape: ModelShape, table: LayoutTable, batches: Batches, software: Software
) -> tuple[_Floats, _Floats, _Floats]:
    """Return what is kept, gradients, and what a firing needs besides, on the fullest device of each layout."""
    zeros = np.zeros(len(table))
    moments = training_memory(_job(demand, shape, table, batches), software.memory).moments
    busy = [moment for moment in moments if moment.interval != "update"]
    if demand.kind is StageKind.TRAIN:
        held = _most(moments, zeros, "weights", "optimizer")
        return held, _most(moments, zeros, "gradients"), _most(busy, zeros, *(busy[0].residents.keys() - set(_STATE)))
    degrees = table.degrees
    held = weights_bytes(stage_parameters(shape, degrees), degrees, demand.workload.item_bytes)
    # Of what a layer needs to go backward half are gradients.
    layer = _most(busy, zeros, "layer in backward") / 2.0
    working = _most(busy, zeros, "logits") * _LIVE_LOGITS + layer + _most(busy, zeros, *_ALWAYS, "gathered weights")
    return held + zeros, zeros, working


def _most(moments: Sequence[Moment], zeros: _Floats, *names: str) -> _Floats:
    """Return the most that these residents have together at any of the moments."""
    totals = [sum((np.asarray(moment.residents[name]) for name in names), start=zeros) for moment in moments]
    return np.max(np.stack(totals), axis=0)


def _job(demand: Demand, shape: ModelShape, table: LayoutTable, batches: Batches) -> Training:
    recompute, pipeline, _, _ = table.kinds[0]
    return Training(
        shape,
        table.degrees,
        batches.rows * batches.length_tokens,
        batches.length_tokens,
        batches.count,
        Kept.of(recompute if demand.kind is StageKind.TRAIN else Recompute.FULL),
        pipeline,
        has_head=demand.has_logits,
        adapter_rank=0 if demand.trains_weights else _ADAPTER_RANK,
    )
