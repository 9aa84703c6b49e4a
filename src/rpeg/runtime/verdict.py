"""What the rewards said of a batch of answers: the numbers to learn from, and what of it is worth telling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import fsum
from statistics import fmean, pstdev
from typing import TypeVar

import torch
from torch import Tensor

from rpeg.environments.overlong import overlong_penalty
from rpeg.environments.rewards import Scores
from rpeg.numerics.parallel.peers import Peers
from rpeg.recipe.schema import Recipe
from rpeg.runtime.rows import Rows

__all__ = ["Verdict", "overlong_metrics", "overlong_penalties"]

_T = TypeVar("_T")
_ALONE = Peers()
"""Answers are judged on one rank."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One batch, judged; one entry per sample in every list."""

    scores: Scores
    penalties: Sequence[float]
    """What was taken off for overlong answers, as numbers of at most 0."""

    @property
    def rewards(self) -> list[float | None]:
        """Sums of the functions and the penalty, None where no function had a value."""
        pairs = zip(self.scores.totals, self.penalties, strict=True)
        return [None if total is None else total + penalty for total, penalty in pairs]

    @classmethod
    def joined(cls, parts: Sequence[Verdict]) -> Verdict:
        """Return several batches of the same functions as one."""
        each = [part.scores for part in parts]
        scores = Scores(
            _chained(scores.totals for scores in each),
            {name: _chained(scores.values[name] for scores in each) for name in each[0].values},
            tuple(chain.from_iterable(scores.failures for scores in each)),
            max(scores.slowest_s for scores in each),
        )
        return cls(
            scores,
            _chained(part.penalties for part in parts),
        )

    def groups(self, numbers: Sequence[int], size: int) -> Verdict:
        """Return the groups ``numbers`` of ``size`` adjacent samples; failures stay those of the whole batch."""
        picks = [number * size + member for number in numbers for member in range(size)]
        values = {name: [column[i] for i in picks] for name, column in self.scores.values.items()}
        return Verdict(
            replace(self.scores, totals=[self.scores.totals[i] for i in picks], values=values),
            [self.penalties[i] for i in picks],
        )

    def column(self) -> Tensor:
        """Return the rewards as float64, NaN where there is none."""
        rewards = [float("nan") if reward is None else reward for reward in self.rewards]
        return torch.tensor(rewards, dtype=torch.float64)

    def metrics(self) -> dict[str, float]:
        """Return figures about rewards."""
        failed = Counter[bool]()
        for failure in self.scores.failures:
            failed[failure.is_late] += len(failure.row_ids)
        return {
            "rows/reward_errors": float(failed[False]),
            "rows/reward_timeouts": float(failed[True]),
            "time/reward_max_s": self.scores.slowest_s,
            **overlong_metrics(self.penalties, _ALONE),
            **_by_function(self.scores),
        }

    def notes(self) -> tuple[str, ...]:
        """Return what a user should hear of: every call that gave no value."""
        return tuple(
            f"{failure.function} could not score {_named(failure.row_ids)}: {failure.reason}"
            for failure in self.scores.failures
        )

    def reasons(self) -> tuple[str, ...]:
        """Return why answers could not be scored, each reason once."""
        return tuple(dict.fromkeys(f"{failure.function}: {failure.reason}" for failure in self.scores.failures))


def overlong_penalties(recipe: Recipe, samples: Rows) -> list[float]:
    """Return what is taken off the reward of every sample for being close to the limit, 0 or less."""
    settings, limit = recipe.reward, recipe.sampling.max_new_tokens
    # What the limit counts: everything behind the prompt, also what a tool has said.
    lengths = [len(mask_T) - int(mask_T.int().argmax()) for mask_T in samples.ragged("mask").rows()]
    return [
        settings.overlong_penalty * overlong_penalty(length, limit, settings.overlong_buffer_tokens)
        for length in lengths
    ]


def overlong_metrics(penalties: Sequence[float], peers: Peers) -> dict[str, float]:
    """Return the mean of what was taken off over the samples of all ranks, if anything was."""
    total, count = peers.counts(fsum(penalties), len(penalties))
    return {"reward/overlong": total / count} if total else {}


def _chained(parts: Iterable[Sequence[_T]]) -> list[_T]:
    return list(chain.from_iterable(parts))


def _named(row_ids: Sequence[str]) -> str:
    """Return how many answers there are, and to which problem if it is one."""
    different = list(dict.fromkeys(row_ids))
    count = f"{len(row_ids)} answer{'s' if len(row_ids) > 1 else ''}"
    return f"{count} to {different[0]}" + (f" and {len(different) - 1} other problems" if len(different) > 1 else "")


def _by_function(scores: Scores) -> dict[str, float]:
    """Return mean and spread of every function where there are several; those of their sum are known elsewhere."""
    found = {name: [v for v in values if v is not None] for name, values in scores.values.items()}
    if len(found) == 1:
        return {}
    means = {f"reward/{name}": fmean(values) for name, values in found.items() if values}
    return means | {f"reward/{name}_std": pstdev(values) for name, values in found.items() if values}
