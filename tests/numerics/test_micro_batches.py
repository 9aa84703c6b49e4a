"""Splitting rows into micro-batches."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.numerics.micro_batches import split

LENGTHS = st.lists(st.integers(1, 60), max_size=80)


def padded_tokens(batch: list[int], lengths: list[int]) -> int:
    return len(batch) * max(lengths[row] for row in batch)


@given(LENGTHS, st.integers(1, 500), st.integers(0, 300))
def test_every_row_once_within_the_budget(lengths: list[int], budget: int, fixed_cost: int) -> None:
    batches = split(lengths, budget, fixed_cost)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or padded_tokens(batch, lengths) <= budget
    flat = [lengths[row] for batch in batches for row in batch]
    assert flat == sorted(flat, reverse=True)
    assert split(list(lengths), budget, fixed_cost) == batches


@given(st.lists(st.integers(1, 20), min_size=1, max_size=7), st.integers(20, 60), st.integers(0, 40))
def test_no_other_cut_of_the_sorted_rows_is_cheaper(lengths: list[int], budget: int, fixed_cost: int) -> None:
    ordered = sorted(lengths, reverse=True)
    costs = []
    for count in range(len(ordered)):
        for cuts in combinations(range(1, len(ordered)), count):
            edges = [0, *cuts, len(ordered)]
            sizes = [(end - first) * ordered[first] for first, end in pairwise(edges)]
            if max(sizes) <= budget:
                costs.append(sum(sizes) + fixed_cost * len(sizes))
    batches = split(lengths, budget, fixed_cost)
    assert sum(padded_tokens(batch, lengths) + fixed_cost for batch in batches) == min(costs)


def test_a_row_beyond_the_budget_is_alone() -> None:
    assert split([5, 100, 5], budget_tokens=10, fixed_cost_tokens=1) == [[1], [0, 2]]


def test_similar_lengths_go_together_when_padding_costs_more_than_a_micro_batch() -> None:
    lengths = [10, 50] * 8
    short, long = list(range(0, 16, 2)), list(range(1, 16, 2))
    # Together 16 * 50 = 800 tokens; apart 8 * 50 + 8 * 10 = 480 and one micro-batch more.
    assert split(lengths, budget_tokens=10_000, fixed_cost_tokens=319) == [long, short]
    assert split(lengths, budget_tokens=10_000, fixed_cost_tokens=321) == [long + short]


def test_no_rows_make_no_micro_batches() -> None:
    assert split([], budget_tokens=10) == []


def test_a_row_without_tokens_is_refused() -> None:
    with pytest.raises(AssertionError, match="a row without tokens"):
        split([3, 0], budget_tokens=10)
