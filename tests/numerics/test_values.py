"""The loss of a critic against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rpeg.numerics.aggregation import Counts
from rpeg.numerics.values import ValueInputs, ValueSums, value_loss


def inputs(values: list[float], old: list[float], targets: list[float], mask: list[int]) -> ValueInputs:
    return ValueInputs(
        torch.tensor([values], requires_grad=True),
        torch.tensor([old]),
        torch.tensor([targets]),
        torch.tensor([mask]).bool(),
    )


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "loss", "gradient"),
    [
        # BL-010: max((1 - 10)^2, (4.8 - 10)^2) = 81, halved; moved away from the return, so it keeps its gradient.
        (1.0, 5.0, 10.0, 0.2, 40.5, -9.0),
        # Moved towards the return by more than the clip: max(16, (5.2 - 10)^2 = 23.04), and no gradient.
        (6.0, 5.0, 10.0, 0.2, 11.52, 0.0),
        (5.1, 5.0, 10.0, 0.2, 12.005, -4.9),
        (6.0, 5.0, 10.0, None, 8.0, -4.0),
    ],
)
def test_bl_010_the_larger_error_counts(
    value: float, old: float, target: float, clip: float | None, loss: float, gradient: float
) -> None:
    part = inputs([value], [old], [target], [1])
    terms = value_loss(part, clip, Counts(1, 1))
    terms.loss.backward()
    assert terms.loss.item() == pytest.approx(loss)
    assert part.values_BT.grad.item() == pytest.approx(gradient)


def test_metrics_of_a_step_and_what_padding_holds() -> None:
    part = inputs([1.0, 3.0, math.nan], [1.0, 2.0, math.inf], [2.0, 6.0, math.nan], [1, 1, 0])
    terms = value_loss(part, 0.5, Counts(2, 1))
    terms.loss.backward()
    # Errors 1 and 3; the second value moved by 1 towards its return and counts as 2.5.
    assert terms.loss.item() == pytest.approx((1 + 3.5**2) / 4)
    assert part.values_BT.grad.tolist() == [[-0.5, 0.0, 0.0]]
    assert terms.sums.metrics() == pytest.approx(
        {
            "loss/value": (1 + 3.5**2) / 4,
            "value/mean": 2.0,
            "value/return": 4.0,
            "value/clip_fraction": 0.5,
            # Variance of returns 4, of errors 1.
            "value/explained": 0.75,
        }
    )


def test_sums_add_up_and_nothing_has_no_metrics() -> None:
    nothing = value_loss(inputs([1.0], [1.0], [1.0], [0]), None, Counts(0, 0))
    assert nothing.loss.item() == 0.0
    assert nothing.sums.metrics() == ValueSums.zero().metrics() == {}
    equal = value_loss(inputs([1.0, 2.0], [1.0, 2.0], [3.0, 3.0], [1, 1]), None, Counts(2, 1)).sums
    assert (equal + nothing.sums).metrics() == (ValueSums.zero() + equal).metrics() == equal.metrics()
    assert equal.metrics()["value/explained"] == 0.0


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(AssertionError, match=r"\(1, 1\), \(1, 2\)"):
        inputs([1.0], [1.0, 2.0], [1.0], [1])
