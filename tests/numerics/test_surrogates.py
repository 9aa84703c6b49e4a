"""Surrogates against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from rpeg.numerics.surrogates import cispo_surrogate, clipped_surrogate, is_clipped, reinforce_surrogate


def one(value: float, requires_grad: bool = False) -> torch.Tensor:
    return torch.tensor([[value]], requires_grad=requires_grad)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 1.0, 1.28), (0.5, 1.0, 0.5), (1.5, -1.0, -1.5), (0.5, -1.0, -0.8), (1.1, 2.0, 2.2), (1.5, 0.0, 0.0)],
)
def test_clip_higher_bounds_only_what_would_be_gained(ratio: float, advantage: float, expected: float) -> None:
    assert clipped_surrogate(one(ratio), one(advantage), 0.2, 0.28).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "slope"),
    [
        (5.0, -2.0, -6.0, 0.0),
        (2.5, -2.0, -5.0, -2.0),
        (0.5, -2.0, -1.6, 0.0),
        (5.0, 2.0, 2.56, 0.0),
        (0.5, 2.0, 1.0, 2.0),
    ],
)
def test_dual_clip_bounds_what_a_bad_token_costs(ratio: float, advantage: float, expected: float, slope: float) -> None:
    ratio_11 = one(ratio, requires_grad=True)
    surrogate = clipped_surrogate(ratio_11, one(advantage), 0.2, 0.28, dual_clip=3.0)
    surrogate.backward()
    assert surrogate.item() == pytest.approx(expected, rel=1e-6)
    assert ratio_11.grad.item() == slope
    assert is_clipped(ratio_11, one(advantage), 0.2, 0.28, 3.0).item() == (slope == 0.0)


def test_a_dual_clip_below_one_would_turn_the_gradient_round() -> None:
    with pytest.raises(AssertionError, match=r"dual clip 1\.0 is not above 1"):
        clipped_surrogate(one(1.0), one(-1.0), 0.2, 0.2, dual_clip=1.0)


@pytest.mark.parametrize(("ratio", "weight"), [(1.5, 1.28), (0.5, 0.8), (1.1, 1.1)])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_cispo_bounds_the_weight_and_keeps_the_gradient(ratio: float, weight: float, advantage: float) -> None:
    logp = one(-0.7, requires_grad=True)
    ratio_11 = one(ratio, requires_grad=True)
    surrogate = cispo_surrogate(logp, ratio_11, one(advantage), 0.2, 0.28)
    surrogate.backward()
    assert surrogate.item() == pytest.approx(weight * advantage * -0.7, rel=1e-6)
    assert logp.grad.item() == pytest.approx(weight * advantage, rel=1e-6)
    assert ratio_11.grad is None


def test_reinforce_is_the_advantage_times_the_gradient_of_the_log_probability() -> None:
    logp = one(-0.7, requires_grad=True)
    surrogate = reinforce_surrogate(logp, one(3.0))
    surrogate.backward()
    assert surrogate.item() == pytest.approx(-2.1)
    assert logp.grad.item() == 3.0
