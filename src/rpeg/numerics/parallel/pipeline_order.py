"""In which order the ranks of a pipeline work, and when what they make travels: values, without any tensor.

The layers are cut into *parts*, numbered from the embedding to the head; rank r of p has part r, or with interleaving
parts r and r + p. Each micro-batch goes forward through all parts and backward again.

Every rank also knows the order in which the others work, so all derive one timetable: work that takes one round each,
as soon as its rank is free and what it needs is there. What is made for another rank travels at the end of its round.
Both ends start it there, those of one round in one order: so any two ranks start what they exchange in the same order,
and nothing waits for something that comes later. Backends that match messages by their order alone (NCCL) need that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

__all__ = ["Action", "Arrival", "Departure", "Schedule", "Work", "forward_only", "num_parts", "orders", "programs"]

Schedule = Literal["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"]
"""The values of `rpeg.plan.plan.Pipeline`."""


class Work(StrEnum):
    """What is done with a micro-batch in a part."""

    FORWARD = "forward"
    BACKWARD = "backward"
    """With zero bubble, only the gradients of what came in."""
    WEIGHTS = "weights"
    """Zero bubble: the gradients of the weights, which nobody waits for."""


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One piece of work of one rank."""

    work: Work
    part: int
    batch: int


@dataclass(frozen=True, slots=True)
class Departure:
    """What an action of this rank made sets out for another rank."""

    made_by: Action
    to_rank: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """From here on this rank can take what an action of another rank makes."""

    made_by: Action
    from_rank: int


def num_parts(schedule: Schedule, num_ranks: int) -> int:
    """Return into how many parts the layers are cut."""
    return 2 * num_ranks if schedule == "interleaved_1f1b" else num_ranks


def orders(schedule: Schedule, num_ranks: int, num_batches: int) -> list[list[Action]]:
    """Return what each rank does, in its order.

    Any number of micro-batches will do: interleaving goes round in groups of as many as there are ranks, and what the
    last group lacks is left out.

    Sources: GPipe arXiv:1811.06965; 1F1B arXiv:1806.03377; interleaved arXiv:2104.04473; zero bubble (ZB-H1)
    arXiv:2401.10241.
    """
    ranks = range(num_ranks)
    if schedule == "gpipe":
        return [[Action(work, r, i) for work in _BOTH for i in range(num_batches)] for r in ranks]
    if schedule == "interleaved_1f1b":
        return [_interleaved(r, num_ranks, num_batches) for r in ranks]
    plain = [
        _alternating(_sweep(Work.FORWARD, r, num_batches), _sweep(Work.BACKWARD, r, num_batches), num_ranks - r - 1)
        for r in ranks
    ]
    return [_filled(order, rank) for rank, order in enumerate(plain)] if schedule == "zero_bubble" else plain


def forward_only(ranks: Sequence[Sequence[Action]]) -> list[list[Action]]:
    """Return the same without anything that belongs to gradients."""
    return [[action for action in order if action.work is Work.FORWARD] for order in ranks]


def programs(ranks: Sequence[Sequence[Action]], parts: int) -> list[list[Action | Departure | Arrival]]:
    """Return what each rank does, with what it sends and takes in between."""
    found: list[list[Action | Departure | Arrival]] = [[] for _ in ranks]
    num_ranks, position, done = len(ranks), [0] * len(ranks), set[Action]()
    while any(position[rank] < len(order) for rank, order in enumerate(ranks)):
        fronts = [(rank, order[position[rank]]) for rank, order in enumerate(ranks) if position[rank] < len(order)]
        now = [(rank, action) for rank, action in fronts if _needed(action, parts) <= done]
        assert now, f"no rank of the pipeline can go on; next are {[action for _, action in fronts]}"
        for rank, action in now:
            found[rank].append(action)
            position[rank] += 1
        done |= {action for _, action in now}
        for rank, action in sorted(now, key=lambda pair: pair[1]):
            if (reader := _reader(action, parts, num_ranks)) is not None:
                found[rank].append(Departure(action, reader))
                found[reader].append(Arrival(action, rank))
    return found


_BOTH = (Work.FORWARD, Work.BACKWARD)


def _sweep(work: Work, part: int, num_batches: int) -> list[Action]:
    return [Action(work, part, i) for i in range(num_batches)]


def _alternating(forwards: list[Action], backwards: list[Action], ahead: int) -> list[Action]:
    """Return ``ahead`` forwards, then one forward and one backward in turn, then the backwards that are left."""
    ahead = min(ahead, len(forwards))
    found = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        found += [forward, backward]
    return found + backwards[len(forwards) - ahead :]


def _interleaved(rank: int, num_ranks: int, num_batches: int) -> list[Action]:
    """Return the order for two parts per rank: as many micro-batches as ranks through one part, then through the other.

    It is made for whole groups. What does not exist is left out, which breaks nothing: no micro-batch needs another.
    """
    groups = -(-num_batches // num_ranks)
    turns = [(half, group * num_ranks + i) for group in range(groups) for half in range(2) for i in range(num_ranks)]
    forwards = [Action(Work.FORWARD, rank + half * num_ranks, i) for half, i in turns]
    backwards = [Action(Work.BACKWARD, rank + (1 - half) * num_ranks, i) for half, i in turns]
    whole = _alternating(forwards, backwards, 2 * (num_ranks - rank - 1) + num_ranks)
    return [action for action in whole if action.batch < num_batches]


def _filled(order: list[Action], delay: int) -> list[Action]:
    """Return an order with the gradients of the weights put in: ``delay`` backwards later, the rest at the end.

    Later ranks have their idle time later, so they put more off; none keeps more for it than the first rank keeps
    activations.
    """
    backwards = [action for action in order if action.work is Work.BACKWARD]
    found: list[Action] = []
    for action in order:
        found.append(action)
        if action.work is Work.BACKWARD and action.batch >= delay:
            found.append(Action(Work.WEIGHTS, action.part, action.batch - delay))
    rest = backwards[max(0, len(backwards) - delay) :]
    return found + [Action(Work.WEIGHTS, each.part, each.batch) for each in rest]


def _needed(action: Action, parts: int) -> set[Action]:
    """Return what must be done before an action can be."""
    part, i = action.part, action.batch
    if action.work is Work.FORWARD:
        return {Action(Work.FORWARD, part - 1, i)} if part > 0 else set()
    if action.work is Work.WEIGHTS:
        return {Action(Work.BACKWARD, part, i)}
    return {Action(Work.BACKWARD, part + 1, i) if part < parts - 1 else Action(Work.FORWARD, part, i)}


def _reader(action: Action, parts: int, num_ranks: int) -> int | None:
    """Return the rank that goes on with what an action makes, None if none does."""
    next_part = {Work.FORWARD: action.part + 1, Work.BACKWARD: action.part - 1, Work.WEIGHTS: -1}[action.work]
    return next_part % num_ranks if 0 <= next_part < parts else None
