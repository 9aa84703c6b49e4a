"""Bytes that the forward pass leaves for the backward pass.

A layer is the list of what its operations keep (`saved_tensors`); recomputation keeps part of the list (`Kept`).

=================  =============================================================================
symbol             meaning
=================  =============================================================================
s, b               tokens of a sequence, sequences of a micro-batch
h, f               width of the residual stream and of a feed-forward block
a, t               heads; ranks of tensor parallelism
=================  =============================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

import numpy as np

from rpeg.perf.stage_parameters import Degrees
from rpeg.plan.plan import Pipeline, Recompute
from rpeg.shapes.model import Experts, LatentAttention, ModelShape
from rpeg.shapes.operations import Real

__all__ = [
    "Kept",
    "Operators",
    "Saved",
    "activation_bytes_per_layer",
    "in_flight",
    "layer_input_bytes",
    "logits_bytes",
    "saved_tensors",
]


class Kept(StrEnum):
    """Which activations of a layer stay until its backward pass."""

    ALL = "all"
    WITHOUT_SCORES = "without scores"
    """All but the matrices of attention: selective recomputation of Korthikanti et al."""
    PRODUCTS = "products"
    """Input, attention and every second matrix product: selective checkpointing by operation, as torchtitan has it."""
    INPUT = "input"
    """Only what goes into the layer: full recomputation."""
    OFFLOADED = "offloaded"
    """Not even that: the inputs of all layers but one are in the memory of the host."""

    @staticmethod
    def of(recompute: Recompute) -> Kept:
        """Return what a plan's recomputation keeps.

        >>> Kept.of(Recompute.FULL)
        <Kept.INPUT: 'input'>
        """
        return _KEPT_BY[recompute]


_KEPT_BY = {Recompute.NONE: Kept.ALL, Recompute.SELECTIVE: Kept.WITHOUT_SCORES, Recompute.FULL: Kept.INPUT}


@dataclass(frozen=True, slots=True)
class Operators:
    """Which operators a framework has; they decide what it must keep."""

    has_flash: bool = True
    """Whether attention runs without writing its matrices: flash attention."""
    has_dropout: bool = False
    keeps_gathered: bool = False
    """Whether inputs gathered over sequence-parallel ranks are kept whole, and not gathered again."""
    is_compiled: bool = True
    """Whether a compiler drops what checkpointing by operation would keep in vain: the last product of a layer."""


@dataclass(frozen=True, slots=True)
class Saved:
    """One tensor that a layer keeps for its backward pass."""

    name: str
    channels: float
    """Elements per token."""
    item_bytes: float = 2.0
    parts: float = 0.0
    """What tensor parallelism splits it into at most; 0: it is only split by sequence parallelism."""
    is_gathered: bool = False
    """Whether it exists whole on every tensor-parallel rank while it is used."""
    is_score: bool = False
    """Whether there are ``channels`` for every pair of tokens, and not for every token."""
    is_product: bool = False
    """Whether checkpointing by operation keeps it."""
    is_expert: bool = False
    """Whether it is of the rows that experts work on."""


def saved_tensors(shape: ModelShape, operators: Operators | None = None, *, has_experts: bool = False) -> list[Saved]:
    """Return what one layer keeps, with an ordinary feed-forward block or with experts.

    A GPT layer with dropout and no flash attention keeps ``34 h`` bytes per token and ``5 a`` bytes per pair of tokens
    (Korthikanti et al. 2022, 2205.05198); a gated layer with flash attention ``2 (8 h + 4 f)``, if no heads are shared.

    Example:
        >>> gpt = ModelShape("gpt", 96, 12288, 96, 96, 128, 49152, 51200, is_gated=False)
        >>> found = saved_tensors(gpt, Operators(has_flash=False, has_dropout=True))
        >>> sum(each.channels * each.item_bytes for each in found if not each.is_score) / 12288
        34.0
    """
    used = operators or Operators()
    found = [
        Saved("input", shape.hidden, is_product=True),
        *_attention(shape, used),
        *(Saved("output norm", shape.hidden) for _ in range(shape.norms_per_layer - 2)),
    ]
    if shape.norms_per_layer > 1:
        found += [Saved("middle", shape.hidden), Saved("ffn input", shape.hidden, is_gathered=True)]
    if has_experts and shape.experts is not None:
        found += _experts(shape, shape.experts)
    else:
        found += _ffn(shape, shape.ffn)
    if used.has_dropout:
        found += [Saved("attention mask", shape.hidden, 1.0), Saved("ffn mask", shape.hidden, 1.0)]
    return found


def activation_bytes_per_layer(
    shape: ModelShape,
    tokens: Real,
    degrees: Degrees | None = None,
    *,
    length_tokens: Real = 0.0,
    kept: Kept = Kept.ALL,
    operators: Operators | None = None,
    has_experts: bool | None = None,
) -> Real:
    """Return the bytes that one layer keeps of a micro-batch of ``tokens`` in sequences of ``length_tokens``.

    ``s b h (10 + 24 / t + 5 a s / (h t))`` for GPT, ``s b h 34 / t`` with sequence parallelism and selective
    recomputation, ``2 s b h`` with full recomputation (Korthikanti et al. 2022). ``tokens`` are those of one data
    parallel rank before context parallelism. With ``has_experts`` None it is the mean layer of the model.

    Example:
        >>> gpt = ModelShape("megatron-22B", 48, 6144, 64, 64, 96, 24576, 51200, is_gated=False)
        >>> plain = Operators(has_flash=False, has_dropout=True)
        >>> layer = activation_bytes_per_layer(gpt, 4 * 2048, Degrees(tp=8), length_tokens=2048, operators=plain)
        >>> float(layer) * 48 / 2**30
        59.25
    """
    ranks = degrees or Degrees()
    used = operators or Operators()
    if has_experts is None:
        share = shape.expert_layers / shape.layers
        kinds = [(False, 1.0 - share), (True, share)]
    else:
        kinds = [(has_experts, 1.0)]
    total: Real = 0.0
    for is_expert, weight in kinds:
        if weight:
            total = total + weight * _kept_bytes(_kept_alike(shape, used, is_expert, kept), ranks, length_tokens, used)
    if kept is Kept.PRODUCTS and not used.is_compiled:
        # The last product of the layer, before it is summed over ranks; nothing in the backward pass reads it.
        total = total + 2.0 * shape.hidden
    return total * tokens / ranks.cp


def layer_input_bytes(shape: ModelShape, tokens: Real, degrees: Degrees) -> Real:
    """Return the bytes of the hidden states of a micro-batch between two layers."""
    return _bytes_of(Saved("input", shape.hidden), degrees, 0.0, Operators()) * tokens / degrees.cp


def logits_bytes(tokens: Real, vocabulary: Real, tp: Real = 1.0, bytes_per_logit: float = 4.0) -> Real:
    """Return the bytes of logits: ``tokens * vocabulary / tp`` times the bytes of all copies that live at once.

    One float32 copy is 4 bytes. Eager cross-entropy holds 18: logits in bfloat16, the same in float32, their
    log-softmax, and the gradients of the two.

    Example:
        >>> logits_bytes(4 * 4096, 152064)
        9965666304.0
    """
    return bytes_per_logit * tokens * vocabulary / tp


def in_flight(
    pipeline: Pipeline, *, num_stages: Real, num_micro_batches: Real, virtual_stages: Real = 1.0, stage: Real = 0.0
) -> Real:
    """Return of how many micro-batches a stage keeps the activations of all of its layers at once.

    GPipe: all ``m``. One forward, one backward: ``min(p - i, m)`` on stage ``i``. Interleaved:
    ``((v - 1) p + 2 (p - i - 1) + 1) / v``, on the first stage ``p (1 + (p - 1) / (p v))`` (Korthikanti et al.).

    Example:
        >>> float(in_flight(Pipeline.ONE_F_ONE_B, num_stages=4, num_micro_batches=16))
        4.0
        >>> float(in_flight(Pipeline.INTERLEAVED, num_stages=8, num_micro_batches=16, virtual_stages=3)) / 8
        1.2916666666666667
    """
    p, m, v = np.asarray(num_stages, dtype=float), num_micro_batches, virtual_stages
    if pipeline is Pipeline.GPIPE:
        return np.where(p > 1, m, 1.0)[()]
    ahead = np.maximum(1.0, p - stage)
    if pipeline is Pipeline.INTERLEAVED:
        parts = (np.asarray(v) - 1.0) * p + 2.0 * (ahead - 1.0) + 1.0
        return np.where(p > 1, np.minimum(np.where(np.asarray(v) > 1, parts / v, ahead), m), 1.0)[()]
    return np.minimum(ahead, m)


def _attention(shape: ModelShape, used: Operators) -> Iterator[Saved]:
    """Yield what attention keeps, from what goes into its first product to what goes into its last."""
    hidden, heads = float(shape.hidden), float(shape.heads)
    yield Saved("attention input", hidden, is_gathered=True)
    if shape.latent is not None:
        yield from _latent(shape, shape.latent)
        value = float(shape.latent.value_size) * heads
    else:
        value, kv = heads * shape.head_size, float(shape.kv_heads * shape.head_size)
        yield Saved("queries", value, parts=heads, is_product=True)
        yield Saved("keys", kv, parts=shape.kv_heads)
        yield Saved("values", kv, parts=shape.kv_heads, is_product=True)
        if shape.has_qk_norm:
            yield Saved("queries before norm", value, parts=heads)
            yield Saved("keys before norm", kv, parts=shape.kv_heads)
    if shape.has_attention_gate:
        yield Saved("gate of attention", 2.0 * value, parts=heads)
    yield Saved("attention output", value, parts=heads, is_product=True)
    if used.has_flash:
        yield Saved("sums of exponentials", heads, 4.0, parts=heads, is_product=True)
    else:
        yield Saved("scores", heads, 2.0, parts=heads, is_score=True)
        if used.has_dropout:
            yield Saved("dropped scores", heads, 3.0, parts=heads, is_score=True)


def _latent(shape: ModelShape, latent: LatentAttention) -> Iterator[Saved]:
    """Yield what latent attention keeps: small vectors before and after their norms, then whole heads."""
    heads, size = float(shape.heads), float(latent.nope_size + latent.rope_size)
    small = (latent.q_rank or 0.0) + latent.kv_rank
    yield Saved("latent vectors", 2.0 * small + latent.rope_size)
    yield Saved("queries", heads * size, parts=heads, is_product=True)
    yield Saved("keys", heads * size, parts=heads)
    yield Saved("values", heads * latent.value_size, parts=heads, is_product=True)


def _ffn(shape: ModelShape, width: float) -> Iterator[Saved]:
    """Yield what a feed-forward block keeps behind its input."""
    yield Saved("ffn before activation", width, parts=width, is_product=True)
    if shape.is_gated:
        yield Saved("ffn gated", width, parts=width)
        yield Saved("ffn activated", width, parts=width)
    yield Saved("ffn product", width, parts=width)


def _experts(shape: ModelShape, experts: Experts) -> Iterator[Saved]:
    """Yield what a block of experts keeps: rows are copied to each expert that they visit, and back."""
    yield Saved("router", experts.count, 4.0)
    rows = float(experts.active * shape.hidden)
    yield Saved("rows to experts", rows, is_product=True)
    for each in _ffn(shape, float(experts.active * experts.ffn)):
        yield Saved(f"experts {each.name}", each.channels, is_expert=True)
    yield Saved("rows from experts", rows)
    if experts.shared_ffn:
        for each in _ffn(shape, float(experts.shared_ffn)):
            yield Saved(f"shared {each.name}", each.channels, parts=each.parts, is_product=each.is_product)


@lru_cache(maxsize=4096)
def _kept_alike(shape: ModelShape, used: Operators, has_experts: bool, kept: Kept) -> tuple[Saved, ...]:
    """Return what is kept of a layer, tensors that are split alike as one of so many bytes."""
    found = dict[Saved, float]()
    for saved in saved_tensors(shape, used, has_experts=has_experts):
        if _is_kept(saved, kept):
            alike = replace(saved, name="", channels=1.0, item_bytes=1.0, is_product=False)
            found[alike] = found.get(alike, 0.0) + saved.channels * saved.item_bytes
    return tuple(replace(alike, channels=num_bytes) for alike, num_bytes in found.items())


def _kept_bytes(found: tuple[Saved, ...], degrees: Degrees, length_tokens: Real, used: Operators) -> Real:
    """Return the bytes per token of what is kept of a layer."""
    return sum((_bytes_of(saved, degrees, length_tokens, used) for saved in found), start=0.0)


def _is_kept(saved: Saved, kept: Kept) -> bool:
    match kept:
        case Kept.ALL:
            return True
        case Kept.WITHOUT_SCORES:
            return not saved.is_score
        case Kept.PRODUCTS:
            return saved.is_product
        case Kept.INPUT:
            return saved.name == "input"
        case Kept.OFFLOADED:
            return False


def _bytes_of(saved: Saved, degrees: Degrees, length_tokens: Real, used: Operators) -> Real:
    """Return the bytes per token on one rank."""
    num_bytes = saved.channels * saved.item_bytes * (length_tokens if saved.is_score else 1.0)
    if saved.parts:
        return num_bytes / np.minimum(degrees.tp, saved.parts)
    if saved.is_expert and not degrees.is_sequence_parallel:
        return num_bytes / degrees.experts_tp
    if degrees.is_sequence_parallel and not (saved.is_gathered and used.keeps_gathered):
        return num_bytes / degrees.tp
    return num_bytes
