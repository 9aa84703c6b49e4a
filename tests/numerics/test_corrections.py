"""Off-policy corrections against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rpeg.numerics.corrections import Correction, Weights, correction_weights

# Ratios of proximal to behaviour policy: e, 1, 1/2 (product e / 2 = 1.359) and 3, 4, padding (product 12).
RATIOS = torch.tensor([[math.e, 1.0, 0.5], [3.0, 4.0, math.nan]])
MASK = torch.tensor([[True, True, True], [True, True, False]])


def weigh(correction: Correction) -> Weights:
    return correction_weights(RATIOS.log() - 1, torch.full((2, 3), -1.0), MASK, correction)


@pytest.mark.parametrize(
    ("correction", "first", "second"),
    [
        (Correction(), [1, 1, 1], [1, 1]),
        (Correction("token"), [math.e, 1, 0.5], [3, 4]),
        (Correction("token", cap=2.0), [2, 1, 0.5], [2, 2]),
        (Correction("sequence", cap=100.0), [math.e / 2] * 3, [12, 12]),
        (Correction("sequence", cap=2.0), [math.e / 2] * 3, [2, 2]),
        (Correction("token", token_bounds=(0.6, 3.5)), [math.e, 1, 0], [3, 0]),
        (Correction("none", token_bounds=(0.6, 3.5)), [1, 1, 0], [1, 0]),
        (Correction(sequence_bounds=(0.5, 2.0)), [1, 1, 1], [0, 0]),
        (Correction("token", 2.0, (0.6, math.inf), (0.0, 2.0)), [2, 1, 0], [0, 0]),
    ],
)
def test_what_tokens_weigh(correction: Correction, first: list[float], second: list[float]) -> None:
    weights = weigh(correction)
    assert weights.weight_BT[0].tolist() == pytest.approx(first)
    assert weights.weight_BT[1, :2].tolist() == pytest.approx(second)
    assert weights.weight_BT[1, 2] == 1
    assert weights.weight_BT.dtype == torch.float32
    assert weights.ratio_BT[MASK].tolist() == pytest.approx(RATIOS[MASK].tolist())


def test_what_was_capped_masked_and_rejected() -> None:
    weights = weigh(Correction("token", 2.0, token_bounds=(0.6, 3.5), sequence_bounds=(0.5, 10.0)))
    assert weights.capped_BT.tolist() == [[True, False, False], [True, True, False]]
    assert weights.masked_BT.tolist() == [[False, False, True], [True, True, False]]
    assert weights.rejected_B.tolist() == [False, True]


def test_weights_are_constants() -> None:
    old = torch.tensor([[-0.9]], requires_grad=True)
    weights = correction_weights(old, torch.tensor([[-1.0]]), torch.tensor([[True]]), Correction("token", 2.0))
    assert weights.weight_BT.item() == pytest.approx(1.1052, abs=5e-5)
    assert not weights.weight_BT.requires_grad


def test_bl_036_a_small_bias_of_every_token_rejects_long_answers() -> None:
    mask = torch.arange(100) < torch.tensor([[100], [50]])
    weights = correction_weights(
        torch.full((2, 100), -0.988), torch.full((2, 100), -1.0), mask, Correction(sequence_bounds=(0.0, 3.0))
    )
    assert weights.rejected_B.tolist() == [True, False]
    assert weights.weight_BT[mask].sum() == 50


def test_products_too_large_for_float32_are_capped() -> None:
    weights = correction_weights(
        torch.zeros(1, 500), torch.full((1, 500), -4.0), torch.ones(1, 500).bool(), Correction("sequence", cap=5.0)
    )
    assert weights.weight_BT.unique().tolist() == [5.0]
    assert weights.capped_BT.all()


def test_a_row_without_trained_tokens_is_not_rejected() -> None:
    mask = torch.zeros(1, 2).bool()
    weights = correction_weights(torch.zeros(1, 2), torch.zeros(1, 2), mask, Correction(sequence_bounds=(1.0, 1.0)))
    assert not weights.rejected_B.any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cap": 0.5}, r"cap 0\.5 is below 1"),
        ({"weight": "sequence"}, "a product over a sample needs a finite cap"),
        ({"token_bounds": (1.5, 2.0)}, r"bounds \(1\.5, 2\.0\) do not hold 1"),
        ({"sequence_bounds": (0.1, 0.5)}, r"bounds \(0\.1, 0\.5\) do not hold 1"),
    ],
)
def test_constants_that_mean_nothing_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        Correction(**arguments)
