"""Rows are dealt to ranks and come back in their order, with everything that belongs to them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rpeg.graph.stage import StageKind
from rpeg.plan.plan import Balance
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.shares import deal, evenly
from rpeg.runtime.task import Outcome, Task

LENGTHS = [9, 1, 8, 2, 7, 3, 6, 4]
"""Tokens of two prompts' four answers each."""


def _samples(lengths: list[int]) -> Rows:
    numbers = range(len(lengths))
    tokens = Ragged.of([[n] * length for n, length in zip(numbers, lengths, strict=True)], torch.int64)
    return Rows({"tokens": tokens, "id": torch.arange(len(lengths)), "text": [f"answer {n}" for n in numbers]})


def _task(samples: Rows, groups: Rows | None = None, kind: StageKind = StageKind.FORWARD) -> Task:
    return Task("score", kind, 0, 0, groups or Rows({}), samples, {})


def test_rows_are_dealt_in_their_order() -> None:
    assert deal(_task(_samples(LENGTHS)), Balance.ROWS, 4).units == ((0, 1), (2, 3), (4, 5), (6, 7))


def test_tokens_are_balanced_and_samples_come_back_in_order() -> None:
    """The longest goes to whoever has least: 9, 8, 7, 6, 4, 3, 2, 1 become 9+6+4+1 and 8+7+3+2."""
    task = _task(_samples(LENGTHS))
    dealt = deal(task, Balance.TOKENS, 2)
    assert dealt.units == ((0, 1, 6, 7), (2, 3, 4, 5))
    parts = dealt.tasks(task)
    assert [len(part.samples.ragged("tokens").values_S) for part in parts] == [20, 20]
    made = [
        Outcome(part.samples.joined(Rows({"advantage": part.samples.tensor("id") * 1.5})), num_rows=4) for part in parts
    ]
    joined = dealt.joined(made)
    assert joined.rows is not None
    assert joined.rows.texts("text") == [f"answer {n}" for n in range(8)]
    assert joined.rows.tensor("advantage").tolist() == [1.5 * n for n in range(8)]
    assert [row.tolist() for row in joined.rows.ragged("tokens").rows()] == [
        [n] * length for n, length in enumerate(LENGTHS)
    ]
    assert joined.num_rows == 8


def test_prompts_stay_with_all_their_samples() -> None:
    task = _task(_samples(LENGTHS), Rows({"row": torch.tensor([70, 71])}))
    dealt = deal(task, Balance.TOKENS, 2)
    assert dealt.units == ((0,), (1,))  # 20 tokens each
    assert [(t.groups.tensor("row").tolist(), t.samples.tensor("id").tolist()) for t in dealt.tasks(task)] == [
        ([70], [0, 1, 2, 3]),
        ([71], [4, 5, 6, 7]),
    ]


def test_prompts_to_answer_are_dealt_in_order_whatever_the_balance() -> None:
    groups = Rows({"tokens": Ragged.of([[1] * 9, [1], [1]], torch.int64)})
    assert deal(_task(Rows({}), groups, StageKind.GENERATE), Balance.TOKENS, 2).units == ((0, 1), (2,))


def test_fewer_rows_than_ranks_leave_shares_empty_with_their_columns() -> None:
    task = _task(_samples([3, 2]))
    parts = deal(task, Balance.ROWS, 4).tasks(task)
    assert [len(part.samples) for part in parts] == [1, 1, 0, 0]
    empty = parts[3].samples
    assert (empty.ragged("tokens").values_S.dtype, empty.tensor("id").dtype) == (torch.int64, torch.int64)
    assert deal(task, Balance.ROWS, 4).joined([Outcome(part.samples) for part in parts]).rows is not None


def test_a_task_without_rows_is_the_same_for_all() -> None:
    task = _task(Rows({}), kind=StageKind.UPDATE)
    dealt = deal(task, Balance.TOKENS, 3)
    assert dealt.tasks(task) == [task] * 3
    assert dealt.joined([Outcome(version=4, metrics={"lr": 0.5})] * 3) == Outcome(version=4, metrics={"lr": 0.5})


def test_the_records_of_the_first_rows_are_kept() -> None:
    """Each rank makes records of its first two rows: of ranks with rows 0, 1, 6, 7 and 2, 3, 4, 5."""
    task = _task(_samples(LENGTHS))
    dealt = deal(task, Balance.TOKENS, 2)
    parts = [part.samples for part in dealt.tasks(task)]
    outcomes = [Outcome(part, records=tuple({"id": int(n)} for n in part.tensor("id")[:2])) for part in parts]
    assert dealt.joined(outcomes).records == ({"id": 0}, {"id": 1}, {"id": 2}, {"id": 3})
    without_rows = deal(_task(Rows({})), Balance.ROWS, 2)
    assert without_rows.joined([Outcome(records=({"id": n},)) for n in range(2)]).records == ({"id": 0}, {"id": 1})


def test_what_every_rank_says_is_said_once() -> None:
    dealt = deal(_task(_samples([1, 1])), Balance.ROWS, 2)
    joined = dealt.joined([Outcome(notes=("both", "one")), Outcome(notes=("both",), num_tokens=3)])
    assert (joined.notes, joined.num_tokens) == (("both", "one"), 3)


@pytest.mark.parametrize(
    ("count", "parts", "sizes"), [(5, 2, [3, 2]), (2, 4, [1, 1, 0, 0]), (0, 2, [0, 0]), (7, 3, [3, 2, 2])]
)
def test_uneven_parts_differ_by_one(count: int, parts: int, sizes: list[int]) -> None:
    assert [len(part) for part in evenly(count, parts)] == sizes


@given(st.lists(st.integers(1, 50), max_size=20), st.integers(1, 5), st.sampled_from(Balance))
def test_whatever_is_dealt_comes_back_as_it_was(lengths: list[int], ranks: int, balance: Balance) -> None:
    task = _task(_samples(lengths))
    dealt = deal(task, balance, ranks)
    back = dealt.joined([Outcome(part.samples) for part in dealt.tasks(task)]).rows
    assert back is not None
    assert back.texts("text") == task.samples.texts("text")
    assert torch.equal(back.ragged("tokens").values_S, task.samples.ragged("tokens").values_S)
