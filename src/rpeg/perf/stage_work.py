"""Seconds of one micro-batch in the layers and at the ends of a pipeline, with the communication it waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from rpeg.perf.layer import (
    LayerKind,
    LayerTime,
    backward_time,
    embedding_time,
    head_backward_time,
    head_time,
    layer_kinds,
    layer_operations,
    layer_time,
)
from rpeg.perf.load import Load, Precision, Split
from rpeg.perf.operations import Operation, Product
from rpeg.perf.stage_parameters import StageParameters, stage_parameters
from rpeg.perf.trainer import Trainer, TrainingLayout
from rpeg.perf.training_traffic import exchange_s, overlapped_s, ring_step_s, sharding_s, tp_s
from rpeg.plan.plan import Recompute
from rpeg.shapes.model import ModelShape
from rpeg.shapes.operations import Real
from rpeg.shapes.parameters import embedding_parameters, head_parameters

__all__ = ["Pass", "StageWork"]


@dataclass(frozen=True, slots=True)
class Pass:
    """Seconds of one pass of a micro-batch; sums and multiples are such passes again."""

    compute_s: Real = 0.0
    """Of the device, or of the host where launching takes longer."""
    tp_s: Real = 0.0
    """Communication of tensor parallelism that nothing hides; the others alike."""
    cp_s: Real = 0.0
    ep_s: Real = 0.0
    dp_s: Real = 0.0
    """Weights that are gathered and gradients that are scattered layer by layer (ZeRO 3)."""

    @property
    def total_s(self) -> Real:
        """All of it."""
        return self.compute_s + self.tp_s + self.cp_s + self.ep_s + self.dp_s

    def __add__(self, other: Pass) -> Pass:
        """Return one pass after the other."""
        return Pass(
            self.compute_s + other.compute_s,
            self.tp_s + other.tp_s,
            self.cp_s + other.cp_s,
            self.ep_s + other.ep_s,
            self.dp_s + other.dp_s,
        )

    def where(self, is_so: npt.NDArray[np.bool_], other: Pass) -> Pass:
        """Return this pass for the layouts of which something is so, and the other one for the rest."""
        return Pass(
            *(
                np.where(is_so, mine, others)[()]
                for mine, others in (
                    (self.compute_s, other.compute_s),
                    (self.tp_s, other.tp_s),
                    (self.cp_s, other.cp_s),
                    (self.ep_s, other.ep_s),
                    (self.dp_s, other.dp_s),
                )
            )
        )

    def larger(self, other: Pass) -> Pass:
        """Return the pass that takes longer."""
        return self.where(np.asarray(self.total_s) >= np.asarray(other.total_s), other)

    def __mul__(self, times: Real) -> Pass:
        """Return the pass ``times`` times."""
        return Pass(self.compute_s * times, self.tp_s * times, self.cp_s * times, self.ep_s * times, self.dp_s * times)


@lru_cache(maxsize=256)
def _kinds(shape: ModelShape) -> tuple[tuple[LayerKind, int], ...]:
    return layer_kinds(shape)


@dataclass(frozen=True)
class StageWork:
    """One micro-batch of rows of one length, on a layout."""

    trainer: Trainer
    shape: ModelShape
    layout: TrainingLayout
    length_tokens: Real
    trains_weights: bool = True
    """Whether weights get gradients; not so where only adapters are trained."""
    has_logits: bool = True
    """Whether the last stage has the head of the vocabulary; a critic or a reward model has one number instead."""

    @cached_property
    def tokens(self) -> Real:
        """Of the micro-batch on one data parallel rank."""
        return self.layout.micro_rows * self.length_tokens

    @cached_property
    def load(self) -> Load:
        """What arrives at a layer."""
        return Load.prefill(self.layout.micro_rows, self.length_tokens)

    @cached_property
    def layer_forward(self) -> Pass:
        """The mean layer, forward."""
        return self._mean(self._forward)

    @cached_property
    def layer_backward(self) -> Pass:
        """The mean layer, backward, with what is recomputed."""
        return self._mean(self._backward)

    @cached_property
    def first(self) -> Pass:
        """The embedding, both ways, and what of ZeRO 3 no layer hides: its weights, and those of the first layer."""
        once = embedding_time(self.shape, self.trainer.kernels, self.tokens, self.layout.split())
        moved_s: Real = 0.0
        if self.layout.zero == 3:
            outside = (embedding_parameters(self.shape) + head_parameters(self.shape)) / self.layout.tp
            gather_s, scatter_s = sharding_s(self.trainer, self.layout, outside, self.trains_weights)
            moved_s = gather_s + scatter_s + self._sharding_s(_kinds(self.shape)[0][0])[0]
        # The gradient is added to the rows of the table: one read more than the lookup, in float32.
        return Pass(self._seconds(once * 2.5), dp_s=moved_s)

    @cached_property
    def last_forward(self) -> Pass:
        """Head and log-softmax."""
        return self._head(head_time)

    @cached_property
    def last_backward(self) -> Pass:
        """Their gradients."""
        return self._head(head_backward_time)

    def _mean(self, of_kind: Callable[[LayerKind], Pass]) -> Pass:
        total = Pass()
        for kind, count in _kinds(self.shape):
            total = total + of_kind(kind) * (count / self.shape.layers)
        return total

    def _forward(self, kind: LayerKind) -> Pass:
        work_s = self._forward_s(kind)
        return self._with_traffic(kind, work_s, 1.0, 1.0, self._sharding_s(kind)[0])

    def _backward(self, kind: LayerKind) -> Pass:
        work_s = self._backward_s(kind)
        again = 1.0 if self.layout.recompute is Recompute.FULL else 0.0
        gather_s, scatter_s = self._sharding_s(kind)
        moved_s = scatter_s if self.layout.has_kept_gathers else gather_s + scatter_s
        return self._with_traffic(kind, work_s, 1.0 + again, 2.0 + again, moved_s)

    def _with_traffic(self, kind: LayerKind, work_s: Real, passes: float, rings: float, moved_s: Real) -> Pass:
        use = self.trainer
        ep = exchange_s(use, self.shape, self.layout, self.load) * passes if kind.has_experts else 0.0
        dp = overlapped_s(work_s, moved_s, use.constants.interference) - work_s
        return Pass(
            work_s,
            tp_s(use, self.shape, self.layout, self.load) * passes,
            self._ring_s(kind) * rings,
            ep,
            dp if self.layout.zero == 3 else 0.0,
        )

    # Seconds of work.

    def _seconds(self, time: LayerTime, expert_passes: float = 0.0) -> Real:
        """Return the seconds of a part of a pass, at the speed that things have in training."""
        use = self.trainer.constants
        products_s = time.gemm_s * self._product_factor + time.attention_s * self.trainer.attention_factor
        device_s = products_s + time.elementwise_s * use.elementwise_factor
        if expert_passes:
            device_s = device_s * self.trainer.expert_factor(self.layout.dtype)
        host_s = time.host_s + expert_passes * use.expert_s
        return device_s + host_s if use.is_host_added else np.maximum(device_s, host_s)

    def _forward_s(self, kind: LayerKind) -> Real:
        return self._seconds(self._time(kind), 1.0 * kind.has_experts)

    def _backward_s(self, kind: LayerKind) -> Real:
        use, fusion = self.trainer, self.trainer.constants.fusing
        time = backward_time(self.shape, use.kernels, self.load, self._split, self._precision, kind=kind, fusion=fusion)
        if not self.trains_weights:
            products_s, flops = time.gemm_s / 2.0, time.flops / 2.0
            time = LayerTime(products_s, time.attention_s, time.elementwise_s, time.host_s, time.launches, flops)
        seconds = self._seconds(time, 2.0 * kind.has_experts)
        return seconds + self._again_s(kind) + self._added_s(kind)

    def _again_s(self, kind: LayerKind) -> Real:
        """Return the seconds of what is recomputed of a layer."""
        if self.layout.recompute is Recompute.NONE:
            return 0.0
        if self.layout.recompute is Recompute.SELECTIVE:
            return self._seconds(self._selected(kind))
        if not self.trainer.constants.is_last_product_spared:
            return self._forward_s(kind)
        last = [each for each in self._operations(kind) if isinstance(each, Product)][-1]
        return self._forward_s(kind) - last.forward_s(self.trainer.kernels) * self._product_factor

    def _selected(self, kind: LayerKind) -> LayerTime:
        """Return what selective recomputation repeats: attention, or every second product and what is cheap."""
        time = self._time(kind)
        if self.trainer.constants.is_selected_by_operation:
            return LayerTime(gemm_s=time.gemm_s / 2.0, elementwise_s=time.elementwise_s)
        return LayerTime(attention_s=time.attention_s)

    def _added_s(self, kind: LayerKind) -> Real:
        """Return the seconds in which gradients of weights are added to those of earlier micro-batches."""
        if not self.trains_weights or self.layout.zero == 3:
            return 0.0
        return self.trainer.kernels.stream_s(self._parameters(kind) * self.trainer.constants.accumulate_bytes, 0)

    def _head(self, of: Callable[..., LayerTime]) -> Pass:
        if not self.has_logits:
            return Pass()
        use, fusion = self.trainer, self.trainer.constants.fusing
        return Pass(
            self._seconds(of(self.shape, use.kernels, self.tokens, self._split, self._precision, fusion=fusion))
        )

    # What the work is about.

    @cached_property
    def _split(self) -> Split:
        return self.layout.split(self.trainer.constants.imbalance)

    @cached_property
    def _product_factor(self) -> float:
        return self.trainer.product_factor(self.layout.dtype)

    @cached_property
    def _precision(self) -> Precision:
        return Precision.of(self.layout.dtype)

    @cached_property
    def _times(self) -> dict[LayerKind, LayerTime]:
        return {}

    def _time(self, kind: LayerKind) -> LayerTime:
        """Return the forward time of a layer of a kind."""
        if kind not in self._times:
            use, fusion = self.trainer, self.trainer.constants.fusing
            self._times[kind] = layer_time(
                self.shape, use.kernels, self.load, self._split, self._precision, kind=kind, fusion=fusion
            )
        return self._times[kind]

    def _operations(self, kind: LayerKind) -> list[Operation]:
        fusion = self.trainer.constants.fusing
        return layer_operations(self.shape, self.load, self._split, self._precision, kind=kind, fusion=fusion)

    @cached_property
    def _of_layer(self) -> StageParameters:
        """Parameters of one layer on one device."""
        return stage_parameters(self.shape, self.layout.degrees, layers=1.0, is_first=False, is_last=False)

    def _parameters(self, kind: LayerKind) -> Real:
        return self._of_layer.layers + (self._of_layer.routed if kind.has_experts else 0.0)

    def _sharding_s(self, kind: LayerKind) -> tuple[Real, Real]:
        if self.layout.zero < 3:
            return 0.0, 0.0
        return sharding_s(self.trainer, self.layout, self._parameters(kind), float(self.trains_weights))

    def _ring_s(self, kind: LayerKind) -> Real:
        """Return what of a ring of keys and values attention does not hide, forward."""
        if not np.any(np.asarray(self.layout.cp) > 1):
            return 0.0
        step_s = ring_step_s(self.trainer, self.shape, self.layout, self.tokens)
        attention_s = self._time(kind).attention_s * self.trainer.attention_factor / self.layout.cp
        both_s = overlapped_s(attention_s, step_s, self.trainer.constants.interference)
        return (self.layout.cp - 1.0) * (both_s - attention_s)
