"""Orders of work in a pipeline, and that ranks start what they exchange in one order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.numerics.parallel.pipeline_order import (
    Action,
    Arrival,
    Departure,
    Schedule,
    Work,
    forward_only,
    num_parts,
    orders,
    programs,
)

SCHEDULES: list[Schedule] = ["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"]
LETTERS = {Work.FORWARD: "F", Work.BACKWARD: "B", Work.WEIGHTS: "W"}


def text(order: list[Action]) -> str:
    return " ".join(f"{LETTERS[action.work]}{action.part}.{action.batch}" for action in order)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("gpipe", ["F0.0 F0.1 F0.2 B0.0 B0.1 B0.2", "F1.0 F1.1 F1.2 B1.0 B1.1 B1.2"]),
        ("1f1b", ["F0.0 F0.1 B0.0 F0.2 B0.1 B0.2", "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2"]),
        (
            "zero_bubble",
            ["F0.0 F0.1 B0.0 W0.0 F0.2 B0.1 W0.1 B0.2 W0.2", "F1.0 B1.0 F1.1 B1.1 W1.0 F1.2 B1.2 W1.1 W1.2"],
        ),
    ],
)
def test_orders_of_three_micro_batches_on_two_ranks(schedule: Schedule, expected: list[str]) -> None:
    assert [text(order) for order in orders(schedule, 2, 3)] == expected


def test_interleaving_takes_as_many_micro_batches_as_ranks_through_one_part_and_then_the_other() -> None:
    assert [text(order) for order in orders("interleaved_1f1b", 2, 2)] == [
        "F0.0 F0.1 F2.0 F2.1 B2.0 B2.1 B0.0 B0.1",
        "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 B1.0 B1.1",
    ]
    # A third micro-batch makes a second group, which lacks one.
    assert "F2.1 F0.2" in text(orders("interleaved_1f1b", 2, 3)[0])


@given(st.sampled_from(SCHEDULES), st.integers(2, 5), st.integers(0, 11))
def test_everything_is_done_once_and_both_ends_start_exchanges_in_one_order(
    schedule: Schedule, num_ranks: int, num_batches: int
) -> None:
    parts = num_parts(schedule, num_ranks)
    ranks = orders(schedule, num_ranks, num_batches)
    done = Counter(action for order in ranks for action in order)
    works = list(Work) if schedule == "zero_bubble" else [Work.FORWARD, Work.BACKWARD]
    assert done == Counter(Action(work, part, i) for work in works for part in range(parts) for i in range(num_batches))
    assert all(action.part % num_ranks == rank for rank, order in enumerate(ranks) for action in order)
    found = programs(ranks, parts)
    for a in range(num_ranks):
        for b in range(a):
            assert exchanges(found[a], b, sent=True) == exchanges(found[b], a, sent=False)
    for rank, program in enumerate(found):
        assert_ready(program, rank, num_ranks, parts)


def exchanges(program: list[Action | Departure | Arrival], other: int, *, sent: bool) -> list[tuple[Action, bool]]:
    """Return what a rank exchanges with another, in its order, and whether the first of the two sends it."""
    found = []
    for step in program:
        if isinstance(step, Departure) and step.to_rank == other:
            found.append((step.made_by, sent))
        elif isinstance(step, Arrival) and step.from_rank == other:
            found.append((step.made_by, not sent))
    return found


def assert_ready(program: list[Action | Departure | Arrival], rank: int, num_ranks: int, parts: int) -> None:
    """Whatever an action needs was made here before, or has been asked for from its owner."""
    there: set[Action] = set()
    for step in program:
        if isinstance(step, Action):
            before = step.part - 1 if step.work is Work.FORWARD else step.part + 1
            if step.work is not Work.WEIGHTS and 0 <= before < parts:
                assert Action(step.work, before, step.batch) in there, (rank, step)
            there.add(step)
        elif isinstance(step, Departure):
            assert step.made_by in there
        else:
            assert step.from_rank == step.made_by.part % num_ranks
            there.add(step.made_by)


@given(st.integers(2, 5), st.integers(1, 9))
def test_activations_kept_at_a_time(num_ranks: int, num_batches: int) -> None:
    """1F1B keeps as many as there are ranks from here to the end, however many micro-batches there are; GPipe all."""
    for rank in range(num_ranks):
        most = min(num_batches, num_ranks - rank)
        assert peak(orders("1f1b", num_ranks, num_batches)[rank]) == most
        assert peak(orders("zero_bubble", num_ranks, num_batches)[rank]) == most
        assert peak(orders("gpipe", num_ranks, num_batches)[rank]) == num_batches


def peak(order: list[Action]) -> int:
    kept, highest = 0, 0
    for action in order:
        kept += {Work.FORWARD: 1, Work.BACKWARD: -1, Work.WEIGHTS: 0}[action.work]
        highest = max(highest, kept)
    return highest


def test_scoring_has_forward_work_alone() -> None:
    assert [text(order) for order in forward_only(orders("1f1b", 2, 2))] == ["F0.0 F0.1", "F1.0 F1.1"]


def test_an_order_that_waits_for_itself_is_a_mistake() -> None:
    backward_first = [[Action(Work.BACKWARD, 0, 0), Action(Work.FORWARD, 0, 0)], [Action(Work.FORWARD, 1, 0)]]
    with pytest.raises(AssertionError, match="no rank of the pipeline can go on"):
        programs(backward_first, 2)
