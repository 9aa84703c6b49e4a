import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.hardware.catalog import devices
from rpeg.hardware.naming import device_for
from rpeg.hardware.topology import Device, Link
from rpeg.perf.attention import Heads
from rpeg.perf.chip import chip_of, chips, tiling_of
from rpeg.perf.dtype import dtype_of, item_bytes
from rpeg.perf.kernels import kernels_for

H100, A100 = kernels_for(device_for("h100_sxm")), kernels_for(device_for("a100_sxm"))
HEADS = Heads(32.0, 8.0, 128.0, 128.0)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("bfloat16", "bfloat16"),
        ("BF16", "bfloat16"),
        ("fp8_block", "float8"),
        ("mxfp8", "float8"),
        ("nvfp4", "float4"),
        ("MXFP4", "float4"),
        ("int8_wo", "int8_weight"),
        ("w8a8", "int8"),
        ("int4_wo", "int4"),
        ("fp16", "float16"),
        ("float32", "float32"),
        ("tf32", "tf32"),
        ("", "bfloat16"),
    ],
)
def test_dtypes_are_known_by_many_names(text: str, dtype: str) -> None:
    assert dtype_of(text) == dtype
    assert item_bytes(text) > 0


def test_every_chip_is_complete() -> None:
    for chip in chips().values():
        assert chip.processors > 0
        assert 0 < chip.fraction("bfloat16") <= 1
        assert chip.source
        assert tiling_of(chip.tiling).sizes


@pytest.mark.parametrize("name", devices())
def test_every_device_of_the_catalogue_has_a_chip_and_prices(name: str) -> None:
    kernels = kernels_for(device_for(name))
    assert kernels.chip is not chip_of("nothing known")
    for dtype in ("bfloat16", "float16", "float32", "float8", "int8", "int4", "float4"):
        assert kernels.gemm_s(64.0, 4096.0, 4096.0, dtype) > 0
        assert kernels.best_flops(dtype) <= kernels.peak_flops(dtype)
    assert kernels.prefill_attention_s(2.0, 512.0, 512.0, HEADS) > 0
    assert kernels.decode_attention_s(2.0, 512.0, HEADS) > 0
    assert kernels.stream_s(1e6) > 0


def test_only_measured_devices_are_not_extrapolated() -> None:
    assert H100.extrapolates == A100.extrapolates == ""
    assert kernels_for(device_for("h200")).extrapolates == "device H200-SXM-141GB new"
    assert "MI300X" in kernels_for(device_for("mi300x")).extrapolates


def test_a_device_nobody_listed_takes_generic_constants_and_says_so() -> None:
    device = Device("Moon-1", 1, 1e12, (("bfloat16", 1e14),), Link("pcie", 1e10, 1e-5), 1)
    kernels = kernels_for(device)
    assert kernels.profile.startswith("devices/generic")
    assert "no devices profile of Moon" in kernels.extrapolates
    assert kernels.best_flops() == pytest.approx(0.776e14)


def test_generations_share_constants_but_not_figures() -> None:
    h200 = kernels_for(device_for("h200"))
    assert h200.constants == H100.constants
    assert h200.gemm_s(1.0, 8192.0, 8192.0) < H100.gemm_s(1.0, 8192.0, 8192.0)
    assert h200.gemm_s(8192.0, 8192.0, 8192.0) == pytest.approx(H100.gemm_s(8192.0, 8192.0, 8192.0), rel=1e-3)


def test_a_named_profile_replaces_that_of_the_generation() -> None:
    moved = kernels_for(device_for("h100_sxm"), "a100")
    assert moved.constants == A100.constants
    assert moved.best_flops() == H100.best_flops()


def test_weights_of_a_dtype_the_device_lacks_are_read_narrow_and_computed_wide() -> None:
    assert A100.arithmetic("fp8") == "bfloat16"
    assert A100.peak_flops("fp8") == 312e12
    figures = A100.gemm_figures("fp8")
    assert (figures.weight_bytes, figures.input_bytes) == (1.0, 2.0)
    assert A100.gemm_s(1.0, 8192.0, 8192.0, "fp8") < 0.6 * A100.gemm_s(1.0, 8192.0, 8192.0)
    assert A100.gemm_s(8192.0, 8192.0, 8192.0, "fp8") == pytest.approx(A100.gemm_s(8192.0, 8192.0, 8192.0), rel=1e-3)


def test_four_bit_weights_make_decoding_several_times_faster() -> None:
    ratio = H100.gemm_s(1.0, 16384.0, 16384.0) / H100.gemm_s(1.0, 16384.0, 16384.0, "int4")
    assert 3 < ratio < 4


def test_native_narrow_dtypes_quantise_their_inputs_unless_told() -> None:
    with_s = H100.gemm_s(8192.0, 4096.0, 4096.0, "fp8")
    without_s = H100.gemm_s(8192.0, 4096.0, 4096.0, "fp8", is_quantised=True)
    assert with_s - without_s == pytest.approx(5 * 8192 * 4096 / (3350e9 * 0.58))


def test_a_processor_has_nothing_of_a_gpu() -> None:
    cpu = kernels_for(device_for("local"))
    assert cpu.gemm_s(1.0, 64.0, 64.0, "float32") < 1e-5
    one, two = (cpu.gemm_s(m, 512.0, 512.0, "float32") for m in (256.0, 512.0))
    assert two / one == pytest.approx(2.0, rel=0.1)


def test_graphs_and_launches_can_be_set() -> None:
    assert not H100.is_captured
    assert H100.captured().is_captured
    assert H100.captured(False, 1e-3).launch_s == 1e-3


def test_numbers_of_a_real_chip() -> None:
    """Within 6 percent of one row each of ai-dynamo/aiconfigurator data/h100_sxm, vllm 0.24.0 (Apache-2.0)."""
    assert H100.gemm_s(4096.0, 8192.0, 8192.0) == pytest.approx(697.7e-6, rel=0.06)
    assert H100.prefill_attention_s(4.0, 4096.0, 4096.0, HEADS) == pytest.approx(1011.0e-6, rel=0.06)
    assert H100.decode_attention_s(64.0, 2048.0, HEADS) == pytest.approx(186.7e-6, rel=0.06)


@given(m=st.floats(1, 1e5), groups=st.floats(1, 256))
def test_spreading_rows_over_experts_never_helps(m: float, groups: float) -> None:
    assert H100.gemm_s(m, 1536.0, 2048.0, groups=groups) >= H100.gemm_s(m, 1536.0, 2048.0) * (1 - 1e-9)


def test_tables_are_built_in_one_call() -> None:
    tokens, tp = np.geomspace(1, 1e4, 20)[:, None], np.array([1.0, 2.0, 4.0, 8.0])
    assert np.shape(H100.gemm_s(tokens, 4096.0 / tp, 4096.0)) == (20, 4)
