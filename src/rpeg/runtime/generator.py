"""The role that samples: installs published weights, generates rollouts, evaluates greedily on held-out problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import cast

import torch

from rpeg.environments.base import Environment
from rpeg.environments.problem import Problem
from rpeg.environments.rewards import Scorer
from rpeg.numerics.model import load_model
from rpeg.numerics.precision import device, dtype
from rpeg.numerics.sampler import SamplingParams
from rpeg.numerics.tokenizer import load_tokenizer
from rpeg.recipe.schema import Recipe
from rpeg.recipe.sources import load_task
from rpeg.runtime.conversation import Conversation, converse, turn_metrics
from rpeg.runtime.judge import Judge
from rpeg.runtime.prompts import PromptSource, held_out_prompts
from rpeg.runtime.rounds import sample_rounds
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.samplers import open_sampler
from rpeg.runtime.task import Outcome, Task, Weights

__all__ = ["Generator", "end_ids"]

_RIGHT = 0.999
"""A score from here on counts as a right answer."""
_SHOWN = 16
"""Held-out samples of one evaluation that are kept to read."""


class Generator:
    """A sampler and the weights it may be asked to sample from."""

    def __init__(self, recipe: Recipe, model: Path, version: int, rewards: Scorer, judge: Judge | None) -> None:
        """Load ``model`` as the weights of ``version``.

        Held-out answers are scored by ``rewards``, those of rounds by ``judge``.
        """
        self._recipe, self._rewards, self._judge = recipe, rewards, judge
        self._tokenizer = load_tokenizer(model)
        policy = load_model(model, dtype(recipe.model.dtype), device(recipe.run.device))
        self._sampler = open_sampler(recipe, policy, model, cast(int, self._tokenizer.pad_token_id))
        self._sampler.version = version
        self._ends = end_ids(policy.generation_config.eos_token_id, cast(int, self._tokenizer.eos_token_id))
        self._weights: dict[int, Weights] = {
            version: {name: p.detach().clone() for name, p in policy.named_parameters()}
        }
        self._task = task = load_task(recipe)
        self._environment = task if isinstance(task, Environment) else None
        has_rounds = recipe.algorithm.dynamic_sampling is not None
        self._source = PromptSource(recipe, task, self._tokenizer) if has_rounds else None
        count = recipe.evaluation.prompts
        is_evaluated = recipe.evaluation.every_steps > 0
        self._held_out = held_out_prompts(recipe, task, self._tokenizer, count) if is_evaluated else []

    def pull(self, task: Task) -> Outcome:
        """Take over published weights; as many versions are kept as the graph may still read."""
        assert task.weights is not None, f"nothing was pushed for step {task.step}"
        self._take(task.weights, task.step + 1)
        return Outcome(version=task.step + 1)

    def _take(self, weights: Weights, version: int) -> None:
        self._weights[version] = weights
        for old in [v for v in self._weights if v < version - self._recipe.algorithm.staleness]:
            del self._weights[old]

    def _use(self, task: Task) -> int:
        """Sample from the version that the task names; a publish without a pull brings its weights along."""
        (version,) = task.versions.values()
        if task.weights is not None:
            self._take(task.weights, version)
        if self._sampler.version != version:
            self._sampler.load(self._weights[version], version)
        return version

    def generate(self, task: Task) -> Outcome:
        """Sample a group per prompt from the weights the graph names, in rounds where it has them."""
        version = self._use(task)
        if self._recipe.algorithm.dynamic_sampling is not None:
            return self._generate_in_rounds(task, version)
        answers = self._answer(task.groups)
        rows = _rows(_repeated(task.groups, self._recipe.algorithm.group_size), answers, version)
        metrics = {} if self._environment is None else turn_metrics(answers)
        return Outcome(rows, metrics=metrics, num_rows=len(rows), num_tokens=_num_trained(answers), version=version)

    def _generate_in_rounds(self, task: Task, version: int) -> Outcome:
        """Sample and judge until enough groups have spread; the rows are those of the step, with their rewards."""
        judge, source, settings = self._judge, self._source, self._recipe.algorithm.dynamic_sampling
        assert judge is not None, "rounds need a judge"
        assert source is not None, "rounds need prompts"
        assert settings is not None, "the recipe has no rounds"
        group = self._recipe.algorithm.group_size
        found = sample_rounds(
            lambda number: source.further_rows(task.step, number) if number else task.groups,
            lambda asked: _rows(_repeated(asked, group), self._answer(asked), version),
            lambda asked, drafts: judge.judge(asked.tensor("row").tolist(), drafts, group),
            group,
            settings.max_rounds,
        )
        judged = judge.outcome(task, found.verdict, found.samples)
        assert judged.rows is not None, "judging gives rows"
        return replace(
            judged,
            rows=found.samples.joined(judged.rows),
            metrics={**judged.metrics, **found.metrics()},
            notes=(*judged.notes, *([found.note] if found.note else [])),
            num_rows=found.num_sampled * group,
            num_tokens=found.num_tokens,
            version=version,
        )

    @property
    def _greedy(self) -> SamplingParams:
        return SamplingParams(1.0, self._recipe.sampling.max_new_tokens, self._ends, greedy=True)

    def _answer(self, asked: Rows) -> list[Conversation]:
        """Answer prompts, a group each."""
        sampling, group = self._recipe.sampling, self._recipe.algorithm.group_size
        params = SamplingParams(sampling.temperature, sampling.max_new_tokens, self._ends)
        prompts = [ids.tolist() for ids in asked.ragged("tokens").rows()]
        rows = asked.tensor("row").tolist()
        seeds = [seed + member for seed in asked.tensor("seed").tolist() for member in range(group)]
        return self._converse(prompts, lambda place: self._task.train(rows[place]), group, params, seeds)

    def _converse(
        self,
        prompts: list[list[int]],
        problems: Callable[[int], Problem],
        group: int,
        params: SamplingParams,
        seeds: list[int],
    ) -> list[Conversation]:
        max_turns = self._recipe.data.max_turns
        return converse(
            self._sampler, self._tokenizer, self._environment, max_turns, prompts, problems, group, params, seeds
        )

    def answer(self, task: Task) -> Outcome:
        """Answer every prompt once, greedily, from the weights the graph names."""
        version = self._use(task)
        prompts = _repeated(task.groups, 1)
        problems = [self._task.train(row) for row in task.groups.tensor("row").tolist()]
        answers = self._converse(prompts, problems.__getitem__, 1, self._greedy, [0] * len(prompts))
        columns = _rows(prompts, answers, version).only(("tokens", "mask", "version", "finished"))
        return Outcome(columns, num_rows=len(columns), num_tokens=_num_trained(answers), version=version)

    def evaluate(self, task: Task) -> Outcome:
        """Answer the held-out problems greedily; accuracy is the share of right answers."""
        version = self._use(task)
        prompts = [ids for _, ids in self._held_out]
        problems = [problem for problem, _ in self._held_out]
        samples = self._converse(prompts, problems.__getitem__, 1, self._greedy, [0] * len(prompts))
        texts = self._tokenizer.batch_decode([_said(sample) for sample in samples], skip_special_tokens=True)
        scores = self._rewards.score(problems, texts)
        rewards, verdicts = scores.totals, next(iter(scores.values.values()))  # the first function says what is right
        metrics = {
            **_mean("eval/accuracy", [score >= _RIGHT for score in verdicts if score is not None]),
            **_mean("eval/reward", [reward for reward in rewards if reward is not None]),
            **_mean("eval/length", [len(_said(sample)) for sample in samples]),
        }
        records = tuple(self._record(task.step, i, s, rewards[i]) for i, s in enumerate(samples[:_SHOWN]))
        num_tokens = _num_trained(samples)
        return Outcome(metrics=metrics, records=records, num_rows=len(samples), num_tokens=num_tokens, version=version)

    def _record(self, step: int, index: int, sample: Conversation, reward: float | None) -> Mapping[str, object]:
        problem, _ = self._held_out[index]
        return {
            "step": step + 1,
            "row_id": problem.row_id,
            "prompt": problem.text,
            "response": self._tokenizer.decode(sample.ids, skip_special_tokens=True),
            "answer": problem.answer,
            "reward": reward,
            "advantage": None,
            "version": self._sampler.version,
            "length": len(_said(sample)),
            "finished": sample.finished,
            "held_out": True,
        }


def _mean(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return the mean under its name; no metric where there is nothing to average."""
    return {name: fmean(values)} if values else {}


def end_ids(*found: int | list[int] | None) -> tuple[int, ...]:
    """Return the ids that end an answer, from a generation config and a tokenizer, without repeats."""
    flat = [i for ids in found if ids is not None for i in (ids if isinstance(ids, list) else [ids])]
    return tuple(dict.fromkeys(flat))


def _said(answer: Conversation) -> list[int]:
    """Return the tokens that the policy wrote."""
    return [token for token, own in zip(answer.ids, answer.mask, strict=True) if own]


def _num_trained(answers: Sequence[Conversation]) -> int:
    return sum(sum(answer.mask) for answer in answers)


def _repeated(asked: Rows, group: int) -> list[list[int]]:
    """Return the prompt of every answer."""
    return [ids.tolist() for ids in asked.ragged("tokens").rows() for _ in range(group)]


def _rows(prompts: list[list[int]], answers: list[Conversation], version: int) -> Rows:
    """Prompt and answer as they are trained, with the sampler's side data aligned to the tokens."""
    pairs = list(zip(prompts, answers, strict=True))
    return Rows(
        {
            "tokens": Ragged.of([p + s.ids for p, s in pairs], torch.int64),
            "mask": Ragged.of([[False] * len(p) + s.mask for p, s in pairs], torch.bool),
            "logp": Ragged.of([[0.0] * len(p) + s.logps for p, s in pairs], torch.float32),
            "version": Ragged.of([[version] * (len(p) + len(s.ids)) for p, s in pairs], torch.int32),
            "finished": torch.tensor([s.finished for s in answers]),
        }
    )
