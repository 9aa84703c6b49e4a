"""Seconds of attention: prefill by the pairs of tokens it compares, decoding by the cache it reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rpeg.shapes.operations import Real

__all__ = ["AttentionConstants", "AttentionFigures", "Heads", "attended_pairs", "decode_s", "narrowness", "prefill_s"]

_PREFILL_SHARPNESS = 3.0
"""Between all pairs on all processors and the longest block on one; as of products."""
_EXPONENTIALS_PER_S = 16 * 1.5e9
"""Of one processor: sixteen per cycle (CUDA C++ Programming Guide, throughput of native arithmetic instructions)."""
_FITTED_CHANNELS = 128.0
"""Of the heads that constants are fitted on."""
_CACHE_PASSES = 3.0
"""Keys and values are read, written to the cache and read by attention."""
_CACHE_EDGE = 8.0
"""How sharply the last-level cache stops to help when what is read again outgrows it."""


@dataclass(frozen=True, slots=True)
class AttentionConstants:
    """What is fitted for one generation of devices and its attention kernels."""

    prefill_start_s: float
    flops_fraction: float
    """Of the best product anybody measured on the chip, for long sequences."""
    query_passes: float
    """Times that queries and outputs go through memory, with what is cast and rearranged around the kernel."""
    decode_start_s: float
    bandwidth_fraction: float
    """Of the memory bandwidth, for large caches."""
    doubling_s: float
    """Added whenever the context of a sequence doubles, from one block on: it is split further and joined again."""
    sequence_s: float
    """Of one processor, for one sequence and KV head, besides reading."""
    cache_speed: float = 1.0
    """Of the last-level cache, in that of memory."""
    block_tokens: float = 128.0
    """Queries and keys of one block; blocks on the diagonal are computed whole."""
    backward_factor: float = 2.5
    """Seconds of the backward pass in those of the forward pass: five products for two, and less well fed."""


@dataclass(frozen=True, slots=True)
class AttentionFigures:
    """What attention meets: figures of a device."""

    best_flops: float
    """Of the best product anybody measured on the chip."""
    bytes_per_s: float
    processors: int
    item_bytes: float = 2.0
    """Of queries and outputs, and of keys and values before they are cached."""
    cache_bytes: float = 0.0
    """Of the last-level cache where the same keys and values are read over and over, as in a benchmark; else 0."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of one device."""

    queries: Real
    keys: Real
    """KV heads."""
    qk_size: float
    """Channels of a query or a key."""
    value_size: float
    is_shared: bool = False
    """Whether keys and values are one vector of ``qk_size``, as in latent attention when it decodes."""
    window: float | None = None
    """Tokens that a query looks back; None: all."""

    @property
    def kept_size(self) -> float:
        """Channels kept per token and KV head."""
        return self.qk_size if self.is_shared else self.qk_size + self.value_size

    def pair_flops(self) -> Real:
        """Return the operations of one pair of tokens in all heads: ``2 · heads · (qk_size + value_size)``."""
        return 2.0 * self.queries * (self.qk_size + self.value_size)


def attended_pairs(length: Real, context: Real, window: float | None = None) -> Real:
    """Return how many pairs of tokens ``length`` new tokens compare at the end of ``context`` tokens, causally.

    ``length · context - length² / 2``; with a window no token sees more than that.

    >>> attended_pairs(4.0, 4.0), attended_pairs(1.0, 100.0)
    (8.0, 99.5)
    >>> float(attended_pairs(4.0, 100.0, window=10.0))
    40.0
    """
    if window is None:
        return length * context - length * length / 2.0
    # Tokens whose position is still inside of the first window see less than a whole one.
    short = np.clip(window - (context - length), 0.0, length)
    return length * np.minimum(context, window) - short * short / 2.0


def prefill_s(
    rows: Real, length: Real, context: Real, heads: Heads, figures: AttentionFigures, constants: AttentionConstants
) -> Real:
    """Return the seconds in which ``rows`` sequences compare ``length`` new tokens with ``context`` tokens.

    ``t0 + ((pairs / all processors)^3 + (longest block / one processor)^3)^(1/3) + bytes / W``: the last block of
    queries sees all keys, and one processor has it to itself. Pairs of narrow heads take longer for what they compute,
    see `narrowness`.
    """
    speed = figures.best_flops * constants.flops_fraction / narrowness(heads, figures)
    pairs = attended_pairs(length, context, heads.window) + length * constants.block_tokens / 2.0
    total_s = rows * heads.pair_flops() * pairs / speed
    seen = context if heads.window is None else np.minimum(context, heads.window)
    one_head = 2.0 * (heads.qk_size + heads.value_size)
    longest_s = one_head * np.minimum(length, constants.block_tokens) * seen / (speed / figures.processors)
    p = _PREFILL_SHARPNESS
    blended_s = (total_s**p + longest_s**p) ** (1.0 / p)
    moved_bytes = _moved_items(rows, length, heads, constants) * figures.item_bytes
    return constants.prefill_start_s + blended_s + moved_bytes / figures.bytes_per_s


def narrowness(heads: Heads, figures: AttentionFigures) -> float:
    """Return the seconds of one operation, in those of heads of 128 channels: a pair costs an exponential besides.

    A pair of ``d`` channels takes ``(d^3 + x^3)^(1/3)``, where ``x`` channels take as long as one exponential, and the
    two hide each other as far as they do elsewhere. Products became faster from chip to chip, exponentials did not.

    >>> figures = AttentionFigures(best_flops=794e12, bytes_per_s=3e12, processors=132)
    >>> [round(narrowness(Heads(1.0, 1.0, size, size), figures), 2) for size in (64.0, 128.0, 256.0)]
    [1.2, 1.0, 0.97]
    """
    exponential = figures.best_flops / figures.processors / (4.0 * _EXPONENTIALS_PER_S)
    channels, p = (heads.qk_size + heads.value_size) / 2.0, _PREFILL_SHARPNESS
    own, fitted = ((1.0 + (exponential / size) ** p) ** (1.0 / p) for size in (channels, _FITTED_CHANNELS))
    return own / fitted


def _moved_items(rows: Real, length: Real, heads: Heads, constants: AttentionConstants) -> Real:
    """Return queries and outputs, keys and values of the new tokens, as often as they are moved."""
    outer = constants.query_passes * heads.queries * (heads.qk_size + heads.value_size)
    kept = _CACHE_PASSES * heads.keys * heads.kept_size
    return rows * length * (outer + kept)


def decode_s(
    rows: Real,
    context: Real,
    heads: Heads,
    figures: AttentionFigures,
    constants: AttentionConstants,
    *,
    item_bytes: float = 2.0,
) -> Real:
    """Return the seconds in which one new token of each of ``rows`` sequences reads its ``context`` tokens.

    ``t0 + doublings + sequences + max(bytes / (W e), operations / P)``, of caches with ``item_bytes`` per value.
    """
    seen = context if heads.window is None else np.minimum(context, heads.window)
    num_bytes = rows * seen * heads.keys * heads.kept_size * item_bytes
    memory_s = num_bytes / (figures.bytes_per_s * constants.bandwidth_fraction)
    memory_s = memory_s * (1.0 - _hits(num_bytes, figures.cache_bytes) * (1.0 - 1.0 / constants.cache_speed))
    busy_s = rows * seen * heads.pair_flops() / (figures.best_flops * constants.flops_fraction)
    doublings = np.log2(np.maximum(seen / constants.block_tokens, 1.0))
    sequences = rows * heads.keys / figures.processors
    fixed_s = constants.decode_start_s + constants.doubling_s * doublings + constants.sequence_s * sequences
    return fixed_s + np.maximum(memory_s, busy_s)


def _hits(num_bytes: Real, cache_bytes: float) -> Real:
    """Return the share of bytes found in the last-level cache when they are read over and over."""
    if cache_bytes == 0.0:
        return 0.0
    return 1.0 / (1.0 + (num_bytes / cache_bytes) ** _CACHE_EDGE)
