"""The operations of the two halves of a layer, attention and feed-forward, on one device."""

from __future__ import annotations

import numpy as np

from rpeg.perf.attention import Heads
from rpeg.perf.elementwise import Fusion, passes
from rpeg.perf.load import Load, Phase, Precision, Split
from rpeg.perf.operations import Attention, Operation, Product, Stream
from rpeg.shapes.model import Experts, LatentAttention, LinearAttention, ModelShape
from rpeg.shapes.operations import Real

__all__ = ["attention_block", "expert_block", "ffn_block", "linear_block", "touched_experts"]
_STATE_ITEM_BYTES = 4.0
"""States of linear attention are fp32."""


def attention_block(
    shape: ModelShape, load: Load, split: Split, precision: Precision, *, fusion: Fusion, window: float | None = None
) -> list[Operation]:
    """Return the operations from the norm before attention to the output projection."""
    if shape.latent is not None:
        return _latent_block(shape, shape.latent, load, split, precision, fusion)
    tokens, dtype = load.tokens / split.cp, precision.products
    heads, kv_heads = _heads(shape, split)
    q_size, kv_size = heads * shape.head_size, kv_heads * shape.head_size
    operations: list[Operation] = [
        *_norms(shape, tokens, split, precision, fusion, first=True),
        Product("qkv", tokens, (1.0 + shape.has_attention_gate) * q_size + 2.0 * kv_size, shape.hidden, dtype),
    ]
    if not shape.positions:
        operations.append(_stream("rotary", "rotary", tokens * (q_size + kv_size), precision, fusion))
    if shape.has_qk_norm:
        operations.append(_stream("qk norm", "norm", tokens * (q_size + kv_size) / 2.0, precision, fusion))
    size = float(shape.head_size)
    operations.append(_attention(load, split, precision, Heads(heads, kv_heads, size, size, window=window)))
    if shape.has_attention_gate:
        operations.append(_stream("gate", "activation", tokens * q_size, precision, fusion))
    operations.append(Product("output", tokens, shape.hidden, q_size, dtype))
    return operations


def _latent_block(
    shape: ModelShape, latent: LatentAttention, load: Load, split: Split, precision: Precision, fusion: Fusion
) -> list[Operation]:
    """Return the block with keys and values expanded in prefill, and absorbed into the queries in decoding."""
    tokens, dtype, heads = load.tokens / split.cp, precision.products, shape.heads / split.tp
    qk_size, kept = latent.nope_size + latent.rope_size, latent.kv_rank + latent.rope_size
    queries = heads * qk_size
    down = kept + (latent.q_rank or 0.0)
    operations: list[Operation] = [
        *_norms(shape, tokens, split, precision, fusion, first=True),
        # Down-projections are not divided over TP: every rank needs the whole latent vectors.
        Product("down", tokens, down, shape.hidden, dtype),
        _stream("latent norm", "norm", tokens * down / 2.0, precision, fusion),
        Product("queries", tokens, queries, latent.q_rank or shape.hidden, dtype),
        _stream("rotary", "rotary", tokens * (heads + 1.0) * latent.rope_size, precision, fusion),
    ]
    if load.phase is Phase.DECODE:
        operations += [
            Product("absorb keys", tokens * heads, latent.kv_rank, latent.nope_size, precision.hidden, heads),
            _attention(load, split, precision, Heads(heads, 1.0, kept, latent.kv_rank, is_shared=True)),
            Product("absorb values", tokens * heads, latent.value_size, latent.kv_rank, precision.hidden, heads),
        ]
    else:
        expanded = heads * (latent.nope_size + latent.value_size)
        operations += [
            Product("expand", load.context_tokens * load.rows / split.cp, expanded, latent.kv_rank, dtype),
            _attention(load, split, precision, Heads(heads, heads, qk_size, latent.value_size)),
        ]
    operations.append(Product("output", tokens, shape.hidden, heads * latent.value_size, dtype))
    return operations


def linear_block(
    shape: ModelShape, linear: LinearAttention, load: Load, split: Split, precision: Precision, *, fusion: Fusion
) -> list[Operation]:
    """Return the operations of a layer that keeps a state of fixed size instead of keys and values.

    In prefill the state lives on the chip for a chunk of tokens at a time, which makes products of it; in decoding it
    is read and written whole for every token.
    """
    tokens, dtype = load.tokens / split.cp, precision.products
    keys, values = linear.key_heads * linear.key_size / split.tp, linear.value_heads * linear.value_size / split.tp
    heads, state = linear.value_heads / split.tp, linear.key_size * linear.value_size
    if load.phase is Phase.DECODE:
        update: Operation = Stream("state", tokens * heads * state * 2.0 * _STATE_ITEM_BYTES, 1)
    else:
        update = Product("state", tokens * heads, linear.value_size, 3.0 * linear.key_size, precision.hidden, heads)
    return [
        *_norms(shape, tokens, split, precision, fusion, first=True),
        Product("qkv", tokens, 2.0 * keys + 2.0 * values + 2.0 * heads, shape.hidden, dtype),
        _stream("convolution", "rotary", tokens * (2.0 * keys + values), precision, fusion),
        update,
        _stream("gate", "activation", tokens * values, precision, fusion),
        Product("output", tokens, shape.hidden, values, dtype),
    ]


def ffn_block(
    shape: ModelShape, load: Load, split: Split, precision: Precision, *, fusion: Fusion, width: float | None = None
) -> list[Operation]:
    """Return the operations of a dense feed-forward block of ``width``, the model's own where None."""
    tokens, ffn = load.tokens / split.cp, (shape.ffn if width is None else width) / split.tp
    matrices = 2.0 if shape.is_gated else 1.0
    return [
        *_norms(shape, tokens, split, precision, fusion),
        Product("up", tokens, matrices * ffn, shape.hidden, precision.products),
        _stream("activation", "activation", tokens * ffn, precision, fusion),
        Product("down", tokens, shape.hidden, ffn, precision.products),
    ]


def expert_block(
    shape: ModelShape, experts: Experts, load: Load, split: Split, precision: Precision, *, fusion: Fusion
) -> list[Operation]:
    """Return the operations of a block of experts: router, permutation, routed and shared experts."""
    tokens, dtype = load.tokens / split.cp, precision.experts or precision.products
    width, matrices = experts.ffn / split.experts_tp, 2.0 if shape.is_gated else 1.0
    balance = np.where(np.asarray(split.ep) > 1, split.imbalance, 1.0)[()]
    pairs = tokens * experts.active * split.experts_tp / split.tp * balance
    touched = touched_experts(experts, tokens, split)
    operations: list[Operation] = [
        *_norms(shape, tokens, split, precision, fusion),
        Product("router", tokens, experts.count, shape.hidden, precision.hidden),
        Stream("top-k", tokens * experts.count * 4.0, 2),
        Stream("permute", 2.0 * pairs * shape.hidden * precision.hidden_bytes, 2),
        Product("experts up", pairs, matrices * width, shape.hidden, dtype, touched),
        _stream("activation", "activation", pairs * width, precision, fusion),
        Product("experts down", pairs, shape.hidden, width, dtype, touched),
        Stream("combine", (pairs + tokens) * shape.hidden * precision.hidden_bytes, 1),
    ]
    if experts.shared_ffn:
        shared = ffn_block(shape, load, split, precision, fusion=fusion, width=experts.shared_ffn)
        operations += shared[len(_norms(shape, tokens, split, precision, fusion)) :]
    return operations


def touched_experts(experts: Experts, tokens: Real, split: Split) -> Real:
    """Return how many of a rank's experts get a token at all, when tokens choose at random.

    ``E/ep * (1 - (1 - k/E)^T)`` with the tokens ``T`` of all ranks that share the experts.

    >>> float(touched_experts(Experts(128, 8, 768), 1.0, Split()))
    8.0
    >>> round(float(touched_experts(Experts(128, 8, 768), 64.0, Split())), 1)
    125.9
    """
    sharing = tokens * split.experts_tp / split.tp * split.ep
    missed = (1.0 - experts.active / experts.count) ** np.maximum(sharing, 1.0)
    return experts.count / split.ep * (1.0 - missed)


def _attention(load: Load, split: Split, precision: Precision, heads: Heads) -> Attention:
    """Return the attention of a load; CP divides the queries (prefill) or the cache (decoding) evenly."""
    is_decode, length = load.phase is Phase.DECODE, load.tokens / load.rows
    # With CP every rank compares its share of the queries with all keys: as many pairs as with fewer rows.
    rows = load.rows if is_decode else load.rows / split.cp
    context = load.context_tokens / split.cp if is_decode else load.context_tokens
    return Attention("attention", rows, length, context, heads, is_decode, precision.hidden, precision.cache)


def _heads(shape: ModelShape, split: Split) -> tuple[Real, Real]:
    """Return the heads and KV heads of one rank; fewer KV heads than ranks are repeated."""
    return shape.heads / split.tp, np.maximum(shape.kv_heads / split.tp, 1.0)


def _norms(
    shape: ModelShape, tokens: Real, split: Split, precision: Precision, fusion: Fusion, *, first: bool = False
) -> list[Operation]:
    """Return the norms of half a layer; of an odd number, the first half has one more."""
    local = np.where(split.is_sequence_parallel, tokens / split.tp, tokens)[()]
    count = (shape.norms_per_layer + first) // 2
    return [_stream("norm", "norm", local * shape.hidden, precision, fusion)] * count


def _stream(name: str, what: str, values: Real, precision: Precision, fusion: Fusion) -> Stream:
    moved, launches = passes(what, fusion)
    return Stream(name, moved * values * precision.hidden_bytes, launches)
