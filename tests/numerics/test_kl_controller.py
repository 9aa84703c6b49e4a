"""The controller of the KL coefficient against numbers worked out by hand."""

from __future__ import annotations

import pytest

from rpeg.numerics.kl_controller import KlController


@pytest.mark.parametrize(
    ("kl", "expected"),
    [(6.0, 0.1), (6.6, 0.1 * 1.01), (5.4, 0.1 * 0.99), (600.0, 0.1 * 1.02), (0.0, 0.1 * 0.98), (-3.0, 0.1 * 0.98)],
)
def test_the_coefficient_follows_the_clipped_error(kl: float, expected: float) -> None:
    # 1000 samples of a horizon of 10000: a tenth of the error, which is clipped to a fifth.
    controller = KlController(coefficient=0.1, target=6.0, horizon=10_000)
    assert controller.after(kl, 1000).coefficient == pytest.approx(expected)
    assert controller.coefficient == 0.1


def test_it_settles_where_the_target_is_met() -> None:
    # A policy whose distance falls as its coefficient rises: kl = 1 / coefficient, target 4.
    controller = KlController(coefficient=2.0, target=4.0, horizon=100)
    for _ in range(200):
        controller = controller.after(1 / controller.coefficient, samples=50)
    assert controller.coefficient == pytest.approx(0.25, rel=1e-3)


def test_steps_longer_than_the_horizon_allows_are_refused() -> None:
    with pytest.raises(AssertionError, match="500 samples of a step with horizon 100"):
        KlController(0.1, 6.0, 100).after(1.0, 500)
