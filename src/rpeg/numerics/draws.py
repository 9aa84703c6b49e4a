"""Counter-based random numbers, and the choice of a token with one of them.

A number depends on its row's seed and its position only, never on what was drawn before or on the rows beside it:
a sample keeps its tokens whatever the number of slots, the order of the prompts or the worker that draws it.

Shapes: B rows, K positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["as_int64", "choose_tokens", "seed_streams", "uniforms"]

_WRAP = 1 << 64
_INCREMENT = 0x9E3779B97F4A7C15 - _WRAP
"""SplitMix64's step (the golden ratio in 64 bits), as the signed number that int64 holds.

Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014)."""
_MULTIPLIERS = (0xBF58476D1CE4E5B9 - _WRAP, 0x94D049BB133111EB - _WRAP)


def as_int64(number: int) -> int:
    """Return the signed number of 64 bits that any Python integer is, taken modulo 2**64."""
    return (number + _WRAP // 2) % _WRAP - _WRAP // 2


def seed_streams(seeds: Sequence[int], device: torch.device) -> Tensor:
    """Return one int64 stream start per seed: any Python integers, taken modulo 2**64 and mixed.

    The mixing keeps the streams of seeds that differ by a multiple of SplitMix64's step from overlapping.
    """
    return _mix(torch.tensor([as_int64(seed) for seed in seeds], dtype=torch.int64, device=device))


def uniforms(streams_B1: Tensor, positions_BK: Tensor) -> Tensor:
    """Return float32 numbers in [0, 1), one per row and position: the top 24 bits of SplitMix64 at that counter."""
    bits_BK = _mix(streams_B1 + (positions_BK + 1) * _INCREMENT)
    return _shift(bits_BK, 40).to(torch.float32) * 2.0**-24


def choose_tokens(probabilities_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """Return per row the first token whose cumulative probability exceeds the row's number (inverse CDF, float32).

    The numbers are scaled by the last cumulative sum, so rounding leaves no gap at the end, and they stay below it,
    so a token of probability zero is never chosen. Rows with NaN get some valid id; their log-probability tells.
    """
    cumulative_BV = probabilities_BV.cumsum(-1)
    targets_B1 = uniforms_B.unsqueeze(-1) * cumulative_BV[:, -1:]
    chosen_B = torch.searchsorted(cumulative_BV, targets_B1, right=True).squeeze(-1)
    return chosen_B.clamp_(max=probabilities_BV.shape[-1] - 1)


def _mix(state: Tensor) -> Tensor:
    """Return SplitMix64's output function of ``state``; int64 arithmetic wraps like uint64."""
    state = (state ^ _shift(state, 30)) * _MULTIPLIERS[0]
    state = (state ^ _shift(state, 27)) * _MULTIPLIERS[1]
    return state ^ _shift(state, 31)


def _shift(state: Tensor, bits: int) -> Tensor:
    """Shift right without the sign: int64 shifts are arithmetic, SplitMix64 wants logical ones."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)
