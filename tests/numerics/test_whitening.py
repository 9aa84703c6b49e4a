"""Whitening against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rpeg.numerics.whitening import whiten


@pytest.mark.parametrize("padding", [0, 3, 60])
@pytest.mark.parametrize("junk", [0.0, 1e30, math.nan])
def test_bl_001_only_masked_slots_count(padding: int, junk: float) -> None:
    values = torch.tensor([[3.0, 1.0, junk, junk], [-1.0, -3.0, -2.0, junk]])
    mask = torch.tensor([[True, True, False, False], [True, True, True, False]])
    values = torch.nn.functional.pad(values, (0, padding), value=junk)
    mask = torch.nn.functional.pad(mask, (0, padding))
    whitened = whiten(values, mask)
    expected = [1.5784, 0.6499, -0.2785, -1.2070, -0.7428]
    assert whitened[mask].tolist() == pytest.approx(expected, abs=5e-5)
    assert not whitened[~mask].any()


def test_bl_014_one_value_is_returned_as_it_is() -> None:
    mask = torch.tensor([[False, True], [False, False]])
    assert whiten(torch.tensor([[math.nan, 7.0], [1.0, 2.0]]), mask).tolist() == [[0.0, 7.0], [0.0, 0.0]]


def test_nothing_is_whitened_to_nothing() -> None:
    assert whiten(torch.tensor([[math.nan]]), torch.tensor([[False]])).tolist() == [[0.0]]


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6])
def test_equal_values_are_exactly_zero(value: float) -> None:
    assert whiten(torch.tensor([value, value, value * (1 + 1e-7)]), torch.ones(3).bool()).tolist() == [0.0] * 3


def test_rounding_is_no_signal_however_small_the_values_are() -> None:
    # KL of a policy that still is its reference, times a coefficient: differences of log-probabilities near 1.
    noise = torch.tensor([3e-8, -1e-7, 0.0, 2e-7])
    assert whiten(noise, torch.ones(4).bool()).tolist() == [0.0] * 4
    assert whiten(noise * 1e3, torch.ones(4).bool()).std(correction=0).item() == pytest.approx(1.0)


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"values \(2, 3\), mask \(3,\)"):
        whiten(torch.zeros(2, 3), torch.ones(3).bool())
