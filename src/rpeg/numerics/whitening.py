"""Whitening: numbers brought to mean 0 and spread 1 over everything a mask selects."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["whiten"]

# Float32 numbers that differ by no more than this many units in the last place of the largest count as equal. No
# number counts as smaller than 1: what is whitened is made from rewards and log-probabilities of that size and above,
# and the difference of two that should be equal is all rounding, however small.
_ROUNDING_UNITS = 16


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Return ``(value - mean) / std`` where ``mask`` is True, with mean and std (ddof 0) of these only; 0 elsewhere.

    Fewer than two selected values are returned as they are, and values that are equal up to rounding (within 2e-6, or
    that part of the largest) as exactly 0. What is whitened together has to be complete: a batch, not a micro-batch, or
    the split would show.

    Source: advantages of REINFORCE++, arXiv:2501.03262, and of PPO.

    Args:
        values: Of any shape; never read outside the mask.
        mask: Boolean, of the same shape; the trained tokens.
    """
    assert values.shape == mask.shape, f"values {tuple(values.shape)}, mask {tuple(mask.shape)}"
    chosen = values[mask].double()
    whitened = torch.zeros_like(values, dtype=torch.float32)
    if len(chosen) < 2:
        whitened[mask] = chosen.float()
        return whitened
    largest = chosen.abs().amax().clamp(min=1.0)
    if chosen.amax() - chosen.amin() <= _ROUNDING_UNITS * torch.finfo(torch.float32).eps * largest:
        return whitened
    whitened[mask] = ((chosen - chosen.mean()) / chosen.std(correction=0)).float()
    return whitened
