"""The role that scores by a model: a frozen classifier in place of reward functions."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from rpeg.errors import RunFault
from rpeg.numerics.precision import device, dtype
from rpeg.numerics.reward_model import load_reward_model
from rpeg.numerics.tokenizer import load_tokenizer
from rpeg.recipe.schema import Recipe
from rpeg.runtime.rows import Rows
from rpeg.runtime.task import Outcome, Task
from rpeg.runtime.world import ALONE, Ranks

__all__ = ["RewardRole"]

_SHOWN = 16
"""Samples of one step that are kept to read."""


class RewardRole:
    """A reward model and the tokenizer of what it scores."""

    def __init__(self, recipe: Recipe, policy: Path, ranks: Ranks = ALONE) -> None:
        """Load the model that the recipe names, for what the model in the folder ``policy`` writes."""
        assert recipe.reward.model is not None, "the graph has a reward model, the recipe has none"
        self._tokenizer, self._peers = load_tokenizer(policy), ranks.rows
        place, budget = device(recipe.run.device), recipe.optimizer.micro_batch_tokens
        self._model = load_reward_model(recipe.reward.model, dtype(recipe.model.dtype), place, self._tokenizer, budget)

    def score(self, task: Task) -> Outcome:
        """Give every sample a reward, NaN where the model could not read it."""
        rows = task.samples
        rewards_N = self._score(rows)
        lengths = [int(mask.sum()) for mask in rows.ragged("mask").rows()]
        num_scored, num_tokens, num_rows = self._peers.counts(
            int(rewards_N.isfinite().sum()), sum(lengths), len(lengths)
        )
        if not num_scored:
            raise RunFault(f"no answer of step {task.step + 1} could be scored: all are too long for the reward model")
        longest = self._peers.greatest(max(lengths, default=0))
        metrics = {"length/mean": num_tokens / num_rows, "length/max": float(longest)}
        shown = range(min(_SHOWN, len(lengths)) if task.firing == 0 else 0)
        records = tuple(self._record(task, index, float(rewards_N[index])) for index in shown)
        return Outcome(Rows({"reward": rewards_N}), metrics=metrics, records=records, num_rows=len(rows))

    def score_greedy(self, task: Task) -> Outcome:
        """Give the greedy answer to every prompt a reward."""
        rewards_N = self._score(task.groups)
        scored = rewards_N[rewards_N.isfinite()].double()
        total, count = self._peers.counts(float(scored.sum()), len(scored))
        metrics = {"greedy/reward": total / count if count else float("nan")}
        return Outcome(Rows({"reward": rewards_N}), metrics=metrics, num_rows=len(rewards_N))

    def _score(self, rows: Rows) -> Tensor:
        return self._model.score([tokens.tolist() for tokens in rows.ragged("tokens").rows()])

    def _record(self, task: Task, index: int, reward: float) -> dict[str, object]:
        tokens, mask = (task.samples.ragged(name).rows()[index] for name in ("tokens", "mask"))
        texts = self._tokenizer.batch_decode([tokens[~mask].tolist(), tokens[mask].tolist()], skip_special_tokens=True)
        return {
            "step": task.step + 1,
            "prompt": texts[0],
            "response": texts[1],
            "reward": reward,
            "length": int(mask.sum()),
            "held_out": False,
        }
