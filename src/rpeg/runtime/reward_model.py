"""The role that scores by a model: a frozen classifier in place of reward functions."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from rpeg.numerics.precision import device, dtype
from rpeg.numerics.reward_model import load_reward_model
from rpeg.numerics.tokenizer import load_tokenizer
from rpeg.recipe.schema import Recipe
from rpeg.runtime.holders import Held, Holder
from rpeg.runtime.rows import Rows
from rpeg.runtime.task import Outcome, Task
from rpeg.runtime.verdict import overlong_metrics, overlong_penalties
from rpeg.runtime.world import ALONE, Ranks

__all__ = ["RewardRole"]

_TOO_LONG = "too long for the reward model"


class RewardRole:
    """A reward model in place of the functions."""

    def __init__(self, recipe: Recipe, policy: Path, ranks: Ranks = ALONE) -> None:
        """Load the model that the recipe names, for what the model in the folder ``policy`` writes."""
        assert recipe.reward.model is not None, "the graph has a reward model, the recipe has none"
        self._recipe, self._peers = recipe, ranks.rows
        place, budget = device(recipe.run.device), recipe.optimizer.micro_batch_tokens
        written_with = load_tokenizer(policy)
        self._model = load_reward_model(recipe.reward.model, dtype(recipe.model.dtype), place, written_with, budget)

    def score(self, task: Task) -> Outcome:
        """Give every sample a reward, NaN where the model could not read it."""
        rows = task.samples
        penalties = overlong_penalties(self._recipe, rows)
        rewards_N = self._score(rows) + torch.tensor(penalties)
        return Outcome(
            Rows({"reward": rewards_N}),
            metrics=overlong_metrics(penalties, self._peers),
            rewards=tuple(rewards_N.tolist()),
            unscored=() if bool(rewards_N.isfinite().all()) else (_TOO_LONG,),
            num_rows=len(rows),
        )

    def score_greedy(self, task: Task) -> Outcome:
        """Give the greedy answer to every prompt a reward."""
        rewards_N = self._score(task.groups) + torch.tensor(overlong_penalties(self._recipe, task.groups))
        scored = rewards_N[rewards_N.isfinite()].double()
        total, count = self._peers.counts(float(scored.sum()), len(scored))
        metrics = {"greedy/reward": total / count if count else float("nan")}
        return Outcome(Rows({"reward": rewards_N}), metrics=metrics, num_rows=len(rewards_N))

    def held(self, holder: Holder) -> Held:
        """Return the weights."""
        return Held(self._model.parameters)

    def _score(self, rows: Rows) -> Tensor:
        return self._model.score([tokens.tolist() for tokens in rows.ragged("tokens").rows()])
