"""Micro-batches by hand, by drawing lengths, and by what must hold whatever the lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpeg.errors import InvalidInput
from rpeg.perf.lengths import Lengths, constant, empirical, lognormal
from rpeg.perf.micro_batches import busiest_tokens, micro_batches, packed_share, padded_share, seen_tokens
from rpeg.plan.plan import Balance

SHAPES = st.builds(lognormal, st.floats(100.0, 4000.0), st.floats(0.1, 1.5), st.just(16384.0))


def test_rows_of_one_length_are_neither_padded_nor_uneven() -> None:
    found = micro_batches(constant(512.0), rows=10, ranks=8, micro_rows=4)

    assert (found.count, found.rows, found.length_tokens, found.useful_share) == (3, pytest.approx(10 / 3), 512.0, 1.0)
    assert found.total_rows == pytest.approx(10)


def test_padding_by_hand() -> None:
    # Of two rows of 100 or 300 tokens the longest is 100 in a quarter of the cases: 250 on average, for 200 tokens.
    found = micro_batches(empirical([100, 300]), rows=4, ranks=2, micro_rows=2)

    assert (found.count, found.length_tokens, found.useful_share) == (2, 250.0, 0.8)
    assert padded_share(empirical([100, 300]), 2) == 0.8


def test_a_budget_packs_rows_without_padding() -> None:
    # 16 rows of 1000 tokens, three at a time into 3500: 3000 of them are used, six micro-batches.
    found = micro_batches(constant(1000.0), rows=16, ranks=4, budget_tokens=3500)

    assert found.count == 6
    assert found.total_rows * found.length_tokens == pytest.approx(16000)


def test_a_row_longer_than_the_budget_has_a_micro_batch_of_its_own() -> None:
    assert packed_share(constant(9000.0), 4000.0) == 1.0
    assert micro_batches(constant(9000.0), rows=2, ranks=1, budget_tokens=4000).count == 2


@pytest.mark.parametrize(("rows", "ranks"), [(4, 8), (8, 64), (32, 128)])
def test_the_busiest_rank_is_what_draws_show(rows: int, ranks: int) -> None:
    lengths, random = lognormal(2000.0, 0.9, 16384.0), np.random.default_rng(0)
    drawn = random.choice(lengths.tokens, p=lengths.shares, size=(400, ranks, rows))
    measured = drawn.sum(axis=2).max(axis=1).mean()

    assert busiest_tokens(lengths, rows, ranks) == pytest.approx(measured, rel=0.06)


def test_half_the_rows_per_rank_take_more_than_half_the_time() -> None:
    """Twice the GPUs do not halve an update of small mini-batches: the longest samples bind (verl: 133 s to 114 s)."""
    lengths = lognormal(4000.0, 1.2, 28672.0)
    before, after = busiest_tokens(lengths, 8, 64), busiest_tokens(lengths, 4, 128)

    assert 0.6 < after / before < 0.9


def test_tokens_are_dealt_evenly_until_one_sample_is_too_long() -> None:
    lengths = empirical([100] * 9 + [10_000])

    assert busiest_tokens(lengths, 64, 2, Balance.TOKENS) == pytest.approx(64 * lengths.mean_tokens)
    assert busiest_tokens(lengths, 2, 64, Balance.TOKENS) == pytest.approx(10_000, rel=0.01)


def test_attention_sees_long_samples() -> None:
    assert seen_tokens(empirical([100, 300])) == 250.0


def test_bad_numbers_are_refused_together() -> None:
    with pytest.raises(InvalidInput) as caught:
        micro_batches(constant(10.0), rows=0, ranks=1, micro_rows=-1)

    assert [fault.where for fault in caught.value.faults] == ["rows", "micro_rows"]
    assert "is 0; give a number above 0" in str(caught.value)


@settings(max_examples=40, deadline=None)
@given(lengths=SHAPES, rows=st.integers(1, 64), ranks=st.integers(1, 64), budget=st.floats(20_000.0, 80_000.0))
def test_no_tokens_get_lost(lengths: Lengths, rows: int, ranks: int, budget: float) -> None:
    for balance in Balance:
        found = micro_batches(lengths, rows, ranks, budget_tokens=budget, balance=balance)
        tokens = found.total_rows * found.length_tokens

        assert 0 < found.useful_share <= 1.0 + 1e-9
        assert tokens * found.useful_share == pytest.approx(rows * lengths.mean_tokens)
        assert found.count * budget >= tokens * 0.999


@settings(max_examples=40, deadline=None)
@given(lengths=SHAPES, rows=st.integers(1, 64), ranks=st.integers(1, 32))
def test_more_ranks_are_never_more_even(lengths: Lengths, rows: int, ranks: int) -> None:
    assert busiest_tokens(lengths, rows, ranks) <= busiest_tokens(lengths, rows, 2 * ranks) * (1 + 1e-9)
    assert busiest_tokens(lengths, rows, ranks) >= rows * lengths.mean_tokens * (1 - 1e-9)
