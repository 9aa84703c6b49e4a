"""Answers that are conversations: the policy writes until it asks, the environment answers, the policy goes on.

    prompt ─▶ sample up to the stop or the end ─▶ asked? ─▶ environment ─▶ its words as tokens ─┐
                        ▲                          └─ no ─▶ the answer is over                  │
                        └───────────────────────────────────────────────────────────────────────┘

Token ids are kept as they are: what was sampled is never decoded and encoded again, nothing is put between turns, and
the environment's words are encoded by themselves. They stand in the row with mask False, so that no loss, advantage or
statistic sees them, but they count against the length of the answer. All conversations take their turns together: after
each, those that go on are prefilled anew with all they have so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from transformers import PreTrainedTokenizerFast

from rpeg.environments.base import Environment, Episode
from rpeg.environments.problem import Problem
from rpeg.errors import DataError, Fault
from rpeg.numerics.parallel.peers import Peers
from rpeg.numerics.sampler import Sampler
from rpeg.numerics.samples import Sampled, SamplingParams

__all__ = ["Conversation", "Ending", "converse", "stop_id", "turn_metrics"]


class Ending(StrEnum):
    """Why an answer ended."""

    FINISHED = "finished"
    """With an end token, or because the environment had nothing more to say."""
    LENGTH = "length"
    """At the greatest number of tokens."""
    TURNS = "turns"
    """At the greatest number of turns."""


@dataclass(slots=True)
class Conversation:
    """One answer: everything after the prompt."""

    ids: list[int] = field(default_factory=list)
    """Token ids of all turns, the environment's included."""
    mask: list[bool] = field(default_factory=list)
    """Whether the policy wrote each token."""
    logps: list[float] = field(default_factory=list)
    """Log-probability of each token of the policy as it was sampled, 0 for those of the environment."""
    versions: list[int] = field(default_factory=list)
    """Version of the weights that each token was drawn from; of the environment's, that of the turn before."""
    values: list[float] = field(default_factory=list)
    """Value of the state before each token of the policy, 0 where none is recorded and for those of the environment."""
    last: list[int] = field(default_factory=list)
    """Tokens of the policy's last turn."""
    num_turns: int = 0
    """Turns of the policy."""
    ending: Ending | None = None
    """None while it goes on."""

    @classmethod
    def of(cls, sampled: Sampled) -> Conversation:
        """Return an answer of one turn."""
        answer = cls(ending=Ending.FINISHED if sampled.finished else Ending.LENGTH)
        answer.say(sampled)
        return answer

    @property
    def finished(self) -> bool:
        """Whether it was not cut off."""
        return self.ending is Ending.FINISHED

    def say(self, sampled: Sampled) -> None:
        """Add a turn of the policy."""
        self.last = sampled.ids
        self.ids += sampled.ids
        self.logps += sampled.logps
        self.versions += sampled.versions
        self.values += sampled.values or [0.0] * len(sampled.ids)
        self.mask += [True] * len(sampled.ids)
        self.num_turns += 1

    def hear(self, ids: Sequence[int]) -> None:
        """Add what the environment answered."""
        self.ids += ids
        self.logps += [0.0] * len(ids)
        self.versions += self.versions[-1:] * len(ids)
        self.values += [0.0] * len(ids)
        self.mask += [False] * len(ids)


def stop_id(environment: Environment, tokenizer: PreTrainedTokenizerFast) -> int:
    """Return the token that ends a turn.

    Raises:
        DataError: the stop is not one token of this tokenizer, so it could be sampled in several ways.
    """
    ids = tokenizer(environment.stop, add_special_tokens=False)["input_ids"]
    if len(ids) == 1 and ids[0] != tokenizer.unk_token_id:
        return ids[0]
    how = f"is {len(ids)} tokens of the model's tokenizer" if len(ids) > 1 else "the model's tokenizer does not know"
    fault = Fault("data.task", f"a turn ends with {environment.stop!r}, which {how}", "use a model that has it as one")
    raise DataError(environment.name, [fault])


@dataclass(frozen=True, slots=True)
class _Table:
    """What the conversations of one call have in common."""

    environment: Environment | None
    tokenizer: PreTrainedTokenizerFast
    params: SamplingParams
    stop: int | None
    max_turns: int


def converse(
    sampler: Sampler,
    tokenizer: PreTrainedTokenizerFast,
    environment: Environment | None,
    max_turns: int,
    prompts: Sequence[Sequence[int]],
    problems: Callable[[int], Problem],
    group: int,
    params: SamplingParams,
    seeds: Sequence[int],
) -> list[Conversation]:
    """Answer every prompt ``group`` times; without an environment an answer is one turn.

    Args:
        sampler: has the weights to sample from.
        tokenizer: encodes what the environment says.
        environment: answers, if there is one.
        max_turns: turns of the policy at most.
        prompts: token ids.
        problems: gives the problem of a prompt by its place.
        group: answers per prompt.
        params: ``max_new_tokens`` counts the tokens of both sides.
        seeds: one per answer.
    """
    stop = stop_id(environment, tokenizer) if environment is not None else None
    table = _Table(environment, tokenizer, params, stop, max_turns)
    stops = params if stop is None else replace(params, end_ids=(*params.end_ids, stop))
    answers = [Conversation() for _ in seeds]
    episodes = [environment.reset(problems(i // group)) for i in range(len(seeds))] if environment is not None else []
    for sampled in sampler.generate(prompts, group, stops, seeds):
        answers[sampled.index].say(sampled)
    while going := [i for i, answer in enumerate(answers) if _goes_on(table, answer, episodes[i : i + 1])]:
        so_far = [[*prompts[i // group], *answers[i].ids] for i in going]
        written = [len(answers[i].ids) for i in going]
        for sampled in sampler.generate(so_far, 1, stops, [seeds[i] for i in going], written):
            answers[going[sampled.index]].say(sampled)
    return answers


def _goes_on(table: _Table, answer: Conversation, episode: Sequence[Episode]) -> bool:
    """Note how an answer ended, or let the environment have its say; return whether the policy is to go on."""
    if answer.ending is not None:
        return False
    if answer.ids[-1] in table.params.end_ids:
        answer.ending = Ending.FINISHED
    elif answer.ids[-1] != table.stop:
        answer.ending = Ending.LENGTH
    elif answer.num_turns == table.max_turns:
        answer.ending = Ending.TURNS
    else:
        answer.ending = _answered(table, answer, episode[0])
    return answer.ending is None


def _answered(table: _Table, answer: Conversation, episode: Episode) -> Ending | None:
    """Let the environment answer the last turn; return the ending if there is no going on."""
    reply = episode.turn(table.tokenizer.batch_decode([answer.last], skip_special_tokens=True)[0])
    if reply is None:
        return Ending.FINISHED
    ids = table.tokenizer(reply, add_special_tokens=False)["input_ids"]
    if len(answer.ids) + len(ids) >= table.params.max_new_tokens:  # no room for a word of the policy behind it
        return Ending.LENGTH
    answer.hear(ids)
    return None


def turn_metrics(answers: Sequence[Conversation], peers: Peers) -> dict[str, float]:
    """Return how many turns there were, and how much the environment said, over the answers of all ranks."""
    turns = [answer.num_turns for answer in answers]
    num_cut = sum(answer.ending is Ending.TURNS for answer in answers)
    num_heard = sum(answer.mask.count(False) for answer in answers)
    total, cut, heard, count = peers.counts(sum(turns), num_cut, num_heard, len(answers))
    return {
        "turns/mean": total / count,
        "turns/max": float(peers.greatest(max(turns, default=0))),
        "turns/cut": cut / count,
        "length/tool": heard / count,
    }
