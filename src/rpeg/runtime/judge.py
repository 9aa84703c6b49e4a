"""The role that judges: scores answers."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import torch

from rpeg.environments.problem import Problem
from rpeg.environments.rewards import Scores
from rpeg.errors import RunFault
from rpeg.numerics.tokenizer import load_tokenizer
from rpeg.recipe.schema import Recipe
from rpeg.recipe.sources import load_rewards, load_task
from rpeg.runtime.rows import Rows
from rpeg.runtime.task import Outcome, Task

__all__ = ["Judge"]

_SHOWN = 16
"""Samples of one step that are kept to read."""


class Judge:
    """The reward functions of a recipe."""

    def __init__(self, recipe: Recipe, model: Path) -> None:
        """Load the recipe's reward functions, and the tokenizer of ``model`` to read answers with."""
        self._recipe = recipe
        self._tokenizer = load_tokenizer(model)
        self._task = load_task(recipe)
        self._rewards = load_rewards(recipe, self._task)

    def verify(self, task: Task) -> Outcome:
        """Give every sample a reward, NaN where no function could score it."""
        group = self._recipe.algorithm.group_size
        asked = [self._task.train(index) for index in task.groups.tensor("row").tolist()]
        problems = [problem for problem in asked for _ in range(group)]
        answers = self._answers(task.samples)
        scores = self._rewards.score(problems, answers)
        rewards = torch.tensor(
            [float("nan") if total is None else total for total in scores.totals], dtype=torch.float64
        )
        if scores.num_unscorable == len(problems):
            raise RunFault(f"no answer of step {task.step + 1} could be scored: {_why(scores)}")
        metrics = {**_lengths(task.samples), **_means(scores)}
        shown = range(min(_SHOWN, len(problems)) if task.firing == 0 else 0)
        records = tuple(self._record(task, i, problems[i], answers[i], scores.totals[i]) for i in shown)
        notes = tuple(f"{f.function} could not score {len(f.row_ids)} answers: {f.reason}" for f in scores.failures)
        rows = Rows({"reward": rewards})
        return Outcome(rows, metrics=metrics, records=records, notes=notes, num_rows=len(problems))

    def verify_greedy(self, task: Task) -> Outcome:
        """Give the greedy answer to every prompt a reward, NaN where no function could score it."""
        answers = task.groups
        problems = [self._task.train(index) for index in answers.tensor("row").tolist()]
        totals = self._rewards.score(problems, self._answers(answers)).totals
        rewards = [float("nan") if total is None else total for total in totals]
        found = [total for total in totals if total is not None]
        metrics = {"greedy/reward": fmean(found)} if found else {}
        return Outcome(Rows({"reward": torch.tensor(rewards, dtype=torch.float64)}), metrics=metrics)

    def _answers(self, rows: Rows) -> list[str]:
        pairs = zip(rows.ragged("tokens").rows(), rows.ragged("mask").rows(), strict=True)
        return self._tokenizer.batch_decode([tokens[mask].tolist() for tokens, mask in pairs], skip_special_tokens=True)

    def _record(self, task: Task, index: int, problem: Problem, answer: str, reward: float | None) -> dict[str, object]:
        mask_T = task.samples.ragged("mask").rows()[index]
        return {
            "step": task.step + 1,
            "row_id": problem.row_id,
            "prompt": problem.text,
            "response": answer,
            "answer": problem.answer,
            "reward": reward,
            "version": int(task.samples.ragged("version").rows()[index][-1]),
            "length": int(mask_T.sum()),
            "finished": bool(task.samples.tensor("finished")[index]),
            "held_out": False,
        }


def _why(scores: Scores) -> str:
    reasons = dict.fromkeys(f"{failure.function}: {failure.reason}" for failure in scores.failures)
    return "; ".join(reasons) or "every reward function returned None"


def _means(scores: Scores) -> dict[str, float]:
    """Return the mean of every function where there are several; the mean of their sum is in ``reward/mean``."""
    found = {name: [v for v in values if v is not None] for name, values in scores.values.items()}
    return {f"reward/{name}": fmean(values) for name, values in found.items() if values and len(found) > 1}


def _lengths(rows: Rows) -> dict[str, float]:
    lengths = torch.stack([mask.sum() for mask in rows.ragged("mask").rows()]).double()
    truncated = 1.0 - float(rows.tensor("finished").double().mean())
    return {"length/mean": float(lengths.mean()), "length/max": float(lengths.max()), "length/truncated": truncated}
