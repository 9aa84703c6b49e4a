"""Ratios against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rpeg.numerics.ratios import importance_ratio, interpolated_proximal, log_ratio, sequence_ratio


def test_the_sequence_ratio_is_the_geometric_mean_over_the_answer() -> None:
    logps = torch.tensor([[0.0, 0.0, 9.0], [0.0, 9.0, 9.0]]) + torch.tensor([[2.0], [3.0]]).log()
    mask = torch.tensor([[True, True, False], [True, False, False]])
    base = torch.tensor([[0.0, math.log(0.5), math.nan], [0.0, math.inf, 0.0]])
    ratio = sequence_ratio(logps, base, mask)
    assert ratio[0, :2].tolist() == pytest.approx([math.sqrt(2 * 4)] * 2)
    assert ratio[1, 0].item() == pytest.approx(3.0)


def test_its_mean_over_the_answer_has_the_gradient_of_the_paper() -> None:
    logps = torch.tensor([[-0.1, -0.7, -0.4]], requires_grad=True)
    base, mask = torch.tensor([[-0.5, -0.5, -0.5]]), torch.tensor([[True, True, True]])
    (ours,) = torch.autograd.grad(sequence_ratio(logps, base, mask).mean(), logps)
    (expected,) = torch.autograd.grad((logps - base).mean().exp(), logps)
    assert ours[0].tolist() == pytest.approx(expected[0].tolist(), rel=1e-6)
    assert ours[0, 0].item() == pytest.approx(math.exp(0.1) / 3, rel=1e-6)


def test_outside_the_mask_the_log_ratio_is_zero_and_has_no_gradient() -> None:
    logps = torch.tensor([[math.nan, -1.0]], requires_grad=True)
    mask = torch.tensor([[False, True]])
    assert log_ratio(logps, torch.zeros(1, 2), mask).tolist() == [[0.0, -1.0]]
    for ratio in (importance_ratio, sequence_ratio):
        logps.grad = None
        ratio(logps, torch.zeros(1, 2), mask)[mask].sum().backward()
        assert logps.grad[0].tolist() == pytest.approx([0.0, math.exp(-1)])


def test_bl_157_long_answers_are_summed_in_float32() -> None:
    logps = torch.full((1, 4096), -0.99, dtype=torch.bfloat16)
    ratio = sequence_ratio(logps, torch.full((1, 4096), -1.0), torch.ones(1, 4096).bool())
    assert ratio[0, 0].item() == pytest.approx(math.exp(float(logps[0, 0]) + 1.0), rel=1e-5)


@pytest.mark.parametrize(
    ("behind", "ahead", "expected"),
    [(0, 1.0, -1.0), (1, 1.0, -0.7), (2, 1.0, -0.6), (0, 0.5, -1.0), (1, 0.5, -0.6), (2, 0.5, -0.52)],
)
def test_the_proximal_policy_is_between(behind: int, ahead: float, expected: float) -> None:
    # Behaviour -1.0, current -0.4: 1/2 and 2/3 of the way with the current policy a version ahead, 2/3 and 4/5 with
    # half a version.
    logps = torch.tensor([[-0.4]], requires_grad=True)
    proximal = interpolated_proximal(torch.tensor([[-1.0]]), logps, torch.tensor([[behind]]), ahead)
    assert proximal.item() == pytest.approx(expected)
    assert not proximal.requires_grad


def test_versions_may_differ_within_a_sample_or_be_one_for_it() -> None:
    behaviour, logps = torch.full((2, 2), -1.0), torch.full((2, 2), -0.4)
    assert interpolated_proximal(behaviour, logps, torch.tensor([[1, 0], [0, 2]])).flatten().tolist() == pytest.approx(
        [-0.7, -1.0, -1.0, -0.6]
    )
    assert interpolated_proximal(behaviour, logps, torch.tensor([[1], [0]])).tolist() == [
        pytest.approx([-0.7, -0.7]),
        pytest.approx([-1.0, -1.0]),
    ]


def test_the_ends_of_the_interpolation_are_exact() -> None:
    behaviour, logps = -torch.rand(4, 8), -torch.rand(4, 8)
    for behind in range(3):
        assert torch.equal(interpolated_proximal(behaviour, logps, torch.full((4, 1), behind), 0.0), logps)
    assert torch.equal(interpolated_proximal(behaviour, logps, torch.zeros(4, 1)), behaviour)
