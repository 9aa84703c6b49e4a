"""Group advantages against numbers worked out by hand."""

from __future__ import annotations

import math
from itertools import chain
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rpeg.numerics.advantages import (
    greedy_advantages,
    group_advantages,
    leave_one_out_advantages,
    plain_advantages,
)

NAN = float("nan")


def rewards(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_bl_007_statistics_are_those_of_the_group() -> None:
    advantages, _ = group_advantages(rewards(1, 1, 0, 0, 0, 0, 0, 1), group_size=4, std=True)
    assert advantages.tolist() == pytest.approx([0.8660, 0.8660, -0.8660, -0.8660, -0.5, -0.5, -0.5, 1.5], abs=5e-5)


def test_without_std_the_mean_alone_is_taken_off() -> None:
    advantages, stats = group_advantages(rewards(1, 1, 0, 0, 0, 0, 0, 1), group_size=4, std=False)
    assert advantages.tolist() == [0.5, 0.5, -0.5, -0.5, -0.25, -0.25, -0.25, 0.75]
    assert advantages.dtype == torch.float32
    assert (stats.num_groups, stats.num_zero_spread, stats.num_unscorable) == (2, 0, 0)
    assert stats.reward_mean == 3 / 8
    assert stats.reward_std == pytest.approx(math.sqrt(3 / 8 * 5 / 8))


def test_bl_005_a_group_of_one_is_refused() -> None:
    with pytest.raises(AssertionError, match="group size 1: a group of one minus its own mean is always 0"):
        group_advantages(rewards(1, 0, 1, 0), group_size=1, std=False)


def test_incomplete_groups_are_refused() -> None:
    with pytest.raises(AssertionError, match="5 rewards are not groups of 2"):
        group_advantages(rewards(1, 0, 1, 0, 1), group_size=2, std=False)


@pytest.mark.parametrize("std", [False, True])
def test_equal_rewards_give_exactly_zero_and_are_counted(std: bool) -> None:
    # The mean of three times 0.1 is not 0.1 in floating point, and 0.1 + 0.2 is not 0.3.
    advantages, stats = group_advantages(rewards(0.1, 0.1, 0.1, 0.1 + 0.2, 0.3, 0.3, 0, 0, 0, 0, 0, 1), 3, std)
    assert advantages[:9].tolist() == [0.0] * 9
    assert advantages[9:].ne(0).all()
    assert stats.num_zero_spread == 3
    assert stats.metrics()["group/zero_spread"] == 0.75


def test_small_but_real_spread_is_kept() -> None:
    advantages, stats = group_advantages(rewards(1.0, 1.0 + 1e-9), group_size=2, std=True)
    assert advantages.tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], rel=1e-6)
    assert stats.num_zero_spread == 0


def test_bl_026_rewards_that_cancel_are_counted_as_zero_spread() -> None:
    total = rewards(5, -5) + rewards(-5, 5)
    advantages, stats = group_advantages(total, group_size=2, std=True)
    assert advantages.tolist() == [0.0, 0.0]
    assert stats.metrics()["group/zero_spread"] == 1.0


@pytest.mark.parametrize("unscorable", [NAN, float("inf"), -float("inf")])
def test_bl_065_unscorable_rows_are_left_out_and_get_zero(unscorable: float) -> None:
    advantages, stats = group_advantages(rewards(1, unscorable, 0, 0), group_size=4, std=False)
    assert advantages.tolist() == pytest.approx([2 / 3, 0, -1 / 3, -1 / 3])
    assert advantages[1] == 0
    assert (stats.num_unscorable, stats.num_zero_spread) == (1, 0)
    assert stats.reward_mean == pytest.approx(1 / 3)
    scaled, _ = group_advantages(rewards(1, unscorable, 0, 0), group_size=4, std=True)
    assert scaled.tolist() == pytest.approx([2 / math.sqrt(3), 0, -1 / math.sqrt(3), -1 / math.sqrt(3)])


@pytest.mark.parametrize("std", [False, True])
def test_one_scorable_row_teaches_nothing(std: bool) -> None:
    advantages, stats = group_advantages(rewards(NAN, 7, NAN, NAN, NAN, NAN), group_size=3, std=std)
    assert advantages.tolist() == [0.0] * 6
    assert (stats.num_zero_spread, stats.num_unscorable) == (2, 5)


def test_nothing_scorable_leaves_the_means_out() -> None:
    _, stats = group_advantages(rewards(NAN, NAN), group_size=2, std=False)
    assert stats.metrics() == {"reward/unscorable": 2.0, "group/zero_spread": 1.0}


def test_metrics_of_a_step() -> None:
    _, stats = group_advantages(rewards(1, 0, 1, 1), group_size=2, std=False)
    assert stats.metrics() == {
        "reward/unscorable": 0.0,
        "group/zero_spread": 0.5,
        "reward/mean": 0.75,
        "reward/std": pytest.approx(math.sqrt(3) / 4),
    }


GROUPS = st.lists(
    st.lists(st.one_of(st.integers(-8, 8).map(lambda eighths: eighths / 8), st.just(NAN)), min_size=4, max_size=4),
    min_size=1,
    max_size=5,
)


@given(GROUPS, st.booleans(), st.randoms(use_true_random=False))
def test_groups_are_centred_and_independent_of_each_other(groups: list[list[float]], std: bool, random: Random) -> None:
    advantages, _ = group_advantages(rewards(*chain.from_iterable(groups)), 4, std)
    assert advantages.isfinite().all()
    assert advantages.view(-1, 4).sum(1).abs().max() < 1e-6
    order = list(range(len(groups)))
    random.shuffle(order)
    moved, _ = group_advantages(rewards(*chain.from_iterable(groups[index] for index in order)), 4, std)
    assert torch.equal(moved.view(-1, 4), advantages.view(-1, 4)[order])


def test_rloo_compares_with_the_others_of_the_group() -> None:
    # 1 - (0 + 0.5) / 2, 0 - (1 + 0.5) / 2, 0.5 - (1 + 0) / 2.
    advantages, stats = leave_one_out_advantages(rewards(1, 0, 0.5, 0.1, 0.1, 0.1), group_size=3)
    assert advantages.tolist() == [0.75, -0.75, 0.0, 0.0, 0.0, 0.0]
    assert (stats.num_groups, stats.num_zero_spread) == (2, 1)


def test_rloo_leaves_unscorable_rows_out_of_the_others() -> None:
    advantages, stats = leave_one_out_advantages(rewards(1, NAN, 0, 0, NAN, NAN, 3, NAN), group_size=4)
    assert advantages.tolist() == [1.0, 0.0, -0.5, -0.5, 0.0, 0.0, 0.0, 0.0]
    assert (stats.num_unscorable, stats.num_zero_spread) == (4, 1)


def test_bl_005_rloo_refuses_a_group_of_one() -> None:
    with pytest.raises(AssertionError, match="group size 1: a group of one minus its own mean is always 0"):
        leave_one_out_advantages(rewards(1, 0), group_size=1)


def test_remax_compares_with_the_greedy_answer() -> None:
    advantages, stats = greedy_advantages(rewards(1, 0, 0.3, 0.3), rewards(0.25, 0.1 + 0.2))
    assert advantages.tolist() == [0.75, -0.25, 0.0, 0.0]
    assert (stats.num_groups, stats.num_zero_spread, stats.num_unscorable) == (2, 1, 0)
    alone, _ = greedy_advantages(rewards(1, 0), rewards(0, 0.5))
    assert alone.tolist() == [1.0, -0.5]


def test_remax_without_a_greedy_reward_teaches_nothing() -> None:
    advantages, stats = greedy_advantages(rewards(1, 0, NAN, 2, NAN, NAN), rewards(NAN, 1, 1))
    assert advantages.tolist() == [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert (stats.num_groups, stats.num_zero_spread, stats.num_unscorable) == (3, 2, 5)
    assert stats.reward_mean == 2.0


def test_remax_refuses_rewards_that_are_no_groups() -> None:
    with pytest.raises(AssertionError, match="3 rewards in 2 groups"):
        greedy_advantages(rewards(1, 0, 1), rewards(0, 0))


def test_plain_rewards_keep_their_order_and_their_statistics() -> None:
    advantages, stats = plain_advantages(rewards(1, NAN, 3))
    assert advantages.tolist() == [1.0, 0.0, 3.0]
    assert (stats.num_groups, stats.num_zero_spread, stats.num_unscorable, stats.reward_mean) == (1, 0, 1, 2.0)
    assert plain_advantages(rewards(2, 2))[1].num_zero_spread == 1
