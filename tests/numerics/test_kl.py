"""Estimators of the divergence against numbers worked out by hand and against enumeration of all outcomes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rpeg.numerics.kl import Estimator, kl_estimate, kl_term

ESTIMATORS = ("k1", "k2", "k3")
POLICY_V, REFERENCE_V = torch.tensor([[0.7, 0.3]]), torch.tensor([[0.5, 0.5]])
KL = 0.7 * math.log(0.7 / 0.5) + 0.3 * math.log(0.3 / 0.5)
ALL = torch.ones(1, 2).bool()


def k3(logps: torch.Tensor, base_logps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return kl_estimate(logps, base_logps, mask, "k3")


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20))
def test_bl_039_k3_is_never_negative(log_ratios: list[float]) -> None:
    x = torch.tensor([log_ratios])
    assert (k3(torch.zeros_like(x), x, torch.ones_like(x).bool()) >= 0).all()


def test_bl_039_k3_is_exact_near_zero() -> None:
    x = torch.tensor([[0.0, 1e-3, -1e-3, 1.0, -5.0]])
    values = k3(torch.zeros_like(x), x, torch.ones_like(x).bool())
    expected = [0.0, 5.0016671e-7, 4.9983338e-7, math.e - 2, math.exp(-5) + 4]
    assert values[0, 0] == 0
    assert values[0].tolist() == pytest.approx(expected, abs=1e-9, rel=1e-6)


@pytest.mark.parametrize(
    ("estimator", "likelier", "less_likely"),
    [
        ("k1", math.log(2), -math.log(2)),
        ("k2", math.log(2) ** 2 / 2, math.log(2) ** 2 / 2),
        ("k3", math.log(2) - 0.5, 1 - math.log(2)),
    ],
)
def test_sign_and_value_of_each_estimator(estimator: Estimator, likelier: float, less_likely: float) -> None:
    # A token twice and one half as likely under the policy as under the reference.
    values = kl_estimate(torch.tensor([[math.log(2), -math.log(2)]]), torch.zeros(1, 2), ALL, estimator)
    assert values[0].tolist() == pytest.approx([likelier, less_likely], rel=1e-6)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("k1", KL), ("k3", KL), ("k2", 0.7 * math.log(1.4) ** 2 / 2 + 0.3 * math.log(0.6) ** 2 / 2)],
)
def test_bl_040_mean_of_each_estimator_over_all_outcomes(estimator: Estimator, expected: float) -> None:
    values = kl_estimate(POLICY_V.log(), REFERENCE_V.log(), ALL, estimator)
    assert (POLICY_V * values).sum().item() == pytest.approx(expected, abs=1e-6)
    assert pytest.approx(0.082283, abs=1e-6) == KL


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_bl_040_every_term_has_the_gradient_of_the_divergence(estimator: Estimator) -> None:
    logit = torch.tensor(math.log(0.7 / 0.3), requires_grad=True)
    logps_BT = torch.stack([logit, torch.zeros(())]).log_softmax(-1)[None]
    term_BT = kl_term(logps_BT, REFERENCE_V.log(), (logps_BT - logps_BT.detach()).exp(), ALL, estimator)
    (POLICY_V * term_BT).sum().backward()
    # dKL/dlogit = p (1 - p) (log p / q - log (1 - p) / (1 - q)), worked out once as 0.177933.
    assert logit.grad.item() == pytest.approx(0.177933, abs=1e-6)


def test_bl_040_k1_by_itself_would_have_no_gradient() -> None:
    logit = torch.tensor(math.log(0.7 / 0.3), requires_grad=True)
    logps_BT = torch.stack([logit, torch.zeros(())]).log_softmax(-1)[None]
    (POLICY_V * kl_estimate(logps_BT, REFERENCE_V.log(), ALL, "k1")).sum().backward()
    assert logit.grad.item() == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_outside_the_mask_nothing_is_read(estimator: Estimator) -> None:
    logps = torch.tensor([[-1.0, math.nan]], requires_grad=True)
    mask = torch.tensor([[True, False]])
    term = kl_term(logps, torch.tensor([[-2.0, math.inf]]), torch.ones(1, 2), mask, estimator)
    term.sum().backward()
    assert term[0, 1] == 0
    assert logps.grad[0, 1] == 0
    assert logps.grad.isfinite().all()
