"""The role that samples: installs published weights, generates rollouts, evaluates greedily on held-out problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import fsum
from pathlib import Path
from typing import cast

import torch

from rpeg.environments.base import Environment
from rpeg.environments.problem import Problem
from rpeg.environments.rewards import Scorer
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import generators, is_refreshed
from rpeg.numerics.model import load_model
from rpeg.numerics.parallel.build import WHOLE, ModelLayout
from rpeg.numerics.precision import device, dtype
from rpeg.numerics.sampler import TorchSampler
from rpeg.numerics.samples import SamplingParams
from rpeg.numerics.tokenizer import load_tokenizer
from rpeg.recipe.schema import Recipe
from rpeg.recipe.sources import load_task
from rpeg.runtime.carry import Carry, Window, carry_of
from rpeg.runtime.conversation import Conversation, converse, turn_metrics
from rpeg.runtime.flow import Flow, flows
from rpeg.runtime.holders import Held, Holder
from rpeg.runtime.judge import Judge
from rpeg.runtime.learner import copied
from rpeg.runtime.probe import Probe
from rpeg.runtime.prompts import PromptSource, held_out_prompts
from rpeg.runtime.rounds import sample_rounds
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.samplers import open_sampler
from rpeg.runtime.samples import SHOWN, length_metrics, sample_records
from rpeg.runtime.shared_head import shared_head
from rpeg.runtime.shares import evenly
from rpeg.runtime.task import Outcome, Progress, Staged, Task
from rpeg.runtime.transport import Transport
from rpeg.runtime.versions import Versions
from rpeg.runtime.world import ALONE, Ranks

__all__ = ["Generator", "end_ids"]

_RIGHT = 0.999
"""A score from here on counts as a right answer."""


class Generator:
    """A sampler and the weights it may be asked to sample from."""

    def __init__(
        self,
        recipe: Recipe,
        graph: Graph,
        model: Path,
        version: int,
        rewards: Scorer,
        judge: Judge | None,
        ranks: Ranks = ALONE,
        layout: ModelLayout = WHOLE,
        *,
        values: bool = False,
        transport: Transport | None = None,
    ) -> None:
        """Load ``model`` as the weights of ``version``; later ones come by ``transport``, or with the tasks.

        Held-out answers are scored by ``rewards``, those of rounds by ``judge``; ``ranks`` sample other rows, or the
        same rows with other parts of the model, as ``layout`` says. With ``values`` the critic's head is on the
        sampler's model, and says beside every token what was to be expected.
        """
        self._recipe, self._rewards, self._judge, self._peers = recipe, rewards, judge, ranks.rows
        self._tokenizer = load_tokenizer(model)
        policy = load_model(model, dtype(recipe.model.dtype), device(recipe.run.device))
        head = shared_head(recipe, policy, model, version) if values else None
        assert values == (head is not None), "the graph records values, the recipe has no head on the policy's trunk"
        self._records_values = values
        pad_id = cast(int, self._tokenizer.pad_token_id)
        self._sampler = open_sampler(recipe, policy, model, pad_id, head, ranks, layout)
        self._sampler.version = version
        self._ends = end_ids(policy.generation_config.eos_token_id, cast(int, self._tokenizer.eos_token_id))
        probe = Probe(recipe, self._tokenizer, policy)
        weights = copied(policy, head)  # this rank's parts, where the sampler is split
        self._versions = Versions(self._sampler, policy, weights, recipe.algorithm.staleness, probe, self._peers)
        if transport is not None:
            self._versions.come_by(transport)
        self._task = task = load_task(recipe)
        self._environment = task if isinstance(task, Environment) else None
        self._flow = self._open_flow(graph)
        self._carry = next((c for each in generators(graph) if (c := carry_of(graph, each.name)) is not None), None)
        looks_ahead = recipe.algorithm.dynamic_sampling is not None or self._carry is not None
        self._source = PromptSource(recipe, task, self._tokenizer) if looks_ahead else None
        count = recipe.evaluation.prompts
        is_evaluated = recipe.evaluation.every_steps > 0
        held_out = held_out_prompts(recipe, task, self._tokenizer, count) if is_evaluated else []
        share = evenly(len(held_out), self._peers.count)[self._peers.number]
        self._held_out = held_out[share.start : share.stop]
        self._num_shown = max(0, min(SHOWN - share.start, len(share)))

    def _open_flow(self, graph: Graph) -> Flow | None:
        """Return what samples go on in from one call to the next, if the graph has it so."""
        stage = next((each for each in generators(graph) if flows(graph, each.name)), None)
        if stage is None:
            return None
        self._is_refreshed, self._keeps_cache = is_refreshed(graph, stage.name), "kv_keep" in stage.heads
        has_queue = self._is_refreshed or graph.batch_rows > self._open_batches.slots
        longest, group = self._recipe.data.max_prompt_tokens, self._recipe.algorithm.group_size
        return Flow(self._open_batches, group, self._params, longest, has_queue=has_queue)

    @property
    def _open_batches(self) -> TorchSampler:
        """The sampler, which must be one whose batches can be added to and cut."""
        assert isinstance(self._sampler, TorchSampler), "refused before the start for other engines"
        return self._sampler

    def pull(self, task: Task) -> Outcome:
        """Take over published weights; as many versions are kept as the graph may still read.

        Samples under way that need not be finished by the old ones go on with them at once.
        """
        version, metrics = task.step + 1, self._take(task, task.step + 1)
        if self._flow is not None and self._is_refreshed:
            self._install(self._flow, version)
        return Outcome(metrics=metrics, version=version)

    def _take(self, task: Task, version: int) -> Mapping[str, float]:
        assert isinstance(task.weights, Staged), f"nothing was pushed for step {task.step}"
        return self._versions.take(task.weights, version)

    def held(self, holder: Holder) -> Held:
        """Return all versions of the weights; those that the sampler works with are a copy of one of them."""
        model = self._open_batches.model
        return Held(tuple(self._versions.tensors), tuple(model.parameters()), self._versions.forget)

    def _use(self, task: Task) -> int:
        """Sample from the version that the task names; a publish without a pull brings its weights along.

        Of these no metric is told: a run that is resumed has them from its checkpoint, and must tell the same.
        """
        (version,) = task.versions.values()
        if task.weights is not None:
            self._take(task, version)
        self._versions.load(version)
        return version

    def generate(self, task: Task) -> Outcome:
        """Sample a group per prompt from the weights the graph names, in rounds where it has them."""
        if self._flow is not None:
            return self._go_on(self._flow, task)
        version = self._use(task)
        if self._carry is not None:
            return self._carry_on(self._carry, task, version)
        if self._recipe.algorithm.dynamic_sampling is not None:
            return self._generate_in_rounds(task, version)
        answers = self._answer(task.groups)
        prompts = _repeated(task.groups, self._recipe.algorithm.group_size)
        made = self._made(task, prompts, answers, task.groups.tensor("row").tolist(), version)
        turns = {} if self._environment is None else turn_metrics(answers, self._peers)
        return replace(made, metrics={**made.metrics, **turns})

    def _made(
        self, task: Task, prompts: list[list[int]], answers: list[Conversation], asked: list[int], version: int
    ) -> Outcome:
        """Return what is told of the answers to the problems of the rows ``asked``, a group each."""
        rows = _rows(prompts, answers)
        return Outcome(
            rows.joined(_values(rows, answers)) if self._records_values else rows,
            metrics=length_metrics(rows, self._peers),
            records=self._shown(task, rows, asked),
            num_rows=len(rows),
            num_tokens=_num_trained(answers),
            version=version,
        )

    def _shown(self, task: Task, rows: Rows, asked: list[int]) -> tuple[Mapping[str, object], ...]:
        """Return samples of a step to read: the first of its first firing, which answer the problems of these rows."""
        if task.firing > 0:
            return ()
        group = self._recipe.algorithm.group_size
        problems = [self._task.train(row) for row in asked[: -(-SHOWN // group)] for _ in range(group)]
        return sample_records(task.step, rows, problems, self._tokenizer)

    def _go_on(self, flow: Flow, task: Task) -> Outcome:
        """Begin the groups of a step at its first firing, and hand out as many as a firing has once they are complete.

        Where weights arrive in between, a call ends after some tokens, so that they can be installed; ranks hand out
        their groups in the same call, when all of them have theirs.
        """
        if not flow.has_begun(task.step):
            (version,) = task.versions.values()
            if not self._is_refreshed:
                flow.go_on_with(self._use(task), keeps_cache=True)
            elif task.weights is not None and version > flow.version:  # a publish without a pull
                self._take(task, version)
                self._install(flow, version)
            flow.add(task.step, task.groups, task.places)
        self._versions.load(flow.version)  # an evaluation or a pull may have given the sampler others
        count, places = self._handed_out(task)
        if self._is_refreshed and any(self._peers.counts(not flow.is_ready(task.step, count, places))):
            flow.advance()
            has_room = any(self._peers.counts(flow.has_room))  # a rank that has would wait for the others in vain
            return Outcome(progress=Progress.RELEASED if has_room else Progress.UNDER_WAY)
        while (taken := flow.take(task.step, count, places)) is None:
            flow.advance()
        answers = [Conversation.of(sampled) for sampled in taken.samples]
        made = self._made(task, taken.prompts, answers, taken.rows, flow.version)
        return replace(made, places=tuple(taken.places))

    def _handed_out(self, task: Task) -> tuple[int, range]:
        """Return how many groups a firing has of this rank, and the places of those that may be among them."""
        prompts, firings = self._recipe.algorithm.prompts, task.num_firings
        # An optimizer mini-batch trains on prompts of its own, where a firing has not those of several.
        parts = min(self._recipe.algorithm.updates_per_step, firings)
        part, first = task.firing * parts // firings, task.step * prompts
        places = range(first + part * prompts // parts, first + (part + 1) * prompts // parts)
        return len(evenly(prompts // firings, self._peers.count)[self._peers.number]), places

    def _carry_on(self, carry: Carry, task: Task, version: int) -> Outcome:
        """Hand out the groups that are complete first, and carry the rest over."""
        assert self._source is not None, "the prompts of later steps are needed"
        group, longest = self._recipe.algorithm.group_size, self._recipe.data.max_prompt_tokens
        source, peers = self._source.rows, self._peers
        window = Window(self._open_batches, self._params, carry, group, longest, source, peers)
        done = window.sample(task.step, task.carried)
        made = self._made(task, done.prompts, done.answers, done.rows, version)
        metrics = {**made.metrics, **done.metrics}
        return replace(made, metrics=metrics, places=tuple(done.numbers), carried=done.left)

    def _install(self, flow: Flow, version: int) -> None:
        """Let samples under way go on with new weights at once."""
        self._versions.load(version)
        flow.go_on_with(version, keeps_cache=self._keeps_cache)

    def _generate_in_rounds(self, task: Task, version: int) -> Outcome:
        """Sample and judge until enough groups have spread; the rows are those of the step, with their rewards."""
        judge, source, settings = self._judge, self._source, self._recipe.algorithm.dynamic_sampling
        assert judge is not None, "rounds need a judge"
        assert source is not None, "rounds need prompts"
        assert settings is not None, "the recipe has no rounds"
        group = self._recipe.algorithm.group_size
        found = sample_rounds(
            lambda number: source.further_rows(task.step, number) if number else task.groups,
            lambda asked: _rows(_repeated(asked, group), self._answer(asked)),
            lambda asked, drafts: judge.judge(asked.tensor("row").tolist(), drafts, group),
            group,
            settings.max_rounds,
        )
        judged = judge.outcome(found.verdict)
        assert judged.rows is not None, "judging gives rows"
        return replace(
            judged,
            rows=found.samples.joined(judged.rows),
            metrics={**judged.metrics, **found.metrics(), **length_metrics(found.samples, self._peers)},
            records=self._shown(task, found.samples, found.asked),
            notes=(*judged.notes, *([found.note] if found.note else [])),
            num_rows=found.num_sampled * group,
            num_tokens=found.num_tokens,
            version=version,
        )

    @property
    def _params(self) -> SamplingParams:
        sampling = self._recipe.sampling
        return SamplingParams(sampling.temperature, sampling.max_new_tokens, self._ends, values=self._records_values)

    @property
    def _greedy(self) -> SamplingParams:
        return SamplingParams(1.0, self._recipe.sampling.max_new_tokens, self._ends, greedy=True)

    def _answer(self, asked: Rows) -> list[Conversation]:
        """Answer prompts, a group each."""
        group = self._recipe.algorithm.group_size
        prompts = [ids.tolist() for ids in asked.ragged("tokens").rows()]
        rows = asked.tensor("row").tolist()
        seeds = [seed + member for seed in asked.tensor("seed").tolist() for member in range(group)]
        return self._converse(prompts, lambda place: self._task.train(rows[place]), group, self._params, seeds)

    def _converse(
        self,
        prompts: list[list[int]],
        problems: Callable[[int], Problem],
        group: int,
        params: SamplingParams,
        seeds: list[int],
    ) -> list[Conversation]:
        if not prompts:
            return []  # there are fewer rows than ranks
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
        columns = _rows(prompts, answers).only(("tokens", "mask", "version", "finished"))
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
            **self._mean("eval/accuracy", [score >= _RIGHT for score in verdicts if score is not None]),
            **self._mean("eval/reward", [reward for reward in rewards if reward is not None]),
            **self._mean("eval/length", [len(_said(sample)) for sample in samples]),
        }
        records = tuple(self._record(task.step, i, s, rewards[i]) for i, s in enumerate(samples[: self._num_shown]))
        num_tokens = _num_trained(samples)
        return Outcome(metrics=metrics, records=records, num_rows=len(samples), num_tokens=num_tokens, version=version)

    def _mean(self, name: str, values: Sequence[float]) -> dict[str, float]:
        """Return the mean over all ranks under its name; no metric where there is nothing to average."""
        total, count = self._peers.counts(fsum(values), len(values))
        return {name: total / count} if count else {}

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


def _rows(prompts: list[list[int]], answers: list[Conversation]) -> Rows:
    """Prompt and answer as they are trained, with the sampler's side data aligned to the tokens."""
    pairs = list(zip(prompts, answers, strict=True))
    return Rows(
        {
            "tokens": Ragged.of([p + s.ids for p, s in pairs], torch.int64),
            "mask": Ragged.of([[False] * len(p) + s.mask for p, s in pairs], torch.bool),
            "logp": Ragged.of([[0.0] * len(p) + s.logps for p, s in pairs], torch.float32),
            "version": Ragged.of([s.versions[:1] * len(p) + s.versions for p, s in pairs], torch.int32),
            "finished": torch.tensor([s.finished for s in answers], dtype=torch.bool),
        }
    )


def _values(rows: Rows, answers: list[Conversation]) -> Rows:
    """Return the recorded values beside the tokens of ``rows``, 0 for what the policy did not write."""
    lengths = rows.ragged("tokens").lengths_N.tolist()
    values = [[0.0] * (length - len(s.values)) + s.values for length, s in zip(lengths, answers, strict=True)]
    return Rows({"value": Ragged.of(values, torch.float32)})
