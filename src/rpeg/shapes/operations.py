"""Operations of a model per token, and what it keeps of a token: no machine, no split.

A product of an ``m`` by ``k`` and a ``k`` by ``n`` matrix is ``2 m n k`` operations, so one token costs two operations
for every parameter of a matrix that it goes through. Attention comes on top: a query is compared with every key that it
sees, and the values are added up, ``2 + 2`` operations for every channel of every head.

Counts of tokens may be numbers or numpy arrays.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rpeg.shapes.model import ModelShape
from rpeg.shapes.parameters import active_parameters, tensors

__all__ = [
    "FlopsForm",
    "Real",
    "absorbed_attention_flops",
    "attention_flops",
    "causal_flops_per_token",
    "flops_per_token",
    "kv_bytes",
    "kv_bytes_per_token",
    "linear_attention_flops",
    "matrix_flops_per_token",
    "mean_context_tokens",
    "model_flops_per_token",
    "state_bytes",
]

Real = float | npt.NDArray[np.float64]
"""A number, or many at once."""


class FlopsForm(StrEnum):
    """What a published table calls the operations of training on one token of a sequence."""

    CAUSAL = "causal"
    """Three times the forward pass; only keys that a token may see, only experts that it visits (NeMo, this room)."""
    PARAMETERS = "parameters"
    """``6 N + 12 layers · heads · head_size · length``, not halved: PaLM appendix B (2204.02311), llm-foundry."""
    MEGATRON = "megatron"
    """``72 layers · hidden² (1 + length / 6 hidden + vocabulary / 12 layers hidden)``: Narayanan 2021 (2104.04473)."""
    MEGATRON_RECOMPUTED = "megatron recomputed"
    """``96 layers · hidden² (1 + length / 6 hidden + vocabulary / 16 layers hidden)``: the same, every layer twice."""


@lru_cache(maxsize=1024)
def matrix_flops_per_token(shape: ModelShape, has_head: bool = True) -> float:
    """Return the operations of all matrix products for one token: two per parameter of a matrix that it goes through.

    Of the experts only those that a token visits count, embeddings are looked up, and the head is a product also where
    it is tied.

    >>> from rpeg.shapes.catalog import shape_of
    >>> f"{matrix_flops_per_token(shape_of('Llama-3.1-8B')) / 1e9:.3f}"
    '15.009'
    """
    found = 2.0 * shape.hidden * shape.vocabulary * has_head
    for tensor in tensors(shape):
        parts = dict(tensor.parts)
        if "vocabulary" in parts or "positions" in parts or len(tensor.parts) < 3 or _is_vector(tensor.name):
            continue
        share = shape.experts.active / shape.experts.count if shape.experts and "expert_ffn" in parts else 1.0
        found += 2.0 * tensor.num_elements * share
    return found


def _is_vector(name: str) -> bool:
    """Return whether a tensor is one per channel: a norm, a bias, a decay."""
    return name.endswith((".bias", ".norm", ".correction", ".convolution", ".decay"))


def mean_context_tokens(length_tokens: Real, window: int | None = None) -> Real:
    """Return how many keys a token of a causal sequence sees on average, itself among them.

    ``(length + 1) / 2``; with a window, the tokens after the first ``window`` see just so many.

    >>> mean_context_tokens(4096.0), float(mean_context_tokens(4096.0, window=128))
    (2048.5, 126.015625)
    """
    if window is None:
        return (length_tokens + 1) / 2
    inside = np.minimum(length_tokens, window)
    return (inside * (inside + 1) / 2 + (length_tokens - inside) * window) / length_tokens


def attention_flops(shape: ModelShape, context_tokens: Real) -> Real:
    """Return the operations of one layer's attention for one token that sees ``context_tokens`` keys.

    ``2 · heads · (key size + value size) · context``: 4 heads head_size context, where both have one size.

    >>> from rpeg.shapes.catalog import shape_of
    >>> attention_flops(shape_of("Llama-3.1-8B"), 1000.0)
    16384000.0
    """
    if shape.latent is None:
        return 4.0 * shape.heads * shape.head_size * context_tokens
    sizes = shape.latent.nope_size + shape.latent.rope_size + shape.latent.value_size
    return 2.0 * shape.heads * sizes * context_tokens


def absorbed_attention_flops(shape: ModelShape, context_tokens: Real) -> Real:
    """Return the same for latent attention that stays in the small vectors, as in decoding; else `attention_flops`.

    Queries are brought to the rank of what is kept: ``2 · heads · (2 kv_rank + rope_size) · context``.

    >>> from rpeg.shapes.catalog import shape_of
    >>> absorbed_attention_flops(shape_of("DeepSeek-V3"), 1000.0) == 2 * 128 * (2 * 512 + 64) * 1000
    True
    """
    if shape.latent is None:
        return attention_flops(shape, context_tokens)
    return 2.0 * shape.heads * (2 * shape.latent.kv_rank + shape.latent.rope_size) * context_tokens


def linear_attention_flops(shape: ModelShape) -> float:
    """Return the operations of one layer that keeps a state instead, for one token, beside its matrix products.

    The state is read with the key, changed, and read with the query: 6 for each of its elements; and the convolution.

    >>> from rpeg.shapes.catalog import shape_of
    >>> linear_attention_flops(shape_of("Qwen3-Next-80B-A3B")) == 6 * 32 * 128 * 128 + 2 * 4 * (2 * 2048 + 4096)
    True
    """
    linear = shape.linear
    if linear is None:
        return 0.0
    channels = 2 * linear.key_heads * linear.key_size + linear.value_heads * linear.value_size
    return 6.0 * linear.value_heads * linear.key_size * linear.value_size + 2.0 * linear.convolution * channels


def flops_per_token(shape: ModelShape, context_tokens: Real, has_head: bool = True) -> Real:
    """Return the operations of the forward pass for one token that sees ``context_tokens`` keys (or its window).

    >>> from rpeg.shapes.catalog import shape_of
    >>> f"{flops_per_token(shape_of('Llama-3.1-8B'), 8192.0) / 1e9:.3f}"
    '19.304'
    """
    seen = context_tokens if shape.window is None else np.minimum(context_tokens, shape.window)
    return matrix_flops_per_token(shape, has_head) + _over_layers(shape, context_tokens, seen)


def causal_flops_per_token(shape: ModelShape, length_tokens: Real, has_head: bool = True) -> Real:
    """Return the operations of the forward pass per token of a causal sequence, averaged over its tokens.

    >>> from rpeg.shapes.catalog import shape_of
    >>> f"{causal_flops_per_token(shape_of('Llama-3.1-8B'), 8192.0) / 1e9:.3f}"
    '17.157'
    """
    everywhere, inside = mean_context_tokens(length_tokens), mean_context_tokens(length_tokens, shape.window)
    return matrix_flops_per_token(shape, has_head) + _over_layers(shape, everywhere, inside)


def _over_layers(shape: ModelShape, context_tokens: Real, window_tokens: Real) -> Real:
    near, linear = shape.window_layers, shape.linear_layers
    far = shape.layers - near - linear
    found = far * attention_flops(shape, context_tokens) + near * attention_flops(shape, window_tokens)
    return found + linear * linear_attention_flops(shape)


def kv_bytes_per_token(shape: ModelShape, item_bytes: float = 2.0) -> float:
    """Return the bytes that all layers keep of one token.

    ``layers · 2 · kv_heads · head_size · item``; with latent attention ``layers · (kv_rank + rope_size) · item``.
    Layers with a window keep it as long as it is inside (`kv_bytes`), layers with a state of fixed size not at all.

    >>> from rpeg.shapes.catalog import shape_of
    >>> kv_bytes_per_token(shape_of("Llama-3.1-8B")), kv_bytes_per_token(shape_of("DeepSeek-V3"))
    (131072.0, 70272.0)
    """
    return (shape.layers - shape.linear_layers) * _kept_items(shape) * item_bytes


def kv_bytes(shape: ModelShape, context_tokens: Real, item_bytes: float = 2.0) -> Real:
    """Return the bytes kept of a sequence of ``context_tokens``: layers with a window keep no more than that.

    >>> from rpeg.shapes.catalog import shape_of
    >>> oss = shape_of("GPT-OSS-120B")
    >>> float(kv_bytes(oss, 8192.0) / 8192 / kv_bytes_per_token(oss))
    0.5078125
    """
    near = shape.window_layers
    far = shape.layers - near - shape.linear_layers
    inside = context_tokens if shape.window is None else np.minimum(context_tokens, shape.window)
    return _kept_items(shape) * item_bytes * (far * context_tokens + near * inside) + state_bytes(shape, item_bytes)


def state_bytes(shape: ModelShape, item_bytes: float = 2.0) -> float:
    """Return the bytes of a sequence that do not grow with it: states in float32, and what the convolution covers.

    >>> from rpeg.shapes.catalog import shape_of
    >>> state_bytes(shape_of("Llama-3.1-8B")), f"{state_bytes(shape_of('Qwen3-Next-80B-A3B')) / 1e6:.1f} MB"
    (0.0, '77.3 MB')
    """
    linear = shape.linear
    if linear is None:
        return 0.0
    channels = 2 * linear.key_heads * linear.key_size + linear.value_heads * linear.value_size
    state = 4.0 * linear.value_heads * linear.key_size * linear.value_size
    return shape.linear_layers * (state + (linear.convolution - 1) * channels * item_bytes)


def _kept_items(shape: ModelShape) -> int:
    if shape.latent is not None:
        return shape.latent.kv_rank + shape.latent.rope_size
    return 2 * shape.kv_heads * shape.head_size


def model_flops_per_token(shape: ModelShape, length_tokens: Real, form: FlopsForm = FlopsForm.CAUSAL) -> Real:
    """Return the operations of training on one token, as the tables that report them count: see `FlopsForm`.

    >>> from rpeg.shapes.catalog import shape_of
    >>> llama = shape_of("Llama-3.1-8B")
    >>> [f"{model_flops_per_token(llama, 8192.0, form) / 1e9:.2f}" for form in ("causal", "parameters")]
    ['51.47', '61.07']
    """
    layers, hidden, vocabulary = shape.layers, shape.hidden, shape.vocabulary
    match FlopsForm(form):
        case FlopsForm.CAUSAL:
            return 3.0 * causal_flops_per_token(shape, length_tokens)
        case FlopsForm.PARAMETERS:
            return 6.0 * active_parameters(shape) + 12.0 * layers * shape.heads * shape.head_size * length_tokens
        case FlopsForm.MEGATRON:
            return 72.0 * layers * hidden**2 * (1 + length_tokens / (6 * hidden) + vocabulary / (12 * layers * hidden))
        case FlopsForm.MEGATRON_RECOMPUTED:
            return 96.0 * layers * hidden**2 * (1 + length_tokens / (6 * hidden) + vocabulary / (16 * layers * hidden))
