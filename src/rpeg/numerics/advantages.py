"""Advantages: how much better a sample did than was to be expected of its prompt, one number per sample.

What is expected: the mean of its group, the mean of the others in it, the greedy answer, or nothing. Advantages with a
critic, one per token, are in `rpeg.numerics.gae`. A group of one has no group to be compared with and is refused.

Shapes: N samples of a step, G groups, S samples of a group (the group size); N = G * S. The samples of a group are
adjacent: sample i belongs to group i // S. Groups are formed by position, before any reordering for balance, so two
rows with the same prompt text are two groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "GroupStats",
    "greedy_advantages",
    "group_advantages",
    "groups_with_spread",
    "leave_one_out_advantages",
    "plain_advantages",
]

# Rewards are weighted sums of a few numbers: equal up to this many units in the last place means equal.
_ROUNDING_UNITS = 16


@dataclass(frozen=True, slots=True)
class GroupStats:
    """What the groups of a step looked like."""

    num_groups: int
    """Groups, with and without signal."""
    num_zero_spread: int
    """Groups whose rewards equal what they are compared with, or with too few scorable ones: they teach nothing."""
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
    rewards_GS, scorable_GS, has_spread_G = _groups(rewards_N, group_size)
    count_G1 = scorable_GS.sum(1, keepdim=True)
    centred_GS = _centred(rewards_GS, scorable_GS & has_spread_G[:, None], count_G1)
    if std:
        variance_G1 = centred_GS.square().sum(1, keepdim=True) / (count_G1 - 1).clamp(min=1)
        centred_GS = torch.where(has_spread_G[:, None], centred_GS / variance_G1.sqrt(), 0.0)
    return centred_GS.flatten().float(), _stats(rewards_GS[scorable_GS], rewards_N.numel(), has_spread_G)


def groups_with_spread(rewards_N: Tensor, group_size: int) -> Tensor:
    """Return [G]: whether at least two rewards of a group are scorable and they differ by more than rounding."""
    rewards_GS = rewards_N.view(-1, group_size).double()
    return _has_spread(rewards_GS, rewards_GS.isfinite(), torch.finfo(rewards_N.dtype).eps)


def leave_one_out_advantages(rewards_N: Tensor, group_size: int) -> tuple[Tensor, GroupStats]:
    """Return reward minus the mean of the *other* scorable rewards of its group: ``n / (n - 1)`` (reward - mean).

    Source: RLOO, arXiv:2402.14740. Unscorable samples and groups without spread are as in `group_advantages`.

    Args:
        rewards_N: One reward per sample, floating, NaN for unscorable.
        group_size: Samples per prompt, at least 2.

    Returns:
        Float32 advantages [N] and the statistics of the groups.
    """
    rewards_GS, scorable_GS, has_spread_G = _groups(rewards_N, group_size)
    count_G1 = scorable_GS.sum(1, keepdim=True)
    centred_GS = _centred(rewards_GS, scorable_GS & has_spread_G[:, None], count_G1)
    advantages_GS = centred_GS * count_G1 / (count_G1 - 1).clamp(min=1)
    return advantages_GS.flatten().float(), _stats(rewards_GS[scorable_GS], rewards_N.numel(), has_spread_G)


def greedy_advantages(rewards_N: Tensor, greedy_rewards_G: Tensor) -> tuple[Tensor, GroupStats]:
    """Return reward minus the reward of the greedy answer to the same prompt; groups may be of one.

    Source: ReMax, arXiv:2310.10505. A sample that has no finite reward, or whose greedy answer has none, is unscorable
    and gets exactly 0: the caller leaves out those with ``rewards - greedy`` not finite. A group all of whose rewards
    equal the greedy one, up to rounding, gets exactly 0.

    Args:
        rewards_N: One reward per sample, floating, NaN for unscorable.
        greedy_rewards_G: One reward per group, of the same dtype.

    Returns:
        Float32 advantages [N] and the statistics of the groups.
    """
    assert rewards_N.numel() > 0, "no samples"
    num_groups = greedy_rewards_G.numel()
    assert num_groups > 0, "no groups"
    assert rewards_N.numel() % num_groups == 0, f"{rewards_N.numel()} rewards in {num_groups} groups"
    both_GS = torch.cat([greedy_rewards_G[:, None], rewards_N.view(num_groups, -1)], dim=1).double()
    scorable_GS = both_GS[:, 1:].isfinite() & both_GS[:, :1].isfinite()
    teaches_G = _has_spread(both_GS, both_GS.isfinite(), torch.finfo(rewards_N.dtype).eps) & scorable_GS.any(1)
    differences_GS = torch.where(scorable_GS & teaches_G[:, None], both_GS[:, 1:] - both_GS[:, :1], 0.0)
    stats = _stats(both_GS[:, 1:][scorable_GS], rewards_N.numel(), teaches_G)
    return differences_GS.flatten().float(), stats


def plain_advantages(rewards_N: Tensor) -> tuple[Tensor, GroupStats]:
    """Return the rewards themselves, unscorable ones as exactly 0: what is whitened over a batch or given to a critic.

    Source: the first step of REINFORCE++, arXiv:2501.03262; the second is `rpeg.numerics.whitening.whiten`.

    Args:
        rewards_N: One reward per sample, floating, NaN for unscorable.

    Returns:
        Float32 rewards [N], and statistics in which all samples are one group.
    """
    rewards_GS, scorable_GS, has_spread_G = _groups(rewards_N, max(1, rewards_N.numel()), least=1)
    advantages_N = torch.where(scorable_GS, rewards_GS, 0.0).flatten().float()
    return advantages_N, _stats(rewards_GS[scorable_GS], len(advantages_N), has_spread_G)


def _groups(rewards_N: Tensor, group_size: int, least: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Return float64 rewards [G, S], which of them are scorable [G, S], and which groups have spread [G]."""
    assert group_size >= least, f"group size {group_size}: a group of one minus its own mean is always 0"
    assert rewards_N.numel() > 0, "no samples"
    assert rewards_N.numel() % group_size == 0, f"{rewards_N.numel()} rewards are not groups of {group_size}"
    rewards_GS = rewards_N.view(-1, group_size).double()
    scorable_GS = rewards_GS.isfinite()
    return rewards_GS, scorable_GS, _has_spread(rewards_GS, scorable_GS, torch.finfo(rewards_N.dtype).eps)


def _centred(rewards_GS: Tensor, counts_GS: Tensor, num_G1: Tensor) -> Tensor:
    """Return rewards minus the mean of their group where ``counts_GS`` is True, else exactly 0."""
    rewards_GS = torch.where(counts_GS, rewards_GS, 0.0)
    return torch.where(counts_GS, rewards_GS - rewards_GS.sum(1, keepdim=True) / num_G1.clamp(min=1), 0.0)


def _has_spread(rewards_GS: Tensor, scorable_GS: Tensor, epsilon: float) -> Tensor:
    """Return whether the scorable rewards of each group [G] differ by more than rounding."""
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
