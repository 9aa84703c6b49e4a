"""The role that judges: scores answers, and turns the scores of a group into advantages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from rpeg.environments.overlong import overlong_penalty
from rpeg.environments.problem import Problem
from rpeg.environments.rewards import Scorer
from rpeg.errors import RunFault
from rpeg.graph.stage import StageKind
from rpeg.numerics.advantages import group_advantages
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
    """Rewards and the baseline they are compared with."""

    def __init__(self, recipe: Recipe, model: Path, rewards: Scorer) -> None:
        """Judge by ``rewards``, reading answers with the tokenizer of ``model``."""
        self._recipe, self._rewards = recipe, rewards
        self._tokenizer = load_tokenizer(model)
        self._task = load_task(recipe)

    def methods(self) -> Mapping[StageKind, Callable[[Task], Outcome]]:
        """Return what this role does, by stage kind."""
        return {StageKind.VERIFY: self.verify, StageKind.ADVANTAGE: self.advantage}

    def verify(self, task: Task) -> Outcome:
        """Give every sample a reward, NaN where no function could score it."""
        verdict = self.judge(task.groups.tensor("row").tolist(), task.samples)
        return self.outcome(task, verdict, task.samples)

    def judge(self, problems: list[int], samples: Rows) -> Verdict:
        """Score ``samples``, which answer the training problems of these numbers, a group each."""
        group = self._recipe.algorithm.group_size
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

    def advantage(self, task: Task) -> Outcome:
        """Compare every reward with those of its group; unscorable samples get NaN, which the trainer leaves out."""
        rewards = task.samples.tensor("reward")
        algorithm = self._recipe.algorithm
        advantages, stats = group_advantages(rewards, algorithm.group_size, algorithm.std_normalise)
        advantages[~rewards.isfinite()] = float("nan")
        return Outcome(Rows({"advantage": advantages}), metrics=stats.metrics(), num_rows=len(rewards))
