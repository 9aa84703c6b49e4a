"""Surrogates: what a token adds to the objective, as a function of its ratio, its advantage and its log-probability.

Shapes: B rows, T tokens of the longest row. All are maximised; the loss is their negative.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["cispo_surrogate", "clipped_surrogate", "is_clipped", "reinforce_surrogate"]


def clipped_surrogate(
    ratio_BT: Tensor, advantages_BT: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """Return ``min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)`` per token.

    With ``dual_clip`` c > 1, tokens with A < 0 count at least ``c A``: their loss stops growing with the ratio.

    Source: PPO, arXiv:1707.06347; clip-higher: DAPO, arXiv:2503.14476; dual clip: arXiv:1912.09729.
    """
    clipped_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    surrogate_BT = torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)
    if dual_clip is None:
        return surrogate_BT
    assert dual_clip > 1, f"dual clip {dual_clip} is not above 1"
    return torch.where(advantages_BT < 0, torch.maximum(surrogate_BT, dual_clip * advantages_BT), surrogate_BT)


def cispo_surrogate(
    logps_BT: Tensor, ratio_BT: Tensor, advantages_BT: Tensor, clip_low: float, clip_high: float
) -> Tensor:
    """Return ``sg(clip(r, 1 - clip_low, 1 + clip_high)) A logp`` per token: clipping bounds a weight, not the gradient.

    Source: CISPO, MiniMax-M1, arXiv:2506.13585.
    """
    return ratio_BT.detach().clamp(1 - clip_low, 1 + clip_high) * advantages_BT * logps_BT


def reinforce_surrogate(logps_BT: Tensor, advantages_BT: Tensor) -> Tensor:
    """Return ``A logp`` per token, whose gradient is the policy gradient (Williams 1992); there is no ratio."""
    return advantages_BT * logps_BT


def is_clipped(
    ratio_BT: Tensor, advantages_BT: Tensor, clip_low: float, clip_high: float, dual_clip: float | None
) -> Tensor:
    """Return where `clipped_surrogate` has no gradient left because the ratio is clipped; boolean."""
    too_high_BT = (ratio_BT > 1 + clip_high) & (advantages_BT > 0)
    too_low_BT = (ratio_BT < 1 - clip_low) & (advantages_BT < 0)
    if dual_clip is None:
        return too_high_BT | too_low_BT
    return too_high_BT | too_low_BT | ((ratio_BT > dual_clip) & (advantages_BT < 0))
