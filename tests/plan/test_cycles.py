"""Cycles of small graphs worked out by hand; random ones are compared with counting in `test_events`."""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from rpeg.plan.cycles import Ratio, forward_order, largest_ratio, positive_cycles

TRIANGLE = [(0, 1), (1, 2), (2, 0)]


def test_arcs_without_tokens_run_forward() -> None:
    ends = [(2, 0), (1, 2), (0, 1), (1, 1)]
    order, is_ordered = forward_order(3, ends, [1, 0, 0, 1])
    assert is_ordered
    assert order == [2, 1, 3, 0]


def test_what_a_cycle_without_tokens_holds_up_comes_last() -> None:
    ends = [(2, 0), (1, 2), (2, 1), (0, 1), (3, 3)]
    order, is_ordered = forward_order(4, ends, [1, 0, 0, 0, 1])
    assert not is_ordered
    assert sorted(order) == [0, 1, 2, 3, 4]
    assert order[:2] == [3, 4]


def test_an_empty_graph() -> None:
    assert forward_order(0, [], []) == ([], True)
    assert largest_ratio(0, [], [], []) == Ratio(0, 1, ())


def test_the_order_of_the_arcs_does_not_matter() -> None:
    for order in permutations(range(3)):
        ends = [TRIANGLE[i] for i in order]
        tokens = [(0, 0, 2)[i] for i in order]
        found = largest_ratio(3, ends, [(3, 4, 8)[i] for i in order], tokens)
        assert (found.length, found.tokens) == (15, 2)
        assert [ends[arc][0] for arc in found.cycle] in ([0, 1, 2], [1, 2, 0], [2, 0, 1])


def test_the_larger_of_two_ratios_wins_although_its_cycle_is_shorter() -> None:
    ends, lengths, tokens = [(0, 1), (1, 0), (2, 2)], [50, 50, 34], [1, 2, 1]
    assert largest_ratio(3, ends, lengths, tokens) == Ratio(34, 1, (2,))
    assert largest_ratio(3, ends, [51, 52, 34], tokens) == Ratio(103, 3, (0, 1))


def test_a_cycle_with_length_and_without_tokens_ends_the_search() -> None:
    found = largest_ratio(2, [(0, 1), (1, 0), (0, 0)], [1, 0, 9], [1, -1, 1])
    assert found == Ratio(1, 0, (0, 1))


def test_cycles_of_positive_weight() -> None:
    assert positive_cycles(3, TRIANGLE, [-5, 2, 3]) == []
    assert [sorted(cycle) for cycle in positive_cycles(3, TRIANGLE, [-5, 3, 3])] == [[0, 1, 2]]
    assert positive_cycles(2, [(0, 0), (1, 1)], [1, 1]) == [[0], [1]]


@pytest.mark.parametrize("seed", range(20))
def test_weights_of_any_size_stay_exact(seed: int) -> None:
    """The same graph with lengths too large for a float, and one arc that is larger by a single unit."""
    rng = random.Random(seed)
    base = 10**40
    ends = [(i, (i + 1) % 5) for i in range(5)] * 2
    lengths = [base] * 10
    lengths[rng.randrange(10)] += 1
    found = largest_ratio(5, ends, lengths, [1] * 10)
    assert (found.length, found.tokens) == (5 * base + 1, 5)
