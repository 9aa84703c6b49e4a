"""Advantages: how much better a sample did than was to be expected of its prompt.

Shapes: N samples of a step, G groups, S samples of a group (the group size); N = G * S. The samples of a group are
adjacent: sample i belongs to group i // S. Groups are formed by position, before any reordering for balance, so two
rows with the same prompt text are two groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["GroupStats", "group_advantages", "groups_with_spread"]

# Rewards are weighted sums of a few numbers: equal up to this many units in the last place means equal.
_ROUNDING_UNITS = 16


@dataclass(frozen=True, slots=True)
class GroupStats:
    """What the groups of a step looked like."""

    num_groups: int
    """Groups, with and without signal."""
    num_zero_spread: int
    """Groups whose scorable rewards are all equal, or that have fewer than two of them: they teach nothing."""
    num_unscorable: int
    """Samples without a finite reward."""
    reward_mean: float
    """Mean over the scorable samples of the step; NaN if there are none."""
    reward_std: float
    """Standard deviation of the same samples, ddof 0; NaN if there are none."""

    def metrics(self) -> dict[str, float]:
        """Return ``reward/*`` and ``group/zero_spread``, a share in [0, 1].

        Mean and std are absent if nothing was scorable, rather than NaN.
        """
        counted = {
            "reward/unscorable": float(self.num_unscorable),
            "group/zero_spread": self.num_zero_spread / self.num_groups,
        }
        means = {"reward/mean": self.reward_mean, "reward/std": self.reward_std}
        return counted | {key: value for key, value in means.items() if value == value}


def group_advantages(rewards_N: Tensor, group_size: int, std: bool) -> tuple[Tensor, GroupStats]:
    """Return reward minus the mean of its group, with ``std`` divided by the standard deviation of the group (ddof 1).

    Source: GRPO, DeepSeekMath (arXiv:2402.03300); without the division, Dr.GRPO (arXiv:2503.20783). Nothing is added to
    the standard deviation: instead, rewards that differ by no more than rounding count as equal.

    A sample without a finite reward is unscorable: mean and standard deviation leave it out and it gets exactly 0; the
    caller leaves its tokens out of the loss mask and the counts. Groups with equal rewards, or with fewer than two
    scorable ones, get exactly 0.

    Args:
        rewards_N: One reward per sample, floating, NaN for unscorable.
        group_size: Samples per prompt, at least 2: the mean of a group of one is its only reward.
        std: Whether to divide by the standard deviation.

    Returns:
        Float32 advantages [N] and the statistics of the groups.
    """
    assert group_size >= 2, f"group size {group_size}: a group of one minus its own mean is always 0"
    assert rewards_N.numel() > 0, "no samples"
    assert rewards_N.numel() % group_size == 0, f"{rewards_N.numel()} rewards are not groups of {group_size}"
    rewards_GS = rewards_N.view(-1, group_size).double()
    scorable_GS = rewards_GS.isfinite()
    has_spread_G = _has_spread(rewards_GS, scorable_GS, torch.finfo(rewards_N.dtype).eps)
    count_G1 = scorable_GS.sum(1, keepdim=True)
    centred_GS = torch.where(scorable_GS, rewards_GS, 0.0)
    centred_GS = centred_GS - centred_GS.sum(1, keepdim=True) / count_G1.clamp(min=1)
    centred_GS = torch.where(scorable_GS & has_spread_G[:, None], centred_GS, 0.0)
    if std:
        variance_G1 = centred_GS.square().sum(1, keepdim=True) / (count_G1 - 1).clamp(min=1)
        centred_GS = torch.where(has_spread_G[:, None], centred_GS / variance_G1.sqrt(), 0.0)
    return centred_GS.flatten().float(), _stats(rewards_GS[scorable_GS], rewards_N.numel(), has_spread_G)


def groups_with_spread(rewards_N: Tensor, group_size: int) -> Tensor:
    """Return [G]: whether at least two rewards of a group are scorable and they differ by more than rounding."""
    rewards_GS = rewards_N.view(-1, group_size).double()
    return _has_spread(rewards_GS, rewards_GS.isfinite(), torch.finfo(rewards_N.dtype).eps)


def _has_spread(rewards_GS: Tensor, scorable_GS: Tensor, epsilon: float) -> Tensor:
    """Return [G]: whether the scorable rewards of a group differ by more than rounding."""
    highest_G = rewards_GS.masked_fill(~scorable_GS, -torch.inf).amax(1)
    lowest_G = rewards_GS.masked_fill(~scorable_GS, torch.inf).amin(1)
    # A group without scorable rewards has the spread -inf - inf = -inf, which is no spread.
    size_G = torch.maximum(highest_G.abs(), lowest_G.abs())
    return highest_G - lowest_G > _ROUNDING_UNITS * epsilon * size_G


def _stats(scorable: Tensor, num_samples: int, has_spread_G: Tensor) -> GroupStats:
    """Summarise one step; ``scorable`` holds the finite rewards, float64."""
    return GroupStats(
        num_groups=len(has_spread_G),
        num_zero_spread=int((~has_spread_G).sum()),
        num_unscorable=num_samples - len(scorable),
        reward_mean=float(scorable.mean()) if len(scorable) else float("nan"),
        reward_std=float(scorable.std(correction=0)) if len(scorable) else float("nan"),
    )
