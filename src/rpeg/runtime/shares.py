"""How the rows of a firing are dealt to the ranks that work on them, and put back in order afterwards.

What is dealt are units: prompts with all their samples where a stage reads prompts, else samples. Nothing about a row
changes on the way, so ids, rewards and advantages stay with their tokens however rows are dealt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from rpeg.graph.stage import StageKind
from rpeg.plan.plan import Balance
from rpeg.runtime.carry import dealt
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.samples import SHOWN
from rpeg.runtime.task import Outcome, Task

__all__ = ["Deal", "deal", "evenly"]


@dataclass(frozen=True, slots=True)
class Deal:
    """Which units each rank is given; every unit is given once."""

    units: tuple[tuple[int, ...], ...]
    """Numbers of the units of each rank, ascending."""

    @property
    def num_units(self) -> int:
        """Units of all ranks."""
        return sum(map(len, self.units))

    def tasks(self, task: Task) -> list[Task]:
        """Return the share of every rank."""
        carried = [None] * len(self.units) if task.carried is None else dealt(task.carried, len(self.units))
        return [
            replace(
                task,
                groups=self._picked(task.groups, picks),
                samples=self._picked(task.samples, picks),
                carried=rest,
                places=tuple(task.places[pick] for pick in picks) if task.places else (),
            )
            for picks, rest in zip(self.units, carried, strict=True)
        ]

    def _picked(self, rows: Rows, picks: Sequence[int]) -> Rows:
        if not rows.columns or not self.num_units:
            return rows
        size = len(rows) // self.num_units
        return rows.picked([unit * size + member for unit in picks for member in range(size)])

    def joined(self, outcomes: Sequence[Outcome]) -> Outcome:
        """Return what the ranks did as one outcome, rows in the order before they were dealt.

        Metrics are of the whole firing on every rank; those of the first are taken.
        """
        parts = [outcome.rows for outcome in outcomes if outcome.rows is not None]
        carried = [outcome.carried for outcome in outcomes if outcome.carried is not None]
        places = tuple(place for outcome in outcomes for place in outcome.places)
        records = [record for outcome in outcomes for record in outcome.records]
        return replace(
            outcomes[0],
            # Where groups come as they end, the ranks say which they are.
            rows=Rows.stacked(parts) if places else self._in_order(parts) if parts else None,
            places=places,
            carried=Rows.stacked(carried) if carried else None,
            records=tuple(records[:SHOWN]) if places else self._first_records(outcomes),
            rewards=self._rewards(outcomes),
            unscored=tuple(dict.fromkeys(reason for outcome in outcomes for reason in outcome.unscored)),
            notes=tuple(dict.fromkeys(note for outcome in outcomes for note in outcome.notes)),
            num_rows=sum(outcome.num_rows for outcome in outcomes),
            num_tokens=sum(outcome.num_tokens for outcome in outcomes),
        )

    def _first_records(self, outcomes: Sequence[Outcome]) -> tuple[Mapping[str, object], ...]:
        """Return the records of the first rows, as many as one rank would show; without rows those of all ranks."""
        num_rows = sum(len(outcome.rows) for outcome in outcomes if outcome.rows is not None)
        if not num_rows:
            return tuple(record for outcome in outcomes for record in outcome.records)
        size = num_rows // self.num_units
        placed = {
            picks[i // size] * size + i % size: record
            for picks, outcome in zip(self.units, outcomes, strict=True)
            for i, record in enumerate(outcome.records)
        }
        return tuple(placed[row] for row in sorted(placed)[:SHOWN])

    def _rewards(self, outcomes: Sequence[Outcome]) -> tuple[float, ...]:
        column = torch.tensor([reward for outcome in outcomes for reward in outcome.rewards], dtype=torch.float64)
        return tuple(self._in_order([Rows({"reward": column})]).tensor("reward").tolist()) if len(column) else ()

    def _in_order(self, parts: Sequence[Rows]) -> Rows:
        rows = Rows.stacked(parts)
        order = [unit for picks in self.units for unit in picks]
        if order == sorted(order):
            return rows
        size = len(rows) // self.num_units
        stands = sorted(range(len(order)), key=order.__getitem__)
        return rows.picked([place * size + member for place in stands for member in range(size)])


def deal(task: Task, balance: Balance, ranks: int) -> Deal:
    """Return the shares of ``ranks`` ranks, some of them empty where there are fewer units."""
    num_units = len(task.groups) or len(task.samples)
    if task.places:  # all of a step, of which every firing hands out an equal part
        firings = [evenly(num_units // task.num_firings, ranks)[rank] for rank in range(ranks)]
        size = num_units // task.num_firings
        return Deal(tuple(tuple(f * size + u for f in range(task.num_firings) for u in part) for part in firings))
    # What a prompt will be answered with is not known before.
    if balance is Balance.ROWS or task.kind is StageKind.GENERATE:
        return Deal(tuple(tuple(part) for part in evenly(num_units, ranks)))
    return Deal(_by_tokens(_tokens(task, num_units), ranks))


def evenly(count: int, parts: int) -> list[range]:
    """Return equal parts of a range in order; where it does not divide, the first ones are longer by one."""
    size, more = divmod(count, parts)
    ends = [number * size + min(number, more) for number in range(parts + 1)]
    return [range(first, end) for first, end in pairwise(ends)]


def _by_tokens(tokens: Sequence[int], ranks: int) -> tuple[tuple[int, ...], ...]:
    """Give the longest unit first, each to the rank with the fewest tokens so far."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for unit in sorted(range(len(tokens)), key=lambda each: (-tokens[each], each)):
        least = min(range(ranks), key=lambda rank: (loads[rank], len(shares[rank]), rank))
        shares[least].append(unit)
        loads[least] += tokens[unit]
    return tuple(tuple(sorted(share)) for share in shares)


def _tokens(task: Task, num_units: int) -> list[int]:
    """Return the tokens of every unit, prompts included."""
    rows = task.samples if task.samples.columns else task.groups
    lengths = next((column.lengths_N for column in rows.columns.values() if isinstance(column, Ragged)), None)
    if lengths is None or not num_units:
        return [1] * num_units
    return lengths.reshape(num_units, -1).sum(1).tolist()
