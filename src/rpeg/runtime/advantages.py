"""The role that compares: turns the scores of a step into advantages, per sample or per token.

==============  ===========================================================  ==========
baseline        advantage                                                    one per
==============  ===========================================================  ==========
group mean      reward less the mean of the group                            sample
leave one out   reward less the mean of the others in the group              sample
greedy          reward less that of the greedy answer                        sample
none            what is earned from a token on, whitened over the batch      token
value           generalised advantage estimation with a critic's values      token
==============  ===========================================================  ==========

A distance that goes into the reward is taken off the sampled tokens, so with it advantages are per token; only with
*leave one out*, which compares whole answers, it is taken off the answer.

Shapes: N samples of a firing, T tokens of the longest, prompt included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rpeg.graph.contract import Baseline, Contract, Kl
from rpeg.numerics.advantages import (
    GroupStats,
    greedy_advantages,
    group_advantages,
    leave_one_out_advantages,
    plain_advantages,
)
from rpeg.numerics.gae import gae, returns, token_rewards
from rpeg.numerics.kl import kl_estimate
from rpeg.numerics.whitening import whiten
from rpeg.recipe.schema import Recipe
from rpeg.runtime.rows import Column, Ragged, Rows
from rpeg.runtime.task import Outcome, Task

__all__ = ["Advantages"]

_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class _Texts:
    """The samples of a firing side by side."""

    lengths: list[int]
    mask_NT: Tensor
    kl_NT: Tensor | None
    """Distance from the reference per token, if it goes into the reward."""
    coefficient: float
    """Its weight."""

    @property
    def kl_N(self) -> Tensor | None:
        """Distance per answer, in nats."""
        return None if self.kl_NT is None else self.kl_NT.sum(1)

    def column(self, values_NT: Tensor, scorable_N: Tensor) -> Ragged:
        """Return one number per token as a column, NaN for samples that cannot be scored."""
        values_NT = values_NT.masked_fill(~scorable_N.unsqueeze(1), _NAN)
        return Ragged.of([row[:length] for row, length in zip(values_NT, self.lengths, strict=True)], torch.float32)

    def means(self, values_NT: Tensor, scorable_N: Tensor) -> Tensor:
        """Return the mean over the tokens of each sample."""
        return (values_NT.sum(1) / self.mask_NT.sum(1).clamp(min=1)).masked_fill(~scorable_N, _NAN)


class Advantages:
    """The baseline that rewards are compared with."""

    def __init__(self, recipe: Recipe, contract: Contract, coefficient: float) -> None:
        """Compare as the contract says; ``coefficient`` weighs the distance until a controller says otherwise."""
        self._recipe, self._contract = recipe, contract
        self._coefficient = coefficient

    def compare(self, task: Task) -> Outcome:
        """Compare every reward with its baseline; unscorable samples get NaN, which the policy leaves out."""
        rewards_N = task.samples.tensor("reward")
        texts = self._texts(task) if self._contract.kl is Kl.REWARD else None
        match self._contract.baseline:
            case Baseline.VALUE:
                columns, means_N, stats = self._with_critic(task, texts or self._texts(task), rewards_N)
            case Baseline.NONE:
                columns, means_N, stats = self._alone(texts or self._texts(task), rewards_N)
            case _:
                columns, means_N, stats = self._compared(task, texts, rewards_N)
        metrics = stats.metrics()
        if self._contract.baseline in (Baseline.VALUE, Baseline.NONE):
            del metrics["group/zero_spread"]  # nothing is compared within a group
        if texts is not None:
            metrics |= self._of_distance(texts)
        return Outcome(Rows(columns), metrics=metrics, num_rows=len(rewards_N), worth=tuple(means_N.tolist()))

    def _compared(
        self, task: Task, texts: _Texts | None, rewards_N: Tensor
    ) -> tuple[dict[str, Column], Tensor, GroupStats]:
        """Compare with other answers to the same prompt; ``texts`` where the distance goes into the reward."""
        algorithm = self._recipe.algorithm
        scorable_N = rewards_N.isfinite()
        match self._contract.baseline:
            case Baseline.GREEDY:
                greedy_G = task.groups.tensor("reward")
                scorable_N = scorable_N & greedy_G.repeat_interleave(len(rewards_N) // len(greedy_G)).isfinite()
                found_N, stats = greedy_advantages(rewards_N, greedy_G)
                stats = _of_rewards(stats, rewards_N)
                if texts is not None:
                    return self._per_token(texts, found_N, scorable_N, stats)
            case Baseline.LEAVE_ONE_OUT:
                penalty_N = 0.0 if texts is None or texts.kl_N is None else texts.coefficient * texts.kl_N
                found_N, stats = leave_one_out_advantages(rewards_N - penalty_N, algorithm.group_size)
                stats = stats if texts is None else _of_rewards(stats, rewards_N)
            case _:
                found_N, stats = group_advantages(rewards_N, algorithm.group_size, algorithm.std_normalise)
        found_N = found_N.masked_fill(~scorable_N, _NAN)
        return {"advantage": found_N}, found_N, stats

    def _per_token(
        self, texts: _Texts, found_N: Tensor, scorable_N: Tensor, stats: GroupStats
    ) -> tuple[dict[str, Column], Tensor, GroupStats]:
        """Take the distance off an advantage per sample, from each token on."""
        earned_NT = token_rewards(found_N, texts.mask_NT, texts.kl_NT, texts.coefficient)
        advantages_NT = returns(earned_NT, texts.mask_NT, 1.0)
        return {"advantage": texts.column(advantages_NT, scorable_N)}, texts.means(advantages_NT, scorable_N), stats

    def _alone(self, texts: _Texts, rewards_N: Tensor) -> tuple[dict[str, Column], Tensor, GroupStats]:
        """Compare with nothing but the rest of the batch."""
        scorable_N = rewards_N.isfinite()
        earned_NT = token_rewards(rewards_N, texts.mask_NT, texts.kl_NT, texts.coefficient)
        advantages_NT = whiten(returns(earned_NT, texts.mask_NT, 1.0), texts.mask_NT & scorable_N.unsqueeze(1))
        columns: dict[str, Column] = {"advantage": texts.column(advantages_NT, scorable_N)}
        return columns, texts.means(advantages_NT, scorable_N), plain_advantages(rewards_N)[1]

    def _with_critic(
        self, task: Task, texts: _Texts, rewards_N: Tensor
    ) -> tuple[dict[str, Column], Tensor, GroupStats]:
        """Compare with what a critic expected."""
        scorable_N, critic = rewards_N.isfinite(), self._recipe.critic
        assert critic is not None, "the graph has values, the recipe has no critic"
        values_NT = _padded(task.samples.ragged("value"))
        earned_NT = token_rewards(rewards_N, texts.mask_NT, texts.kl_NT, texts.coefficient)
        advantages_NT, returns_NT = gae(earned_NT, values_NT, texts.mask_NT, critic.gae_gamma, critic.gae_lambda)
        if self._recipe.algorithm.whiten:
            advantages_NT = whiten(advantages_NT, texts.mask_NT & scorable_N.unsqueeze(1))
        columns: dict[str, Column] = {
            "advantage": texts.column(advantages_NT, scorable_N),
            "return": texts.column(returns_NT, scorable_N),
            "old_value": texts.column(values_NT, torch.ones_like(scorable_N)),
        }
        if texts.kl_N is not None:
            columns["kl"] = texts.kl_N
        return columns, texts.means(advantages_NT, scorable_N), plain_advantages(rewards_N)[1]

    def _texts(self, task: Task) -> _Texts:
        rows = task.samples
        mask_NT = _padded(rows.ragged("mask"))
        lengths = rows.ragged("mask").lengths_N.tolist()
        if self._contract.kl is not Kl.REWARD:
            return _Texts(lengths, mask_NT, None, 0.0)
        logps_NT, reference_NT = _padded(rows.ragged("logp")), _padded(rows.ragged("ref_logp"))
        kl_NT = kl_estimate(logps_NT, reference_NT, mask_NT, self._recipe.algorithm.kl_estimator)
        steered = task.weights.get("coefficient") if isinstance(task.weights, Mapping) else None
        return _Texts(lengths, mask_NT, kl_NT, self._coefficient if steered is None else float(steered))

    def _of_distance(self, texts: _Texts) -> dict[str, float]:
        assert texts.kl_NT is not None, "the distance goes into the reward"
        num_tokens = int(texts.mask_NT.sum())
        return {
            "kl/answer": float(texts.kl_NT.sum(1).double().mean()),
            "kl/token": float(texts.kl_NT.double().sum()) / max(1, num_tokens),
            "kl/coefficient": texts.coefficient,
        }


def _of_rewards(stats: GroupStats, rewards_N: Tensor) -> GroupStats:
    """Return statistics of a comparison with the figures of the rewards themselves, before anything is taken off."""
    plain = plain_advantages(rewards_N)[1]
    return replace(plain, num_groups=stats.num_groups, num_zero_spread=stats.num_zero_spread)


def _padded(column: Ragged) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(column.rows(), batch_first=True)
