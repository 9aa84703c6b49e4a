"""Partial rollouts: a step takes the groups that are complete first; what is unfinished goes on in the next one.

    carried groups, then new ones ──▶ running batch ──▶ enough complete groups? ──▶ the step; the rest is carried
                     ▲                      │ a slot is free
                     └──────────────────────┘

Slots that samples leave are filled with the next prompts, so nobody waits for long answers: a group is admitted while
those under way are fewer than the prompts of a step and what may be carried over, which is ``max_carry`` steps' worth
where nothing less is said. So no more than that is carried over, and samples of a run are no older than ``max_carry``
steps on average, whatever their lengths. What the contract promises of a single one is kept in one of three ways:

    count   nothing: a long sample is overtaken as often as others end before it
    wait    what began ``max_carry`` steps ago has no budget any more, and the step waits for it
    drop    what began ``max_carry`` steps ago and is not in the step is thrown away, and other prompts take its place

A step can always be made of groups that begin in it, so however much is thrown away it has all its groups. All that
goes on is prefilled anew by the weights of the step, so a resumed run writes the same tokens.

Of several ranks each hands out an equal part of the step's groups, whichever of its own are complete first. What is
carried over is dealt to them anew in every step, the oldest first and in turns, so any number of ranks goes on with
what any other has left. The prompts next in line are dealt in turns, too: a rank that begins fewer than another leaves
those that it passes over among what is carried, without a token.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from rpeg.graph.contract import Enforce
from rpeg.graph.graph import Graph
from rpeg.numerics.parallel.peers import Peers
from rpeg.numerics.sampler import TorchSampler
from rpeg.numerics.samples import Sampled, SamplingParams
from rpeg.runtime.conversation import Conversation, Ending
from rpeg.runtime.rows import Ragged, Rows

__all__ = ["Carried", "Carry", "Window", "carry_of", "dealt"]


@dataclass(frozen=True, slots=True)
class Carry:
    """How samples are carried over."""

    budget: int
    """New tokens of a sample per step."""
    max_carry: int
    """Steps that a sample may be carried over."""
    most_groups: int
    """Groups that may be carried over at a time."""
    enforce: Enforce
    """What becomes of samples that would be carried over once more: COUNT, WAIT or DROP."""


def carry_of(graph: Graph, stage: str) -> Carry | None:
    """Return how a generator carries samples over, None if it finishes them."""
    steps = max((graph.data_of[write.data].max_carry for write in graph.writes(stage)), default=0)
    if not steps:
        return None
    values = {symbol.name: symbol.value for symbol in graph.symbols if symbol.value is not None}
    most = values.get("carried", steps * graph.batch_rows) // graph.group_size
    return Carry(values["budget"], steps, most, graph.contract.enforce)


@dataclass(slots=True)
class _Group:
    """A prompt and what there is of its answers."""

    number: int
    """Prompts of the run before it."""
    began: int
    """Step in which it began."""
    prompt: list[int]
    row: int
    seed: int
    """Of its first answer; the others have the next ones."""
    answers: list[Conversation] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether all its answers have ended."""
        return all(answer.ending is not None for answer in self.answers)


@dataclass(frozen=True, slots=True)
class Carried:
    """What a step of a generator that carries comes to."""

    numbers: list[int]
    """Which prompts of the run the groups of the step belong to."""
    rows: list[int]
    """Problem of each."""
    prompts: list[list[int]]
    """One per answer."""
    answers: list[Conversation]
    left: Rows
    """What is carried over, one row per answer, and, from the last rank, the prompt that is next in line."""
    metrics: dict[str, float]
    """How much began, is carried over and was thrown away, and how old it was, on all ranks together."""


def dealt(carried: Rows, ranks: int) -> list[Rows]:
    """Return the part of every rank of what a step has left: groups in turns, the oldest first, and who is next."""
    began, numbers = carried.tensor("began").tolist(), carried.tensor("number").tolist()
    groups = sorted({pair for pair in zip(began, numbers, strict=True) if pair[1] != numbers[-1]})
    rank_of = {number: place % ranks for place, (_, number) in enumerate(groups)}
    return [
        carried.picked([row for row, number in enumerate(numbers) if rank_of.get(number, rank) == rank])
        for rank in range(ranks)
    ]


class Window:
    """The groups of one step on one rank: what was carried over, and what begins."""

    def __init__(
        self,
        sampler: TorchSampler,
        params: SamplingParams,
        carry: Carry,
        group: int,
        longest_prompt: int,
        source: Callable[[int], Rows],
        peers: Peers,
    ) -> None:
        """Prepare to sample.

        Args:
            sampler: has the weights of the step.
            params: how tokens are chosen.
            carry: how much a sample may write, and how long it may take.
            group: answers to a prompt.
            longest_prompt: tokens of a prompt at most.
            source: gives the prompts of a step, which divide by the ranks.
            peers: the ranks, which sample the same step at the same time.
        """
        self._peers = peers
        self._params, self._carry, self._group, self._source = params, carry, group, source
        reach = longest_prompt + params.max_new_tokens
        self._slots = sampler.slots
        self._running = sampler.begin(params, reach - 1, longest_row=reach)
        self._writers: list[tuple[_Group, Conversation]] = []
        """Of every sample of the running batch, in the order in which they were added."""
        self._groups: list[_Group] = []
        self._next, self._num_begun = 0, 0
        """Number of the prompt that was next in line before the step, and how many this rank has begun in it."""
        self._prompts = self._size = 0
        """Groups of a step, and those that this rank hands out."""

    def sample(self, step: int, carried: Rows | None) -> Carried:
        """Go on with what the step before has left until enough groups are complete, those that must be among them."""
        self._prompts = len(self._source(step))
        self._size = self._prompts // self._peers.count
        self._groups = _unpacked(carried, self._group) if carried is not None else []
        self._next = self._groups.pop().number if self._groups else step * self._prompts
        due = self._due(step) if self._carry.enforce is Enforce.WAIT else []
        self._resume(due, None)
        self._resume([each for each in self._groups if each not in due], self._carry.budget)
        self._write(step, due)
        complete = [each for each in self._groups if each.is_complete and each not in due]
        taken = sorted([*due, *complete[: self._size - len(due)]], key=lambda each: each.number)
        rest = [each for each in self._groups if each not in taken]
        dropped = [each for each in rest if self._is_dropped(each, step)]
        left = [each for each in rest if each not in dropped]
        return Carried(
            [each.number for each in taken],
            [each.row for each in taken],
            [each.prompt for each in taken for _ in each.answers],
            [answer for each in taken for answer in each.answers],
            _packed([*left, *self._following(step)]),
            self._metrics(step, taken, left, dropped),
        )

    def _following(self, step: int) -> list[_Group]:
        """Return the prompts that this rank passes over, and on the last rank the one that is next in line for all."""
        most_begun = self._peers.greatest(self._num_begun)
        passed = [self._asked(self._of_turn(turn), step + 1) for turn in range(self._num_begun, most_begun)]
        is_last = self._peers.number == self._peers.count - 1
        return [*passed, *([self._asked(self._next + most_begun * self._peers.count, step + 1)] if is_last else [])]

    def _of_turn(self, turn: int) -> int:
        """Return the number of the prompt that this rank begins as its ``turn``-th of the step."""
        return self._next + turn * self._peers.count + self._peers.number

    def _write(self, step: int, due: list[_Group]) -> None:
        """Decode, and let prompts begin, until as many groups as a step has are complete, all due ones among them."""
        size, free = self._size, self._slots - len(self._writers)
        (num_carried,) = self._peers.counts(len(self._groups))
        most = (self._prompts + self._carry.most_groups - int(num_carried)) // self._peers.count  # the same for all
        self._begin(max(size - len(self._groups), min(most, free // self._group)), step)
        while sum(each.is_complete for each in self._groups) < size or not all(each.is_complete for each in due):
            if self._running.has_room and self._num_begun < most:
                self._begin(1, step)
            elif self._running.is_busy:
                self._hear(self._running.advance())
            else:  # budgets are used up, and no more may begin
                self._resume([each for each in self._groups if not each.is_complete][:1], None)
        self._hear(self._running.cut(), is_cut=True)

    def _is_dropped(self, group: _Group, step: int) -> bool:
        """Return whether a group that is not in this step would be too old in the next."""
        return self._carry.enforce is Enforce.DROP and group.began + self._carry.max_carry <= step

    def _metrics(self, step: int, taken: list[_Group], left: list[_Group], dropped: list[_Group]) -> dict[str, float]:
        ages = [step - each.began for each in taken]
        tokens = sum(len(answer.ids) for each in dropped for answer in each.answers)
        begun = sum(each.began == step for each in self._groups)
        stale = sum(age > 0 for age in ages)
        sums = self._peers.counts(begun, len(dropped), tokens, len(left), sum(ages), stale)
        oldest = self._peers.greatest(max((step + 1 - each.began for each in left), default=0))
        return {
            "rows/begun": float(self._group * sums[0]),
            "rows/dropped": float(self._group * sums[1]),
            "carry/dropped_tokens": float(sums[2]),
            "carry/samples": float(self._group * sums[3]),
            "carry/age_max": float(oldest),
            "carry/age_mean": sums[4] / self._prompts,
            "carry/stale": sums[5] / self._prompts,
        }

    def _due(self, step: int) -> list[_Group]:
        """Return the groups that have to be complete now, or more would be due in a later step than it can take."""
        oldest = sorted(self._groups, key=lambda each: (each.began, each.number))
        last = [each.began + self._carry.max_carry for each in oldest]
        counts = [bisect_right(last, at) - (at - step) * self._size for at in range(step, step + self._carry.max_carry)]
        return oldest[: max(0, *counts)]

    def _asked(self, number: int, step: int) -> _Group:
        """Return the prompt of this number, for which nothing has been written when it begins in ``step``."""
        at, place = divmod(number, self._prompts)
        asked = self._source(at).part(place, place + 1)
        (prompt,), row, seed = asked.ragged("tokens").rows(), asked.tensor("row"), asked.tensor("seed")
        answers = [Conversation() for _ in range(self._group)]
        return _Group(number, step, prompt.tolist(), int(row), int(seed), answers)

    def _begin(self, count: int, step: int) -> None:
        """Let the next ``count`` prompts begin."""
        for _ in range(count):
            begun = self._asked(self._of_turn(self._num_begun), step)
            self._num_begun += 1
            self._groups.append(begun)
            seeds = [begun.seed + member for member in range(self._group)]
            self._running.add([begun.prompt], self._group, seeds, budget=self._carry.budget)
            self._writers += [(begun, answer) for answer in begun.answers]

    def _resume(self, groups: Sequence[_Group], budget: int | None) -> None:
        """Let the unfinished answers of groups go on."""
        for each in groups:
            for member, answer in enumerate(each.answers):
                if answer.ending is None:
                    so_far, written = [*each.prompt, *answer.ids], [len(answer.ids)]
                    self._running.add([so_far], 1, [each.seed + member], written, budget)
                    self._writers.append((each, answer))

    def _hear(self, samples: Sequence[Sampled], *, is_cut: bool = False) -> None:
        """Add what was written; an answer ends with an end token or at the greatest length, not with its budget."""
        for sampled in samples:
            _, answer = self._writers[sampled.index]
            answer.say(sampled)
            if sampled.finished and not is_cut:
                answer.ending = Ending.FINISHED
            elif len(answer.ids) == self._params.max_new_tokens:
                answer.ending = Ending.LENGTH


def _packed(groups: list[_Group]) -> Rows:
    """Return groups as rows, one per answer."""
    pairs = [(each, answer) for each in groups for answer in each.answers]
    endings = list(Ending)
    return Rows(
        {
            "row": torch.tensor([each.row for each, _ in pairs], dtype=torch.int64),
            "seed": torch.tensor([each.seed for each, _ in pairs], dtype=torch.int64),
            "number": torch.tensor([each.number for each, _ in pairs], dtype=torch.int64),
            "began": torch.tensor([each.began for each, _ in pairs], dtype=torch.int64),
            "prompt": Ragged.of([each.prompt for each, _ in pairs], torch.int64),
            "tokens": Ragged.of([answer.ids for _, answer in pairs], torch.int64),
            "logp": Ragged.of([answer.logps for _, answer in pairs], torch.float32),
            "version": Ragged.of([answer.versions for _, answer in pairs], torch.int32),
            "ending": torch.tensor([-1 if a.ending is None else endings.index(a.ending) for _, a in pairs]).long(),
        }
    )


def _unpacked(rows: Rows, group: int) -> list[_Group]:
    """Return the groups that `_packed` has made rows of."""
    endings, texts = list(Ending), ("prompt", "tokens", "logp", "version")
    prompts, tokens, logps, versions = ([each.tolist() for each in rows.ragged(name).rows()] for name in texts)
    numbers = [rows.tensor(name).tolist() for name in ("number", "began", "row", "seed", "ending")]
    found: list[_Group] = []
    for i, (number, began, row, seed, ending) in enumerate(zip(*numbers, strict=True)):
        if i % group == 0:
            found.append(_Group(number, began, prompts[i], row, seed))
        said = Conversation(tokens[i], [True] * len(tokens[i]), logps[i], versions[i])
        said.ending = None if ending < 0 else endings[ending]
        found[-1].answers.append(said)
    return found
