"""Fits: constants that made synthetic measurements are found again, disturbed ones do not pull, limits hold."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.perf import gemm
from rpeg.perf.chip import Tiling
from rpeg.perf.fit import error_pct, fit, left_out_pct
from rpeg.perf.gemm import GemmConstants, GemmFigures

SIZES = np.array([1.0, 3.0, 10.0, 40.0, 200.0, 1000.0])
LINE = {"start": 1.0, "each": 1.0}


def line(values: Mapping[str, float]) -> np.ndarray:
    """A start and something per size."""
    return values["start"] + values["each"] * SIZES


@given(st.floats(1e-6, 1e3), st.floats(1e-4, 10.0))
def test_a_line_is_found_again(start: float, each: float) -> None:
    found = fit(line, start + each * SIZES, {"start": start * 7.0, "each": each / 9.0})
    assert found.error_pct < 0.1


def test_constants_of_products_are_found_again() -> None:
    figures = GemmFigures(1e11, 1e11, 1e10, 1, Tiling(((1.0, 1.0),)), 4.0, 4.0, 4.0)
    m, n, k = (each.ravel() for each in np.meshgrid([8.0, 64.0, 1024.0], [32.0, 512.0], [32.0, 512.0]))

    def predict(values: Mapping[str, float]) -> np.ndarray:
        return np.asarray(gemm.gemm_s(m, n, k, figures, GemmConstants(sharpness=2.0, **values)))

    true = {"start_s": 3e-6, "flops_fraction": 0.7, "bandwidth_fraction": 2.0}
    found = fit(predict, predict(true), {"start_s": 1e-6, "flops_fraction": 0.3, "bandwidth_fraction": 0.5})
    assert found.values == pytest.approx(true, rel=1e-3)


def test_a_disturbed_measurement_does_not_pull() -> None:
    measured = 2.0 + 0.5 * SIZES
    measured[2] *= 5.0
    found = fit(line, measured, LINE)
    assert found.values["start"] == pytest.approx(2.0, rel=0.05)
    assert found.values["each"] == pytest.approx(0.5, rel=0.05)
    assert found.error_pct == pytest.approx(80.0 / 6.0, rel=0.2)  # 80 % of one of six


def test_what_is_not_needed_becomes_nothing() -> None:
    found = fit(line, 3.0 * SIZES, LINE, rounds=200)
    assert found.values["start"] < 0.02
    assert found.values["each"] == pytest.approx(3.0, rel=1e-2)


def test_limits_hold() -> None:
    found = fit(line, 2.0 + 0.5 * SIZES, LINE, {"each": (0.6, 2.0)})
    assert found.values["each"] == pytest.approx(0.6)


def test_left_out_measurements_are_not_fitted_on() -> None:
    measured = 2.0 + 0.5 * SIZES
    assert left_out_pct(line, measured, LINE) < 0.1
    measured[3] *= 2.0
    fitted = fit(line, measured, LINE).error_pct
    assert fitted < left_out_pct(line, measured, LINE) < 40.0


def test_error_is_the_mean_of_percentages() -> None:
    assert error_pct(np.array([2.0, 1.0]), np.array([1.0, 2.0])) == 75.0
