"""Distributions of lengths: numbers by hand, and what holds for all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpeg.errors import InvalidInput
from rpeg.perf.lengths import Lengths, carried, constant, empirical, lognormal

SAMPLES = st.lists(st.integers(1, 30000), min_size=1, max_size=40)
MEANS = st.floats(10.0, 20000.0)
VARIATIONS = st.floats(0.05, 2.0)


def test_a_constant_is_there_until_it_ends() -> None:
    length = constant(128.0)
    assert length.mean_tokens == length.max_tokens == length.quantile(0.5) == length.expected_max(1000) == 128.0
    assert length.survival(np.array([0.0, 127.9, 128.0])).tolist() == [1.0, 1.0, 0.0]
    assert length.sum_tokens(10) == (1280.0, 0.0)


def test_two_lengths_by_hand() -> None:
    lengths = empirical([100, 300, 300, 300])
    assert lengths.shares == (0.25, 0.75)
    assert lengths.mean_tokens == 250.0
    assert lengths.moment(2) == 0.25 * 100**2 + 0.75 * 300**2
    # The longest of three is 100 only if all are: 1/64 of the time.
    assert lengths.expected_max(3) == pytest.approx(300 - 200 / 64)
    assert lengths.quantile(0.25) == 100.0
    assert lengths.quantile(0.26) == 300.0
    mean, deviation = lengths.sum_tokens(4)
    assert (mean, deviation) == (1000.0, pytest.approx(math.sqrt(4 * 0.25 * 0.75) * 200))


def test_what_lies_within_a_length_is_the_integral_of_the_survival() -> None:
    lengths = empirical([10, 40])
    assert lengths.mean_within(np.array([0.0, 10.0, 25.0, 100.0])).tolist() == [0.0, 10.0, 17.5, 25.0]
    steps = np.arange(0.0, 101.0)
    assert np.diff(lengths.mean_within(steps)) == pytest.approx(lengths.survival(steps[:-1]))


def test_a_lognormal_has_the_moments_of_one() -> None:
    lengths = lognormal(1000.0, 0.8)
    assert lengths.mean_tokens == pytest.approx(1000.0)
    assert lengths.moment(2) == pytest.approx(1000.0**2 * (1 + 0.8**2), rel=2e-3)
    spread = math.sqrt(math.log(1 + 0.8**2))
    assert lengths.quantile(0.5) == pytest.approx(1000.0 * math.exp(-(spread**2) / 2), rel=0.03)
    # P(L > 3000) = 1 - Phi(z), z = (ln 3 + s^2 / 2) / s = 1.913
    assert float(lengths.survival(3000.0)) == pytest.approx(0.0279, rel=0.06)


def test_a_cap_gathers_what_is_longer() -> None:
    lengths = lognormal(1000.0, 1.0, 2048.0)
    free = lognormal(1000.0, 1.0)
    assert lengths.max_tokens == 2048.0
    assert lengths.shares[-1] == pytest.approx(float(free.survival(2048.0)))
    assert lengths.mean_tokens == pytest.approx(float(free.mean_within(2048.0)))


def test_no_variation_is_a_constant() -> None:
    assert lognormal(500.0, 0.0, 400.0) == constant(400.0)


def test_the_expected_longest_agrees_with_draws() -> None:
    lengths = lognormal(1000.0, 1.0, 8192.0)
    random = np.random.default_rng(0)
    drawn = random.choice(lengths.tokens, size=(4000, 64), p=lengths.shares)
    assert lengths.expected_max(64) == pytest.approx(drawn.max(axis=1).mean(), rel=0.02)


def test_many_samples_keep_their_mean_and_their_longest_ones() -> None:
    samples = np.random.default_rng(1).lognormal(6.0, 1.0, 20000)
    lengths = empirical(samples)
    assert len(lengths.tokens) == 1024
    assert lengths.mean_tokens == pytest.approx(samples.mean())
    assert lengths.quantile(0.9) == pytest.approx(np.quantile(samples, 0.9), rel=0.01)


def test_a_budget_per_step_splits_rows_and_keeps_their_tokens() -> None:
    lengths = empirical([2, 6])
    new, brought = carried(lengths, 4.0, 1)
    # Of three rows two begin and write 2 and 4 tokens; the third brings 4 along and writes the last 2.
    assert new.tokens == (2.0, 4.0)
    assert new.shares == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert brought.tokens == (0.0, 4.0)
    assert brought.shares == (pytest.approx(2 / 3), pytest.approx(1 / 3))


def test_the_last_step_of_a_carried_row_has_no_budget() -> None:
    new, _ = carried(constant(100.0), 30.0, 1)
    assert new.tokens == (30.0, 70.0)


@settings(deadline=None)
@given(SAMPLES, st.integers(1, 1000))
def test_the_longest_of_more_draws_is_longer(samples: list[int], draws: int) -> None:
    lengths = empirical(samples)
    one, few, more = (lengths.expected_max(n) for n in (1, draws, draws + 1))
    assert one == pytest.approx(lengths.mean_tokens)
    assert one - 1e-6 <= few <= more + 1e-6 <= lengths.max_tokens + 2e-6


@settings(deadline=None)
@given(SAMPLES, st.floats(0.0, 40000.0))
def test_survival_and_what_is_within(samples: list[int], tokens: float) -> None:
    lengths = empirical(samples)
    assert float(lengths.survival(tokens)) == pytest.approx(np.mean([each > tokens for each in samples]))
    assert float(lengths.mean_within(tokens)) == pytest.approx(np.mean([min(each, tokens) for each in samples]))


@settings(deadline=None)
@given(MEANS, VARIATIONS, st.floats(0.1, 10.0))
def test_a_lognormal_scales(mean: float, variation: float, factor: float) -> None:
    scaled, other = lognormal(mean, variation).scaled(factor), lognormal(mean * factor, variation)
    assert scaled.mean_tokens == pytest.approx(mean * factor)
    assert scaled.tokens == pytest.approx(other.tokens)


@settings(deadline=None)
@given(MEANS, VARIATIONS, st.floats(0.2, 5.0), st.integers(0, 3))
def test_carried_rows_write_all_their_tokens(mean: float, variation: float, share: float, most: int) -> None:
    lengths = lognormal(mean, variation)
    new, brought = carried(lengths, share * mean, most)
    # Every row begins once: what a step writes per row that begins is the whole of a response.
    assert new.mean_tokens / brought.shares[0] == pytest.approx(mean, rel=1e-6)


@settings(deadline=None)
@given(SAMPLES, SAMPLES, st.floats(0.0, 1.0))
def test_a_mixture_has_the_mixed_mean(first: list[int], second: list[int], share: float) -> None:
    mixed = empirical(first).mixed(empirical(second), share)
    assert sum(mixed.shares) == pytest.approx(1.0)
    assert mixed.mean_tokens == pytest.approx((1 - share) * np.mean(first) + share * np.mean(second))


@pytest.mark.parametrize(
    ("tokens", "shares", "text"),
    [
        ((), (), "0 lengths have 0 shares"),
        ((1.0, 2.0), (1.0,), "2 lengths have 1 shares"),
        ((2.0, 1.0), (0.5, 0.5), "not ascending"),
        ((-1.0, 1.0), (0.5, 0.5), "not ascending"),
        ((1.0, 2.0), (0.5, 0.6), "sum to 1.1"),
    ],
)
def test_what_is_no_distribution_is_refused(tokens: tuple[float, ...], shares: tuple[float, ...], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        Lengths(tokens, shares)


def test_other_mistakes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="there are none"):
        empirical([])
    with pytest.raises(InvalidInput, match="mean 0"):
        lognormal(0.0, 1.0)
    with pytest.raises(InvalidInput, match="nothing is longer than 10 tokens"):
        constant(10.0).beyond(10.0)
