"""Seconds of one layer, of the embedding and of the head on one device; communication is not here but its bytes are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rpeg.perf.blocks import attention_block, expert_block, ffn_block, linear_block
from rpeg.perf.elementwise import Fusion, passes
from rpeg.perf.kernels import Kernels
from rpeg.perf.load import Load, Precision, Split
from rpeg.perf.operations import Attention, Operation, Product, Stream
from rpeg.shapes.model import ModelShape
from rpeg.shapes.operations import Real

__all__ = [
    "LayerKind",
    "LayerTime",
    "backward_time",
    "embedding_time",
    "ep_bytes",
    "head_backward_time",
    "head_time",
    "layer_kinds",
    "layer_operations",
    "layer_time",
    "tp_bytes",
]
_LOGIT_BYTES = 4.0
"""Logits are fp32 whatever the products are."""


@dataclass(frozen=True, slots=True)
class LayerKind:
    """In what the layers of one model differ."""

    has_experts: bool = False
    has_window: bool = False
    is_linear: bool = False
    """Whether it keeps a state of fixed size instead of keys and values."""


@lru_cache(maxsize=1024)
def layer_kinds(shape: ModelShape) -> tuple[tuple[LayerKind, int], ...]:
    """Return the kinds of layers of a model with the number of each.

    >>> from rpeg.shapes.catalog import shape_of
    >>> [(kind.has_experts, count) for kind, count in layer_kinds(shape_of("DeepSeek-V3"))]
    [(False, 3), (True, 58)]
    """
    return tuple(Counter(_kind_of(shape, layer) for layer in range(shape.layers)).items())


def _kind_of(shape: ModelShape, layer: int) -> LayerKind:
    experts, linear = shape.experts, shape.linear
    has_experts = experts is not None and layer >= experts.dense_layers
    if has_experts and experts is not None:
        has_experts = _is_last_of(layer - experts.dense_layers, experts.every)
    is_linear = linear is not None and not _is_last_of(layer, linear.full_every)
    has_window = shape.window is not None and not _is_last_of(layer, shape.global_every)
    return LayerKind(has_experts, has_window and not is_linear, is_linear)


def _is_last_of(layer: int, every: int) -> bool:
    """Return whether a layer is the last of ``every`` ones in a row; with 0 none is."""
    return every > 0 and layer % every == every - 1


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Seconds of a pass on one device; sums and multiples are such times again."""

    gemm_s: Real = 0.0
    attention_s: Real = 0.0
    elementwise_s: Real = 0.0
    host_s: Real = 0.0
    """Seconds of the host for launches; 0 where graphs are captured."""
    launches: float = 0.0
    flops: Real = 0.0

    @property
    def device_s(self) -> Real:
        """Seconds that the device is busy."""
        return self.gemm_s + self.attention_s + self.elementwise_s

    @property
    def total_s(self) -> Real:
        """Seconds of the pass: the device, or the host where launching takes longer."""
        return np.maximum(self.device_s, self.host_s)

    def __add__(self, other: LayerTime) -> LayerTime:
        """Return the time of one after the other."""
        return LayerTime(
            self.gemm_s + other.gemm_s,
            self.attention_s + other.attention_s,
            self.elementwise_s + other.elementwise_s,
            self.host_s + other.host_s,
            self.launches + other.launches,
            self.flops + other.flops,
        )

    def __mul__(self, times: float) -> LayerTime:
        """Return the time of ``times`` repetitions."""
        return LayerTime(
            self.gemm_s * times,
            self.attention_s * times,
            self.elementwise_s * times,
            self.host_s * times,
            self.launches * times,
            self.flops * times,
        )


def layer_operations(
    shape: ModelShape,
    load: Load,
    split: Split,
    precision: Precision,
    *,
    kind: LayerKind,
    fusion: Fusion = Fusion.FUSED,
) -> list[Operation]:
    """Return the operations of one layer of a kind, in order."""
    if kind.is_linear and shape.linear is not None:
        first = linear_block(shape, shape.linear, load, split, precision, fusion=fusion)
    else:
        window = float(shape.window) if kind.has_window and shape.window is not None else None
        first = attention_block(shape, load, split, precision, fusion=fusion, window=window)
    if kind.has_experts and shape.experts is not None:
        return first + expert_block(shape, shape.experts, load, split, precision, fusion=fusion)
    return first + ffn_block(shape, load, split, precision, fusion=fusion)


def layer_time(
    shape: ModelShape,
    kernels: Kernels,
    load: Load,
    split: Split,
    precision: Precision | None = None,
    *,
    kind: LayerKind | None = None,
    fusion: Fusion = Fusion.FUSED,
) -> LayerTime:
    """Return the forward seconds of one layer of a kind, or of the mean layer of the model where None."""
    used = precision or Precision()
    return _mean(
        shape,
        kind,
        lambda each: _forward(layer_operations(shape, load, split, used, kind=each, fusion=fusion), kernels),
    )


def backward_time(
    shape: ModelShape,
    kernels: Kernels,
    load: Load,
    split: Split,
    precision: Precision | None = None,
    *,
    kind: LayerKind | None = None,
    fusion: Fusion = Fusion.FUSED,
) -> LayerTime:
    """Return the backward seconds of one layer, without recomputation: gradients of inputs and of weights."""
    used = precision or Precision()
    return _mean(
        shape,
        kind,
        lambda each: _backward(layer_operations(shape, load, split, used, kind=each, fusion=fusion), kernels),
    )


def head_time(
    shape: ModelShape,
    kernels: Kernels,
    tokens: Real,
    split: Split,
    precision: Precision | None = None,
    *,
    fusion: Fusion = Fusion.FUSED,
    has_softmax: bool = True,
) -> LayerTime:
    """Return the seconds of the last norm, the logits of ``tokens`` in fp32, and their log-softmax."""
    return _forward(_head(shape, tokens, split, precision or Precision(), fusion, has_softmax), kernels)


def head_backward_time(
    shape: ModelShape,
    kernels: Kernels,
    tokens: Real,
    split: Split,
    precision: Precision | None = None,
    *,
    fusion: Fusion = Fusion.FUSED,
) -> LayerTime:
    """Return the seconds of the gradients of the log-softmax, the logits and the last norm."""
    return _backward(_head(shape, tokens, split, precision or Precision(), fusion, True), kernels)


def embedding_time(
    shape: ModelShape, kernels: Kernels, tokens: Real, split: Split, precision: Precision | None = None
) -> LayerTime:
    """Return the seconds of looking up the vectors of ``tokens``: one read and one write of each."""
    moved_bytes = 2.0 * tokens / split.cp * shape.hidden * (precision or Precision()).hidden_bytes
    return _forward([Stream("embedding", moved_bytes, 1)], kernels)


def tp_bytes(shape: ModelShape, load: Load, split: Split, precision: Precision | None = None) -> Real:
    """Return the bytes of the buffer of one TP all-reduce; a layer has two forward and two backward.

    ``tokens / cp · hidden · item``

    >>> from rpeg.shapes.catalog import shape_of
    >>> tp_bytes(shape_of("Llama-3.1-8B"), Load.prefill(1.0, 4096.0), Split(tp=8.0))
    33554432.0
    """
    return load.tokens / split.cp * shape.hidden * (precision or Precision()).hidden_bytes


def ep_bytes(shape: ModelShape, load: Load, split: Split, precision: Precision | None = None) -> Real:
    """Return the bytes of one rank's buffer in the all-to-all that sends tokens to experts; back it is as much.

    ``tokens / cp · active · expert_tp / tp · hidden · item``, 0 without experts.

    >>> from rpeg.shapes.catalog import shape_of
    >>> float(ep_bytes(shape_of("Qwen3-30B-A3B"), Load.prefill(1.0, 4096.0), Split(ep=8.0)))
    134217728.0
    """
    if shape.experts is None:
        return 0.0 * load.tokens
    pairs = load.tokens / split.cp * shape.experts.active * split.experts_tp / split.tp
    return pairs * shape.hidden * (precision or Precision()).hidden_bytes


def _head(
    shape: ModelShape, tokens: Real, split: Split, precision: Precision, fusion: Fusion, has_softmax: bool
) -> list[Operation]:
    local, vocabulary = tokens / split.cp, shape.vocabulary / split.tp
    moved, launches = passes("norm", fusion)
    operations: list[Operation] = [
        Stream("norm", moved * local * shape.hidden * precision.hidden_bytes, launches),
        Product("logits", local, vocabulary, shape.hidden, precision.head),
    ]
    if has_softmax:
        moved, launches = passes("softmax", fusion)
        operations.append(Stream("log-softmax", moved * local * vocabulary * _LOGIT_BYTES, launches))
    return operations


def _mean(shape: ModelShape, kind: LayerKind | None, time_of: Callable[[LayerKind], LayerTime]) -> LayerTime:
    """Return the time of a layer of a kind, or of the mean layer."""
    if kind is not None:
        return time_of(kind)
    total = LayerTime()
    for each, count in layer_kinds(shape):
        total = total + time_of(each) * (count / shape.layers)
    return total


def _forward(operations: list[Operation], kernels: Kernels) -> LayerTime:
    launches = sum(each.launches for each in operations)
    flops = sum((each.flops for each in operations), start=0.0)
    return _time(operations, [each.forward_s(kernels) for each in operations], launches, flops, kernels)


def _backward(operations: list[Operation], kernels: Kernels) -> LayerTime:
    launches = sum(each.backward_launches for each in operations)
    flops = sum((each.flops * each.backward_flops for each in operations), start=0.0)
    return _time(operations, [each.backward_s(kernels) for each in operations], launches, flops, kernels)


def _time(
    operations: list[Operation], seconds: list[Real], launches: float, flops: Real, kernels: Kernels
) -> LayerTime:
    by_kind: dict[type, Real] = {Product: 0.0, Attention: 0.0, Stream: 0.0}
    for operation, each in zip(operations, seconds, strict=True):
        by_kind[type(operation)] = by_kind[type(operation)] + each
    host_s = 0.0 if kernels.is_captured else launches * kernels.launch_s
    return LayerTime(by_kind[Product], by_kind[Attention], by_kind[Stream], host_s, launches, flops)
