"""Advantages per token: rewards put on tokens, their sums to come, and generalised advantage estimation.

Shapes: B rows, T tokens of the longest row. A step of the policy is a token that it chose, where ``mask_BT`` is True:
prompt, tool output and padding are not steps, add nothing and let nothing decay. Values there are never read; results
are 0 there. An answer ends with its last chosen token, after which nothing is expected.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["gae", "returns", "token_rewards"]


def token_rewards(
    rewards_B: Tensor, mask_BT: Tensor, distances_BT: Tensor | None = None, coefficient: float = 0.0
) -> Tensor:
    """Return what each token earns: the sample's reward at its last token, less the distance from the reference.

    ``r_t = [t is last] reward - coefficient distance_t``. A sample without a finite reward earns 0 everywhere, also no
    penalty; the caller leaves it out of the mask that is trained on.

    Source: arXiv:1909.08593, arXiv:2203.02155.

    Args:
        rewards_B: One reward per sample, NaN for unscorable.
        mask_BT: Tokens that the policy chose.
        distances_BT: Estimates of the KL per token, see `rpeg.numerics.kl.kl_estimate`; None: no penalty.
        coefficient: Reward per nat.
    """
    slots_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    last_B1 = torch.where(mask_BT, slots_T, -1).amax(1, keepdim=True)
    earned_BT = torch.where(slots_T == last_B1, rewards_B[:, None].float(), 0.0)
    if distances_BT is not None:
        earned_BT = earned_BT - coefficient * torch.where(mask_BT, distances_BT.float(), 0.0)
    return torch.where(mask_BT & rewards_B.isfinite()[:, None], earned_BT, 0.0)


def returns(rewards_BT: Tensor, mask_BT: Tensor, discount: float) -> Tensor:
    """Return per token the discounted sum of what it and later tokens earn, in float32."""
    advantages_BT, _ = gae(rewards_BT, torch.zeros_like(rewards_BT), mask_BT, discount, 1.0)
    return advantages_BT


@torch.no_grad()
def gae(rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, discount: float, decay: float) -> tuple[Tensor, Tensor]:
    """Return advantages and returns per token, float32.

    ``delta_t = r_t + discount V_next - V_t`` and ``A_t = delta_t + discount decay A_next``, with *next* the next token
    that the policy chose, and 0 after the last. ``return_t = A_t + V_t`` is what the critic learns.

    Source: generalised advantage estimation, arXiv:1506.02438.

    Args:
        rewards_BT: What each token earns, see `token_rewards`.
        values_BT: What the critic expects of each token and those after it, before the token is chosen.
        mask_BT: Tokens that the policy chose.
        discount: gamma, in [0, 1].
        decay: lambda, in [0, 1]; 1 trusts the rewards, 0 the critic.
    """
    assert rewards_BT.shape == values_BT.shape == mask_BT.shape, "rewards, values and mask differ in shape"
    rewards_BT, values_BT = (torch.where(mask_BT, each.double(), 0.0) for each in (rewards_BT, values_BT))
    advantages_BT = torch.zeros_like(values_BT)
    next_advantage_B = next_value_B = advantages_BT.new_zeros(len(mask_BT))
    for t in range(mask_BT.shape[1] - 1, -1, -1):
        chosen_B = mask_BT[:, t]
        delta_B = rewards_BT[:, t] + discount * next_value_B - values_BT[:, t]
        advantage_B = delta_B + discount * decay * next_advantage_B
        next_advantage_B = torch.where(chosen_B, advantage_B, next_advantage_B)
        next_value_B = torch.where(chosen_B, values_BT[:, t], next_value_B)
        advantages_BT[:, t] = torch.where(chosen_B, advantage_B, 0.0)
    return advantages_BT.float(), torch.where(mask_BT, advantages_BT + values_BT, 0.0).float()
