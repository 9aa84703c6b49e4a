"""Seconds of an update of weights, and of passes without one, for a layout of a model on a machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rpeg.perf.lengths import Lengths
from rpeg.perf.micro_batches import micro_batches
from rpeg.perf.schedule import StageTimes, pipeline_s
from rpeg.perf.stage_parameters import StageParameters, last_layers, stage_layers, stage_parameters
from rpeg.perf.stage_work import Pass, StageWork
from rpeg.perf.trainer import Trainer, TrainingLayout
from rpeg.perf.training_traffic import gradients_s, overlapped_s, send_s
from rpeg.plan.plan import Balance, Pipeline
from rpeg.shapes.model import ModelShape
from rpeg.shapes.operations import Real
from rpeg.shapes.parameters import embedding_parameters, head_parameters, num_parameters

__all__ = ["TrainingTime", "evened", "forward_time", "training_time"]

_LOOKUP_SHARE = 0.4
"""Of the seconds of an embedding, both ways, those of the lookup."""


@dataclass(frozen=True, slots=True)
class TrainingTime:
    """Seconds of one update, or of a pass without one; the parts add up to the total."""

    compute_s: Real
    """Of the busiest stage with all micro-batches: products, attention, what lies between; or the host's launches."""
    tp_s: Real
    """Exposed communication of tensor parallelism; the others alike."""
    cp_s: Real
    ep_s: Real
    dp_s: Real
    """Gradients that are reduced, and weights that are gathered."""
    bubble_s: Real
    """The busiest stage waits: the pipeline fills and drains, sends are not hidden."""
    optimizer_s: Real = 0.0
    step_s: Real = 0.0
    """What the host does once, or once per micro-batch."""

    @property
    def total_s(self) -> Real:
        """All of it."""
        work_s = self.compute_s + self.tp_s + self.cp_s + self.ep_s + self.dp_s
        return work_s + self.bubble_s + self.optimizer_s + self.step_s


def training_time(
    trainer: Trainer,
    shape: ModelShape,
    layout: TrainingLayout,
    rows: Real,
    length_tokens: Real,
    *,
    trains_weights: bool = True,
    has_logits: bool = True,
) -> TrainingTime:
    """Return the seconds of one update with ``rows`` sequences of ``length_tokens`` over all ranks.

    Args:
        trainer: machine and framework.
        shape: what is trained.
        layout: how; its numbers may be arrays, one value per layout.
        rows: sequences of the update.
        length_tokens: of each; of lengths that differ see `rpeg.perf.micro_batches`.
        trains_weights: not so where only adapters are trained: no gradients of weights, none to reduce.
        has_logits: whether the model ends in the vocabulary; a critic ends in one number.

    Example:
        >>> from rpeg.hardware.catalog import load_system
        >>> from rpeg.perf.trainer import trainer_for
        >>> from rpeg.shapes.catalog import shape_of
        >>> layout, trainer = TrainingLayout(dp=8.0, zero=3), trainer_for(load_system("dgx-h100"), "torchtitan")
        >>> time = training_time(trainer, shape_of("Llama-3.1-8B"), layout, rows=64, length_tokens=8192)
        >>> bool(6 < time.total_s < 14), bool(time.compute_s > 0.8 * time.total_s)
        (True, True)
    """
    piped = _Piped(StageWork(trainer, shape, layout, length_tokens, trains_weights, has_logits), rows, True)
    found = _of(piped)
    return replace(
        found,
        dp_s=found.dp_s + piped.reduction_s * trains_weights,
        optimizer_s=piped.optimizer_s * trains_weights,
        step_s=piped.host_s,
    )


def forward_time(
    trainer: Trainer,
    shape: ModelShape,
    layout: TrainingLayout,
    rows: Real,
    length_tokens: Real,
    *,
    has_logits: bool = True,
) -> TrainingTime:
    """Return the seconds of a forward pass over ``rows``: log-probabilities, rewards, values.

    What a plan joins is priced once: an actor and a critic that share their layers are one `training_time`, and the
    passes that assess samples before it one `forward_time`, if anything needs it at all.
    """
    piped = _Piped(StageWork(trainer, shape, layout, length_tokens, False, has_logits), rows, False)
    return replace(_of(piped), step_s=piped.host_s)


def _of(piped: _Piped) -> TrainingTime:
    busiest = piped.busiest
    return TrainingTime(
        busiest.compute_s, busiest.tp_s, busiest.cp_s, busiest.ep_s, busiest.dp_s, piped.bubble_s
    )  # fmt: skip


def evened(
    layout: TrainingLayout,
    lengths: Lengths,
    rows: float,
    *,
    budget_tokens: float | None = None,
    balance: Balance = Balance.ROWS,
) -> tuple[TrainingLayout, float, float]:
    """Return the layout, the rows and their one length that take as long as ``rows`` of different lengths.

    The rows are those of the busiest rank, on every rank (see `rpeg.perf.micro_batches`): packed under a token budget,
    or ``layout.micro_rows`` at a time, padded to their longest.

    Example:
        >>> from rpeg.perf.lengths import lognormal
        >>> layout, rows, length = evened(TrainingLayout(dp=8.0, micro_rows=4.0), lognormal(1000.0, 1.0), 256)
        >>> round(length), round(rows * length / 256_000, 2)
        (1994, 1.99)
    """
    ranks = float(layout.dp)
    micro_rows = None if budget_tokens else float(layout.micro_rows)
    found = micro_batches(
        lengths, rows / ranks, ranks, micro_rows=micro_rows, budget_tokens=budget_tokens, balance=balance
    )
    return replace(layout, micro_rows=found.rows), found.total_rows * ranks, found.length_tokens


@dataclass(frozen=True)
class _Piped:
    """All micro-batches of an update in the pipeline."""

    work: StageWork
    rows: Real
    is_backward: bool

    @cached_property
    def _layer(self) -> Pass:
        """One layer, both ways."""
        return self.work.layer_forward + self.work.layer_backward if self.is_backward else self.work.layer_forward

    @cached_property
    def _ends(self) -> tuple[Pass, Pass]:
        """What the first and the last stage do besides their layers."""
        if self.is_backward:
            return self.work.first, self.work.last_forward + self.work.last_backward
        return self.work.first * _LOOKUP_SHARE, self.work.last_forward

    @cached_property
    def _layers(self) -> tuple[Real, Real, Real]:
        """Layers of the first, of an inner and of the last stage; those that lack to an even split lack at the ends."""
        shape, layout = self.work.shape, self.work.layout
        if self.work.trainer.constants.is_head_balanced:
            in_layers = shape.hidden * shape.vocabulary / _layer_parameters(shape)
            inner = stage_layers(shape.layers, layout.pp, in_layers)
            return inner, inner, last_layers(shape.layers, layout.pp, in_layers)
        inner = stage_layers(shape.layers / layout.virtual_stages, layout.pp) * layout.virtual_stages
        # Parts of one layer more or less even out over the parts of a stage where whole parts would be lacking.
        inner = np.where(inner * (layout.pp - 2.0) >= shape.layers, stage_layers(shape.layers, layout.pp), inner)[()]
        end = np.maximum(inner - (inner * layout.pp - shape.layers) / 2.0, 1.0)
        return end, inner, end

    @cached_property
    def _count(self) -> Real:
        """Micro-batches."""
        return np.ceil(self.rows / (self.work.layout.dp * self.work.layout.micro_rows) - 1e-9)

    @cached_property
    def _busiest(self) -> Pass:
        """One micro-batch, both ways, on the stage that has most to do."""
        pp = np.asarray(self.work.layout.pp)
        first, inner, last = (self._layer * layers for layers in self._layers)
        ends = (first + self._ends[0]).larger(last + self._ends[1])
        piped = ends.larger(inner).where(pp > 2, ends)
        return piped.where(pp > 1, inner + self._ends[0] + self._ends[1])

    @property
    def host_s(self) -> Real:
        """Seconds of the host that nothing hides: once, and with every micro-batch."""
        use = self.work.trainer.constants
        return use.step_s + use.micro_batch_s * self._count if use.micro_batch_s else use.step_s

    @property
    def busiest(self) -> Pass:
        """The same for all micro-batches."""
        return self._busiest * self._count

    @property
    def bubble_s(self) -> Real:
        """Seconds that the busiest stage waits for others."""
        layout, (first, inner, last) = self.work.layout, self._layers
        backward_s = self.work.layer_backward.total_s if self.is_backward else 0.0
        times = StageTimes(
            self.work.layer_forward.total_s * inner,
            backward_s * inner,
            self._ends[0].total_s + self._layer.total_s * (first - inner),
            self._ends[1].total_s + self._layer.total_s * (last - inner),
            send_s(self.work.trainer, self.work.shape, layout, self.work.tokens) / (1.0 if self.is_backward else 2.0),
        )
        total_s = pipeline_s(
            layout.pipeline if self.is_backward else Pipeline.GPIPE,
            times,
            num_micro_batches=self._count,
            num_stages=layout.pp,
            virtual_stages=layout.virtual_stages,
        )
        return np.maximum(total_s - self.busiest.total_s, 0.0)

    @cached_property
    def _parameters(self) -> StageParameters:
        """Those of the first stage, which holds the embedding."""
        return stage_parameters(self.work.shape, self.work.layout.degrees, layers=self._layers[0], is_last=False)

    @property
    def reduction_s(self) -> Real:
        """What is exposed of reducing gradients, and of gathering updated weights, once per update."""
        layout, use = self.work.layout, self.work.trainer
        window_s = self.work.layer_backward.total_s
        if layout.zero:
            # Weights are gathered while the next step begins with the first layers.
            window_s = window_s + self.work.layer_forward.total_s
        hiding_s = window_s * self._layers[0] * use.constants.dp_hidden
        return overlapped_s(hiding_s, gradients_s(use, layout, self._parameters), use.constants.interference) - hiding_s

    @property
    def optimizer_s(self) -> Real:
        """Seconds in which moments and weights are updated."""
        degrees, parameters = self.work.layout.degrees, self._parameters
        dense, routed = parameters.dense, parameters.routed
        if self.work.layout.zero:
            dense, routed = dense / degrees.shards, routed / degrees.expert_shards
        kernels, each_bytes = self.work.trainer.kernels, self.work.trainer.constants.optimizer_bytes
        return kernels.stream_s((dense + routed) * each_bytes, 0)


def _layer_parameters(shape: ModelShape) -> float:
    outside = embedding_parameters(shape) + head_parameters(shape)
    return (num_parameters(shape) - outside) / shape.layers
