"""Ratios of policies: how much likelier a token is under one policy than under another.

Shapes: B rows, T tokens of the longest row. Values outside the mask are never read.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["importance_ratio", "interpolated_proximal", "log_ratio", "sequence_ratio"]


def log_ratio(logps_BT: Tensor, base_logps_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return ``logp - base_logp`` per token in float32, 0 outside the mask; before any exp, so nothing overflows."""
    return torch.where(mask_BT, logps_BT.float() - base_logps_BT.float(), 0.0)


def importance_ratio(logps_BT: Tensor, base_logps_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return ``exp(logp - base_logp)`` per token, 1 outside the mask; gradient through ``logps_BT``."""
    return log_ratio(logps_BT, base_logps_BT, mask_BT).exp()


def sequence_ratio(logps_BT: Tensor, base_logps_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the ratio of whole answers, to the power of one over their length, at each of their tokens.

    ``s = exp(mean over tokens of (logp - base_logp))``. The gradient is handed to the token's own log-probability:
    ``s_t = sg(s) exp(logp_t - sg(logp_t))`` with sg the constant of that value, so ``d s_t / d logp_t = s``. Averaged
    over the tokens of a sample this is exactly the gradient of s, and tokens may have advantages of their own.

    Source: GSPO and GSPO-token, arXiv:2507.18071. The sum over tokens is made in float32.
    """
    difference_BT = log_ratio(logps_BT, base_logps_BT, mask_BT)
    mean_B1 = difference_BT.sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True).clamp(min=1)
    own_BT = torch.where(mask_BT, logps_BT.float(), 0.0)
    return (mean_B1.detach() + (own_BT - own_BT.detach())).exp()


def interpolated_proximal(
    behaviour_logps_BT: Tensor, logps_BT: Tensor, behind_BT: Tensor, ahead: float = 1.0
) -> Tensor:
    """Return the proximal policy's log-probabilities without a pass: between behaviour and current policy.

    ``behaviour + b / (b + a) (current - behaviour)`` with b the versions that the token's behaviour policy is behind
    the proximal one and a those that the current one is ahead of it, as if log-probabilities moved by the same amount
    in each version. Tokens of the proximal version itself (b = 0) have the behaviour's, and before the first update of
    a step (a = 0) all have the current. A constant, without gradient.

    Source: version-aware log-linear interpolation of AReaL (``prox_logp_method: loglinear``), A-3PO arXiv:2512.06547;
    there a = 1 whichever update of the step it is.

    Args:
        behaviour_logps_BT: As recorded while sampling.
        logps_BT: Of the policy that is being updated.
        behind_BT: Versions from behaviour to proximal policy, at least 0; [B, 1] where a sample has one.
        ahead: Versions from proximal to current policy, at least 0; half a version after one of two updates.
    """
    behind_BT = behind_BT.float()
    share_BT = behind_BT / (behind_BT + ahead) if ahead else torch.ones_like(behind_BT)
    return torch.lerp(behaviour_logps_BT.float(), logps_BT.detach().float(), share_BT)
