"""The role that judges: scores answers."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from rpeg.environments.overlong import overlong_penalty
from rpeg.environments.problem import Problem
from rpeg.environments.rewards import Scorer
from rpeg.errors import RunFault
from rpeg.numerics.tokenizer import load_tokenizer
from rpeg.recipe.schema import Recipe
from rpeg.recipe.sources import load_task
from rpeg.runtime.rows import Rows
from rpeg.runtime.task import Outcome, Task
from rpeg.runtime.verdict import Verdict

__all__ = ["Judge"]

_SHOWN = 16
"""Samples of one step that are kept to read."""


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
        return self.outcome(task, verdict, task.samples)

    def judge(self, problems: list[int], samples: Rows, group: int) -> Verdict:
        """Score ``samples``, which answer the training problems of these numbers, ``group`` of them each."""
        asked = [problem for index in problems for problem in [self._task.train(index)] * group]
        answers = self._answers(samples)
        settings, limit = self._recipe.reward, self._recipe.sampling.max_new_tokens
        # What the limit counts: everything behind the prompt, also what a tool has said.
        lengths = [len(mask_T) - int(mask_T.int().argmax()) for mask_T in samples.ragged("mask").rows()]
        penalties = [
            settings.overlong_penalty * overlong_penalty(length, limit, settings.overlong_buffer_tokens)
            for length in lengths
        ]
        return Verdict(asked, answers, self._rewards.score(asked, answers, group), penalties)

    def outcome(self, task: Task, verdict: Verdict, samples: Rows) -> Outcome:
        """Return the rewards as rows, with what is worth telling of them."""
        rewards = verdict.rewards
        if rewards.count(None) == len(rewards):
            raise RunFault(f"no answer of step {task.step + 1} could be scored: {verdict.why_nothing()}")
        shown = range(min(_SHOWN, len(rewards)) if task.firing == 0 else 0)
        records = tuple(self._record(task.step, samples, i, verdict.problems[i], rewards[i]) for i in shown)
        rows = Rows({"reward": verdict.column()})
        return Outcome(
            rows, metrics=verdict.metrics(samples), records=records, notes=verdict.notes(), num_rows=len(rewards)
        )

    def verify_greedy(self, task: Task) -> Outcome:
        """Give the greedy answer to every prompt a reward, NaN where no function could score it."""
        verdict = self.judge(task.groups.tensor("row").tolist(), task.groups, 1)
        found = [reward for reward in verdict.rewards if reward is not None]
        return Outcome(Rows({"reward": verdict.column()}), metrics={"greedy/reward": fmean(found)} if found else {})

    def _answers(self, rows: Rows) -> list[str]:
        pairs = zip(rows.ragged("tokens").rows(), rows.ragged("mask").rows(), strict=True)
        return self._tokenizer.batch_decode([tokens[mask].tolist() for tokens, mask in pairs], skip_special_tokens=True)

    def _record(
        self, step: int, samples: Rows, index: int, problem: Problem, reward: float | None
    ) -> dict[str, object]:
        mask_T = samples.ragged("mask").rows()[index]
        whole_T = samples.ragged("tokens").rows()[index][int(mask_T.int().argmax()) :]
        return {
            "step": step + 1,
            "row_id": problem.row_id,
            "prompt": problem.text,
            "response": self._tokenizer.decode(whole_T.tolist(), skip_special_tokens=True),
            "answer": problem.answer,
            "reward": reward,
            "version": int(samples.ragged("version").rows()[index][-1]),
            "length": int(mask_T.sum()),
            "finished": bool(samples.tensor("finished")[index]),
            "held_out": False,
        }
