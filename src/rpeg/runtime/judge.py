"""The role that judges: scores answers."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from rpeg.environments.rewards import Scorer
from rpeg.numerics.tokenizer import load_tokenizer
from rpeg.recipe.schema import Recipe
from rpeg.recipe.sources import load_task
from rpeg.runtime.rows import Rows
from rpeg.runtime.task import Outcome, Task
from rpeg.runtime.verdict import Verdict, overlong_penalties

__all__ = ["Judge"]


class Judge:
    """The reward functions of a recipe."""

    def __init__(self, recipe: Recipe, model: Path, rewards: Scorer) -> None:
        """Judge by ``rewards``, reading answers with the tokenizer of ``model``."""
        self._recipe, self._rewards = recipe, rewards
        self._tokenizer = load_tokenizer(model)
        self._task = load_task(recipe)

    def verify(self, task: Task) -> Outcome:
        """Give every sample a reward, NaN where no function could score it."""
        verdict = self.judge(task.groups.tensor("row").tolist(), task.samples, self._recipe.algorithm.group_size)
        return self.outcome(verdict)

    def judge(self, problems: list[int], samples: Rows, group: int) -> Verdict:
        """Score ``samples``, which answer the training problems of these numbers, ``group`` of them each."""
        asked = [problem for index in problems for problem in [self._task.train(index)] * group]
        answers = self._answers(samples)
        return Verdict(self._rewards.score(asked, answers, group), overlong_penalties(self._recipe, samples))

    def outcome(self, verdict: Verdict) -> Outcome:
        """Return the rewards as rows, with what is worth telling of them."""
        column_N = verdict.column()
        return Outcome(
            Rows({"reward": column_N}),
            metrics=verdict.metrics(),
            notes=verdict.notes(),
            rewards=tuple(column_N.tolist()),
            unscored=verdict.reasons(),
            num_rows=len(column_N),
        )

    def verify_greedy(self, task: Task) -> Outcome:
        """Give the greedy answer to every prompt a reward, NaN where no function could score it."""
        verdict = self.judge(task.groups.tensor("row").tolist(), task.groups, 1)
        found = [reward for reward in verdict.rewards if reward is not None]
        return Outcome(Rows({"reward": verdict.column()}), metrics={"greedy/reward": fmean(found)} if found else {})

    def _answers(self, rows: Rows) -> list[str]:
        pairs = zip(rows.ragged("tokens").rows(), rows.ragged("mask").rows(), strict=True)
        return self._tokenizer.batch_decode([tokens[mask].tolist() for tokens, mask in pairs], skip_special_tokens=True)
