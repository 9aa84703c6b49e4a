"""The three ways to aggregate token losses against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from rpeg.numerics.aggregation import Counts, Normalise, aggregate


@pytest.mark.parametrize(
    ("normalise", "length", "total", "mean"),
    [("token", None, 2.0, 0.2), ("sample", None, 1.0, 0.5), ("constant", 10, 0.2, 0.1)],
)
def test_bl_023_lengths_2_and_8(normalise: Normalise, length: int | None, total: float, mean: float) -> None:
    values = torch.cat([torch.ones(1, 8), torch.zeros(1, 8)])
    mask = torch.arange(8) < torch.tensor([[2], [8]])
    summed = aggregate(values, mask, normalise, length)
    assert summed.item() == pytest.approx(total)
    assert summed.item() / Counts(10, 2).of(normalise) == pytest.approx(mean)


def test_counts_add_up_and_an_empty_update_is_divided_by_one() -> None:
    assert Counts(3, 1) + Counts(4, 2) == Counts(7, 3)
    assert [Counts(7, 3).of(normalise) for normalise in ("token", "sample", "constant")] == [7, 3, 3]
    assert [Counts(0, 0).of(normalise) for normalise in ("token", "sample", "constant")] == [1, 1, 1]


@pytest.mark.parametrize(("normalise", "length"), [("constant", None), ("token", 8)])
def test_the_constant_length_belongs_to_constant(normalise: Normalise, length: int | None) -> None:
    with pytest.raises(AssertionError, match=f"{normalise}, constant {length}"):
        aggregate(torch.zeros(1, 1), torch.ones(1, 1).bool(), normalise, length)


def test_bl_157_sums_are_float32() -> None:
    ones = torch.ones(1, 4096).bool()
    assert aggregate(torch.ones(1, 4096).bfloat16(), ones, "sample").dtype == torch.float32
    assert aggregate(torch.full((1, 4096), 0.01).bfloat16(), ones, "token").item() == pytest.approx(41.0)
    assert aggregate(torch.full((1, 4096), -0.001).bfloat16(), ones, "token").item() == pytest.approx(-4.094, abs=5e-4)
