"""The moving average of weights against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from rpeg.numerics.ema import moved_average


def test_it_moves_by_its_share_and_changes_nothing_given() -> None:
    average, weights = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([3.0, -2.0])}
    assert moved_average(average, weights, 0.75)["w"].tolist() == [1.5, 1.0]
    assert average["w"].tolist() == [1.0, 2.0]
    assert weights["w"].tolist() == [3.0, -2.0]


@pytest.mark.parametrize(("keep", "expected"), [(0.0, 3.0), (1.0, 1.0)])
def test_the_ends(keep: float, expected: float) -> None:
    assert moved_average({"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}, keep)["w"].item() == expected


def test_small_steps_towards_narrow_weights_add_up() -> None:
    average, weights = {"w": torch.ones(1, dtype=torch.bfloat16)}, {"w": torch.zeros(1, dtype=torch.bfloat16)}
    for _ in range(100):
        average = moved_average(average, weights, 0.99)
    assert average["w"].item() == pytest.approx(0.99**100, rel=1e-5)
    assert average["w"].dtype == torch.float32


def test_other_names_and_shares_are_refused() -> None:
    with pytest.raises(AssertionError, match="'v'"):
        moved_average({"w": torch.zeros(1)}, {"v": torch.zeros(1), "w": torch.zeros(1)}, 0.9)
    with pytest.raises(AssertionError, match=r"keep 1\.5 is not in \[0, 1\]"):
        moved_average({}, {}, 1.5)
