from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.perf.chip import Tiling
from rpeg.perf.gemm import GemmConstants, GemmFigures, blocks_s, gemm_s, heat_fraction, quantise_s

ONE_BLOCK = Tiling(((128.0, 128.0),))
FIGURES = GemmFigures(8e12, 8e12, 1e12, 4, ONE_BLOCK)
CONSTANTS = GemmConstants(4e-6, 1.0, 0.8, 4.0)
SIZES = st.integers(1, 20000).map(float)


def test_blocks_fill_waves() -> None:
    # One block on one of four processors: 2 * 128 * 128 * 1000 / 2e12, and half or a quarter of it where k is split.
    assert blocks_s(512.0, 128.0, 1000.0, FIGURES, CONSTANTS) == pytest.approx(16.384e-6)
    partial_s = 128 * 128 * 8 * 4 / (1e12 * 0.8 * 2)
    assert blocks_s(128.0, 128.0, 1000.0, FIGURES, CONSTANTS) == pytest.approx(16.384e-6 / 4 + partial_s)


def test_a_block_more_than_processors_begins_a_new_wave() -> None:
    four, five = (float(blocks_s(m, 128.0, 1e6, FIGURES, CONSTANTS)) for m in (512.0, 513.0))
    assert five / four == pytest.approx(1.25, rel=1e-2)  # twenty quarters on four processors


def test_small_blocks_cost_more_per_value() -> None:
    figures = replace(FIGURES, tiling=Tiling(((64.0, 64.0), (128.0, 128.0))))
    constants = replace(CONSTANTS, side_tokens=64.0)
    # One row of blocks: 64 wide they cost (1 + 2) / (1 + 1) of their share, so two of them more than one of 128.
    small = float(blocks_s(64.0, 64.0, 1e6, replace(figures, processors=1), constants))
    assert small == pytest.approx(2 * 64 * 64 * 1e6 / 8e12 * 1.5)


def test_ramp_adds_steps_of_k() -> None:
    ramped = blocks_s(512.0, 128.0, 1000.0, FIGURES, replace(CONSTANTS, ramp_tokens=500.0))
    assert ramped == pytest.approx(16.384e-6 * 1.5)


def test_a_thin_product_reads_its_weights() -> None:
    figures = replace(FIGURES, peak_flops=1e18, best_flops=1e18)
    expected_s = 4e-6 + 2 * (4096 * 4096 + 2 * 4096) / 0.8e12
    assert gemm_s(1.0, 4096.0, 4096.0, figures, CONSTANTS) == pytest.approx(expected_s)


def test_narrow_weights_and_wide_outputs_count_by_their_bytes() -> None:
    figures = GemmFigures(1e18, 1e18, 1e12, 4, ONE_BLOCK, weight_bytes=0.5, input_bytes=1.0, output_bytes=4.0)
    expected_s = 4e-6 + (0.5 * 4096 * 4096 + 4096 + 4 * 4096) / 0.8e12
    assert gemm_s(1.0, 4096.0, 4096.0, figures, CONSTANTS) == pytest.approx(expected_s)


def test_heat_slows_long_products_and_all_hot_ones() -> None:
    # The best product has four fifths of the peak, so that long arithmetic takes a quarter longer.
    constants = replace(CONSTANTS, start_s=0.0, heat_s=1e-5)
    figures = replace(FIGURES, best_flops=6.4e12, bytes_per_s=1e18)
    assert heat_fraction(figures, constants) == pytest.approx(0.25)
    cold_s = float(blocks_s(512.0, 128.0, 1000.0, figures, constants))
    hot_s = gemm_s(512.0, 128.0, 1000.0, figures, constants, is_hot=True)
    assert hot_s == pytest.approx(1.25 * cold_s)
    alone_s = gemm_s(512.0, 128.0, 1000.0, figures, constants)
    assert alone_s == pytest.approx(cold_s * (1 + 0.25 * cold_s / (cold_s + constants.heat_s)))


def test_short_arithmetic_runs_at_the_data_sheet_and_long_at_the_best_product() -> None:
    constants = replace(CONSTANTS, start_s=0.0, hot_fraction=0.9)
    figures = replace(FIGURES, best_flops=7.2e12, bytes_per_s=1e18)
    flops = 2 * 512 * 128 * 1000
    assert blocks_s(512.0, 128.0, 1000.0, figures, constants) == pytest.approx(flops / 8e12)
    assert gemm_s(512.0, 128.0, 1000.0, figures, constants, is_hot=True) == pytest.approx(flops / (0.9 * 7.2e12))


def test_a_chip_far_below_its_data_sheet_is_slow_when_cold_too() -> None:
    figures = replace(FIGURES, best_flops=4e12)  # half of the peak: heat explains 1.4 of it
    assert heat_fraction(figures, CONSTANTS) == pytest.approx(0.4)
    assert blocks_s(512.0, 128.0, 1000.0, figures, CONSTANTS) == pytest.approx(2 * 512 * 128 * 1000 / (1.4 * 4e12))
    assert heat_fraction(replace(FIGURES, best_flops=16e12), CONSTANTS) == 0.0


def test_no_product_is_faster_than_the_data_sheet() -> None:
    constants, figures = replace(CONSTANTS, flops_fraction=2.0), replace(FIGURES, bytes_per_s=1e18)
    assert gemm_s(512.0, 128.0, 1e6, figures, constants) >= 2 * 512 * 128 * 1e6 / 8e12


def test_experts_have_weights_of_their_own() -> None:
    figures = replace(FIGURES, peak_flops=1e18, best_flops=1e18)
    one, eight = (gemm_s(8.0, 1024.0, 1024.0, figures, CONSTANTS, groups=groups) - 4e-6 for groups in (1.0, 8.0))
    assert eight / one == pytest.approx(8.0, rel=0.02)


def test_quantising_reads_twice_and_writes_once() -> None:
    figures = replace(FIGURES, input_bytes=1.0)
    assert quantise_s(1e3, 1e3, figures, replace(CONSTANTS, cast_fraction=0.5)) == pytest.approx(5e6 / 0.5e12)


def test_arrays_are_taken_element_by_element() -> None:
    m, n = np.array([[1.0], [512.0]]), np.array([128.0, 4096.0, 1000.0])
    table = gemm_s(m, n, 1000.0, FIGURES, CONSTANTS)
    assert np.shape(table) == (2, 3)
    assert table[1, 2] == pytest.approx(gemm_s(512.0, 1000.0, 1000.0, FIGURES, CONSTANTS))  # type: ignore[index]


@given(m=SIZES, n=SIZES, k=SIZES)
def test_larger_products_never_take_less(m: float, n: float, k: float) -> None:
    base_s = gemm_s(m, n, k, FIGURES, CONSTANTS)
    assert base_s > CONSTANTS.start_s
    for larger in ((2 * m, n, k), (m, 2 * n, k), (m, n, 2 * k)):
        assert gemm_s(*larger, FIGURES, CONSTANTS) >= base_s * (1 - 1e-9)


@given(m=SIZES, n=SIZES, k=SIZES)
def test_twice_the_figures_take_half_the_time(m: float, n: float, k: float) -> None:
    constants = replace(CONSTANTS, start_s=0.0)
    doubled = GemmFigures(16e12, 16e12, 2e12, 4, ONE_BLOCK)
    assert gemm_s(m, n, k, doubled, constants) == pytest.approx(gemm_s(m, n, k, FIGURES, constants) / 2)
