"""Rewards, returns and advantages per token against numbers worked out by hand and a plain loop over tokens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rpeg.numerics.gae import gae, returns, token_rewards

NAN = math.nan


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values])


def mask(text: str) -> torch.Tensor:
    """One row, ``p`` for tokens that the policy chose."""
    return torch.tensor([[letter == "p" for letter in text]])


def test_bl_003_tool_output_after_the_answer_lets_nothing_decay() -> None:
    chosen = mask("pptt")
    rewards = token_rewards(torch.tensor([1.0]), chosen)
    assert rewards.tolist() == [[0.0, 1.0, 0.0, 0.0]]
    for discount, decay in ((0.5, 1.0), (1.0, 0.5)):
        advantages, _ = gae(rewards, torch.zeros(1, 4), chosen, discount, decay)
        assert advantages.tolist() == [[0.5, 1.0, 0.0, 0.0]]
    advantages, _ = gae(rewards, torch.zeros(1, 4), chosen, 0.0, 1.0)
    assert advantages.tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_tool_output_in_the_middle_is_no_step_either() -> None:
    advantages, _ = gae(row(0, NAN, NAN, 1), row(0, NAN, 5, 0), mask("pttp"), 0.5, 1.0)
    assert advantages.tolist() == [[0.5, 0.0, 0.0, 1.0]]


def test_three_tokens_by_hand() -> None:
    # deltas: 0 + 0.9 * 2 - 1 = 0.8; 0.5 + 0.9 * 3 - 2 = 1.2; 1 - 3 = -2.
    # advantages, discount * decay = 0.72: -2; 1.2 - 1.44 = -0.24; 0.8 - 0.1728 = 0.6272.
    advantages, targets = gae(row(0.0, 0.5, 1.0), row(1.0, 2.0, 3.0), mask("ppp"), 0.9, 0.8)
    assert advantages[0].tolist() == pytest.approx([0.6272, -0.24, -2.0])
    assert targets[0].tolist() == pytest.approx([1.6272, 1.76, 1.0])


def test_bl_016_returns_do_not_count_padding() -> None:
    signal = row(0.5, 2.0, 4.0, 4.0)
    assert returns(signal, mask("pp.."), 1.0).tolist() == [[2.5, 2.0, 0.0, 0.0]]
    assert returns(signal, mask("pp.."), 0.5).tolist() == [[1.5, 2.0, 0.0, 0.0]]


def test_the_distance_is_taken_off_every_token_and_the_reward_given_at_the_last() -> None:
    chosen = torch.cat([mask(".p.pp."), mask("p....."), mask("......")])
    distances = torch.tensor([[9.0, 1.0, NAN, 2.0, 3.0, 9.0], [4.0] * 6, [NAN] * 6])
    earned = token_rewards(torch.tensor([10.0, 5.0, 1.0]), chosen, distances, coefficient=0.1)
    assert earned[0].tolist() == pytest.approx([0, -0.1, 0, -0.2, 9.7, 0])
    assert earned[1].tolist() == pytest.approx([4.6, 0, 0, 0, 0, 0])
    assert not earned[2].any()


def test_an_unscorable_sample_earns_nothing() -> None:
    earned = token_rewards(torch.tensor([NAN, math.inf]), mask("pp").repeat(2, 1), torch.ones(2, 2), 0.1)
    assert earned.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_decay_one_is_returns_minus_values_and_decay_zero_the_one_step_error() -> None:
    rewards, values, chosen = row(1.0, 2.0, 3.0), row(0.5, 0.25, 1.0), mask("ppp")
    advantages, targets = gae(rewards, values, chosen, 1.0, 1.0)
    assert advantages.tolist() == [[5.5, 4.75, 2.0]]
    assert targets.tolist() == [[6.0, 5.0, 3.0]]
    advantages, _ = gae(rewards, values, chosen, 1.0, 0.0)
    assert advantages.tolist() == [[0.75, 2.75, 2.0]]


@given(
    st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2), st.booleans()), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.9, 1.0]),
    st.sampled_from([0.0, 0.7, 1.0]),
)
def test_masked_rows_equal_rows_without_the_masked_tokens(
    tokens: list[tuple[float, float, bool]], discount: float, decay: float
) -> None:
    rewards, values, chosen = (torch.tensor([column]) for column in zip(*tokens, strict=True))
    advantages, targets = gae(rewards, values, chosen, discount, decay)
    expected, later_advantage, later_value = [], 0.0, 0.0
    for reward, value, is_chosen in reversed(tokens):
        if is_chosen:
            later_advantage = reward + discount * later_value - value + discount * decay * later_advantage
            later_value = value
            expected.append(later_advantage)
    assert advantages[chosen].tolist() == pytest.approx(expected[::-1], abs=1e-5)
    assert (targets - advantages)[chosen].tolist() == pytest.approx(values[chosen].tolist(), abs=1e-5)
    assert not advantages[~chosen].any()
    assert not targets[~chosen].any()
