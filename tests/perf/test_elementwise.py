import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.perf.elementwise import ElementwiseConstants, Fusion, passes, stream_s

CONSTANTS = ElementwiseConstants(start_s=2e-6, bandwidth_fraction=0.8)


def test_kernels_start_and_then_move_bytes() -> None:
    assert stream_s(8e9, launches=3, bytes_per_s=1e12, constants=CONSTANTS) == pytest.approx(6e-6 + 0.01)


def test_nothing_launched_costs_bytes_only() -> None:
    assert stream_s(8e9, launches=0, bytes_per_s=1e12, constants=CONSTANTS) == pytest.approx(0.01)


@pytest.mark.parametrize("what", ["norm", "rotary", "activation", "softmax"])
def test_fusing_saves_passes_and_launches(what: str) -> None:
    fused, eager = passes(what, Fusion.FUSED), passes(what, Fusion.EAGER)
    assert fused[0] < eager[0]
    assert fused[1] < eager[1]


@given(num_bytes=st.floats(0, 1e12), launches=st.integers(0, 50))
def test_more_bytes_never_take_less(num_bytes: float, launches: int) -> None:
    less = stream_s(num_bytes, launches=launches, bytes_per_s=1e12, constants=CONSTANTS)
    assert stream_s(2 * num_bytes, launches=launches, bytes_per_s=1e12, constants=CONSTANTS) >= less >= 0
