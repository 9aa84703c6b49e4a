"""What the weights of a model are, tensor by tensor, and how many parameters that makes in every place.

Dimensions are named (`rpeg.shapes.tensor`), so that a layout splits them by name: ``layers`` over a pipeline;
``heads``, ``kv_heads``, ``ffn``, ``shared_ffn`` and ``vocabulary`` by tensor parallelism; ``experts`` and
``expert_ffn`` by expert parallelism. Ordinary feed-forward blocks at the front of a mixture of experts are in
``dense_layers`` of the first stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from rpeg.shapes.model import Experts, LatentAttention, ModelShape, Norm
from rpeg.shapes.tensor import LAYERS, End, Tensor

__all__ = [
    "active_parameters",
    "attention_parameters",
    "dense_layer_parameters",
    "embedding_parameters",
    "expert_layer_parameters",
    "expert_parameters",
    "head_parameters",
    "linear_attention_parameters",
    "num_parameters",
    "tensors",
]

_Parts = tuple[tuple[str, int], ...]


@lru_cache(maxsize=1024)
def tensors(shape: ModelShape) -> tuple[Tensor, ...]:
    """Return every weight of a model; a tied head is there once.

    >>> from rpeg.shapes.catalog import shape_of
    >>> query = tensors(shape_of("Qwen2.5-7B"))[0]
    >>> query.name, query.parts
    ('q', (('layers', 28), ('heads', 28), ('head_size', 128), ('hidden', 3584)))
    """
    found = (*_attention(shape), *_linear(shape), *_norms(shape), *_dense(shape), *_experts(shape), *_ends(shape))
    return tuple(tensor for tensor in found if tensor.num_elements)


@lru_cache(maxsize=1024)
def num_parameters(shape: ModelShape) -> int:
    """Return the parameters of a model; a tied head is counted once.

    >>> from rpeg.shapes.catalog import shape_of
    >>> f"{num_parameters(shape_of('Llama-3.1-8B')):,}"
    '8,030,261,248'
    """
    return _sum(tensors(shape))


@lru_cache(maxsize=1024)
def active_parameters(shape: ModelShape) -> int:
    """Return the parameters that one token uses: all but the routed experts it does not visit.

    >>> from rpeg.shapes.catalog import shape_of
    >>> f"{active_parameters(shape_of('Qwen3-30B-A3B')):,}"
    '3,353,032,704'
    """
    if shape.experts is None:
        return num_parameters(shape)
    idle = shape.experts.count - shape.experts.active
    return num_parameters(shape) - shape.expert_layers * idle * expert_parameters(shape)


@lru_cache(maxsize=1024)
def attention_parameters(shape: ModelShape) -> int:
    """Return the parameters of the attention of one layer that keeps keys and values."""
    return _sum(_attention(replace(shape, layers=1, linear=None, experts=None)))


@lru_cache(maxsize=1024)
def linear_attention_parameters(shape: ModelShape) -> int:
    """Return the parameters of what one layer has instead of attention; 0 where no layer has that."""
    return _sum(_linear(shape)) // shape.linear_layers if shape.linear_layers else 0


@lru_cache(maxsize=1024)
def dense_layer_parameters(shape: ModelShape) -> int:
    """Return the parameters of one layer with attention and an ordinary feed-forward block.

    >>> from rpeg.shapes.catalog import shape_of
    >>> f"{dense_layer_parameters(shape_of('Llama-3.1-8B')):,}"
    '218,112,000'
    """
    one = replace(shape, layers=1, linear=None, experts=None)
    return _sum((*_attention(one), *_norms(one), *_dense(one)))


@lru_cache(maxsize=1024)
def expert_layer_parameters(shape: ModelShape) -> int:
    """Return the parameters of one layer with attention and a mixture of experts; 0 where no layer has experts.

    >>> from rpeg.shapes.catalog import shape_of
    >>> f"{expert_layer_parameters(shape_of('Qwen3-30B-A3B')):,}"
    '623,120,640'
    """
    if shape.experts is None:
        return 0
    one = replace(shape, layers=1, linear=None, experts=replace(shape.experts, dense_layers=0, every=1))
    return _sum((*_attention(one), *_norms(one), *_experts(one)))


def expert_parameters(shape: ModelShape) -> int:
    """Return the parameters of one routed expert of one layer; 0 where there are none.

    >>> from rpeg.shapes.catalog import shape_of
    >>> expert_parameters(shape_of("Qwen3-30B-A3B")) == 3 * 2048 * 768
    True
    """
    if shape.experts is None:
        return 0
    matrices, biases = (3 if shape.is_gated else 2) * shape.hidden * shape.experts.ffn, 0
    if shape.experts.has_bias:
        biases = (2 if shape.is_gated else 1) * shape.experts.ffn + shape.hidden
    return matrices + biases


@lru_cache(maxsize=1024)
def embedding_parameters(shape: ModelShape) -> int:
    """Return the parameters before the first layer: embeddings of tokens and positions, and their norm."""
    return _sum(tensor for tensor in _ends(shape) if tensor.end is not End.LAST)


@lru_cache(maxsize=1024)
def head_parameters(shape: ModelShape) -> int:
    """Return the parameters after the last layer: a norm, and the head where it is not the embedding."""
    return _sum(tensor for tensor in _ends(shape) if tensor.end is End.LAST)


def _sum(found: Iterator[Tensor] | tuple[Tensor, ...]) -> int:
    return sum(tensor.num_elements for tensor in found)


def _attention(shape: ModelShape) -> Iterator[Tensor]:
    layers, hidden = (LAYERS, shape.layers - shape.linear_layers), ("hidden", shape.hidden)
    q, kv = _heads("heads", shape.heads, shape.head_size), _heads("kv_heads", shape.kv_heads, shape.head_size)
    value: _Parts = q
    if shape.latent is None:
        for name, out in (("q", q), ("k", kv), ("v", kv)):
            yield from _linear_map(name, (layers, *out, hidden), shape.has_qkv_bias, (layers, *out))
    else:
        value = ("heads", shape.heads), ("value_size", shape.latent.value_size)
        yield from _latent(shape, shape.latent, layers, hidden)
    if shape.has_attention_gate:
        yield from _linear_map("attention.gate", (layers, *q, hidden), shape.has_qkv_bias, (layers, *q))
    yield from _linear_map("o", (layers, hidden, *value), shape.has_output_bias, (layers, hidden))
    if shape.has_qk_norm:
        yield Tensor("q.norm", (layers, *(q if shape.is_qk_norm_wide else q[1:])))
        yield Tensor("k.norm", (layers, *(kv if shape.is_qk_norm_wide else kv[1:])))
    if shape.has_sinks:
        yield Tensor("sinks", (layers, q[0]))


def _heads(part: str, count: int, size: int) -> _Parts:
    return ((part, count), ("head_size", size))


def _linear_map(name: str, parts: _Parts, has_bias: bool, bias: _Parts, end: End | None = None) -> Iterator[Tensor]:
    yield Tensor(name, parts, end)
    if has_bias:
        yield Tensor(f"{name}.bias", bias, end)


def _latent(
    shape: ModelShape, latent: LatentAttention, layers: tuple[str, int], hidden: tuple[str, int]
) -> Iterator[Tensor]:
    heads, size = ("heads", shape.heads), ("qk_size", latent.nope_size + latent.rope_size)
    if latent.q_rank is None:
        yield Tensor("q", (layers, heads, size, hidden))
    else:
        rank = ("q_rank", latent.q_rank)
        yield from _linear_map("q.down", (layers, rank, hidden), shape.has_qkv_bias, (layers, rank))
        yield Tensor("q.norm", (layers, rank))
        yield Tensor("q.up", (layers, heads, size, rank))
    kept, rank = ("kept_size", latent.kv_rank + latent.rope_size), ("kv_rank", latent.kv_rank)
    yield from _linear_map("kv.down", (layers, kept, hidden), shape.has_qkv_bias, (layers, kept))
    yield Tensor("kv.norm", (layers, rank))
    yield Tensor("kv.up", (layers, heads, ("kv_size", latent.nope_size + latent.value_size), rank))


def _linear(shape: ModelShape) -> Iterator[Tensor]:
    if shape.linear is None:
        return
    layers, hidden = (LAYERS, shape.linear_layers), ("hidden", shape.hidden)
    keys = ("key_heads", shape.linear.key_heads), ("key_size", shape.linear.key_size)
    values = ("value_heads", shape.linear.value_heads), ("value_size", shape.linear.value_size)
    yield Tensor("linear.qk", (layers, ("pair", 2), *keys, hidden))
    yield Tensor("linear.v_gate", (layers, ("pair", 2), *values, hidden))
    yield Tensor("linear.rates", (layers, ("pair", 2), values[0], hidden))
    yield Tensor("linear.qk.convolution", (layers, ("pair", 2), *keys, ("taps", shape.linear.convolution)))
    yield Tensor("linear.v.convolution", (layers, *values, ("taps", shape.linear.convolution)))
    yield Tensor("linear.decay", (layers, ("pair", 2), values[0]))
    yield Tensor("linear.norm", (layers, values[1]))
    yield Tensor("linear.o", (layers, hidden, *values))


def _norms(shape: ModelShape) -> Iterator[Tensor]:
    parts = ((LAYERS, shape.layers), ("hidden", shape.hidden))
    for number in range(1, shape.norms_per_layer + 1):
        yield from _norm(f"norm{number}", parts, shape.norm, None)


def _norm(name: str, parts: _Parts, norm: Norm, end: End | None) -> Iterator[Tensor]:
    yield from _linear_map(name, parts, norm is Norm.LAYER, parts, end)


def _dense(shape: ModelShape) -> Iterator[Tensor]:
    count = shape.layers - shape.expert_layers
    if not count:
        return
    is_first = shape.experts is not None and shape.experts.every == 1  # else they are spread over all stages
    layers = ("dense_layers", count) if is_first else (LAYERS, count)
    yield from _block("", (layers,), ("ffn", shape.ffn), shape, shape.has_ffn_bias, End.FIRST if is_first else None)


def _block(
    prefix: str, layers: _Parts, ffn: tuple[str, int], shape: ModelShape, has_bias: bool, end: End | None = None
) -> Iterator[Tensor]:
    """Yield the matrices of a feed-forward block."""
    hidden = ("hidden", shape.hidden)
    for name in ("gate", "up") if shape.is_gated else ("up",):
        yield from _linear_map(f"{prefix}{name}", (*layers, ffn, hidden), has_bias, (*layers, ffn), end)
    yield from _linear_map(f"{prefix}down", (*layers, hidden, ffn), has_bias, (*layers, hidden), end)


def _experts(shape: ModelShape) -> Iterator[Tensor]:
    experts: Experts | None = shape.experts
    if experts is None:
        return
    layers, hidden, count = (LAYERS, shape.expert_layers), ("hidden", shape.hidden), ("experts", experts.count)
    routes = "routes", experts.count  # as many, but every rank chooses among all of them
    yield from _linear_map("router", (layers, routes, hidden), experts.has_bias, (layers, routes))
    if experts.has_correction:
        yield Tensor("router.correction", (layers, routes))
    yield from _block("experts.", (layers, count), ("expert_ffn", experts.ffn), shape, experts.has_bias)
    if experts.shared_ffn:
        yield from _block("shared.", (layers,), ("shared_ffn", experts.shared_ffn), shape, shape.has_ffn_bias)
    if experts.has_shared_gate:
        yield Tensor("shared.weight", (layers, hidden))


def _ends(shape: ModelShape) -> Iterator[Tensor]:
    hidden, rows = ("hidden", shape.hidden), ("vocabulary", shape.vocabulary)
    yield Tensor("embedding", (rows, hidden), End.BOTH if shape.is_tied else End.FIRST)
    if shape.positions:
        yield Tensor("positions", (("positions", shape.positions), hidden), End.FIRST)
    if shape.has_embedding_norm:
        yield from _norm("embedding.norm", (hidden,), shape.norm, End.FIRST)
    yield from _norm("norm", (hidden,), shape.norm, End.LAST)
    if not shape.is_tied:
        yield Tensor("head", (rows, hidden), End.LAST)
    if shape.has_head_bias:
        yield Tensor("head.bias", (rows,), End.LAST)
