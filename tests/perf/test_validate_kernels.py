import pytest

from rpeg.perf.validate.kernels import COLUMNS, price
from rpeg.perf.validate.row import Priced, Skip
from rpeg.perf.validate.table import errors

# A few rows of ai-dynamo/aiconfigurator (Apache-2.0), data/{a100_sxm,h100_sxm}: op, device, dtype, sizes, microseconds.
H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
GEMMS = [
    (A100, "bfloat16", 1, 4096, 12288, 72.1),
    (A100, "bfloat16", 256, 8192, 8192, 162.6),
    (A100, "bfloat16", 4096, 5120, 12288, 1902.4),
    (H100, "bfloat16", 16, 4096, 4096, 15.5),
    (H100, "bfloat16", 1024, 5120, 8192, 102.4),
    (H100, "bfloat16", 32768, 12288, 4096, 4651.5),
    (H100, "fp8", 64, 8192, 8192, 30.4),
    (H100, "fp8", 4096, 4096, 12288, 417.2),
]
ATTENTION = [
    ("attention_context", A100, 4, 2048, 32, 8, 944.6),
    ("attention_context", H100, 8, 4096, 16, 2, 987.0),
    ("attention_generation", A100, 16, 8192, 32, 8, 342.0),
    ("attention_generation", H100, 1, 128, 8, 1, 11.6),
    ("attention_generation", H100, 64, 4096, 32, 8, 353.6),
]


def row(**values: object) -> dict[str, str]:
    columns = (
        *COLUMNS,
        "device",
        "hardware",
        "dtype",
        "batch",
        "heads",
        "kv_heads",
        "head_dim",
        "notes",
        "kernel",
        "source",
    )
    empty = dict.fromkeys(columns, "")
    return empty | {name: str(value) for name, value in values.items()}


def gemm(device: str, dtype: str, m: int, n: int, k: int, latency_us: float) -> dict[str, str]:
    return row(op="gemm", device=device, dtype=dtype, m=m, n=n, k=k, latency_us=latency_us)


def attention(op: str, device: str, batch: int, tokens: int, heads: int, kv_heads: int, us: float) -> dict[str, str]:
    sizes = {"batch": batch, "isl_or_kvlen": tokens, "heads": heads, "kv_heads": kv_heads, "head_dim": 128}
    return row(op=op, device=device, dtype="bfloat16", latency_us=us, **sizes)


def one(record: dict[str, str]) -> Priced:
    (priced,) = price(record)
    return priced


def test_shipped_rows_of_products_are_met() -> None:
    priced = [one(gemm(*each)) for each in GEMMS]
    assert errors(priced).mape_pct < 8
    assert {each.set for each in priced} == {"gemm bf16", "gemm fp8"}
    assert all(each.ideal < each.measured and not each.extrapolates for each in priced)


def test_shipped_rows_of_attention_are_met() -> None:
    priced = [one(attention(*each)) for each in ATTENTION]
    assert errors(priced).mape_pct < 8
    assert {each.set for each in priced} == {"attention prefill", "attention decode"}


def test_best_shapes_are_judged_by_their_rate() -> None:
    """MAMF table of stas00/ml-engineering (CC-BY-SA): 794.5 TFLOP/s."""
    priced = one(
        row(op="gemm_best_shape", hardware="H100 SXM", dtype="bfloat16", m=2048, n=2048, k=13312, derived_tflops=794.5)
    )
    assert priced.set == "gemm best shape"
    assert priced.measured == pytest.approx(2 * 2048 * 2048 * 13312 / 794.5e12)
    assert priced.predicted == pytest.approx(priced.measured, rel=0.12)


@pytest.mark.parametrize(
    "hardware", ["h200_sxm", "b200_sxm", "gb200", "l40s", "MI300X", "H20", "b300", "rtx_pro_6000_server"]
)
@pytest.mark.parametrize("dtype", ["bfloat16", "fp8", "fp8_block", "nvfp4", "mxfp8", "int8_wo", "int4_wo", "float16"])
def test_other_devices_and_dtypes_have_a_price_and_a_flag(hardware: str, dtype: str) -> None:
    priced = one(row(op="gemm", hardware=hardware, dtype=dtype, m=64, n=4096, k=4096, latency_us=10))
    assert 0 < priced.ideal <= priced.predicted < 1e-3
    assert priced.extrapolates


def test_what_lies_outside_of_the_fit_is_said() -> None:
    assert one(gemm(H100, "bfloat16", 100000, 512, 4096, 1.0)).extrapolates == "m 100000 above 32768, n 512 below 1024"


@pytest.mark.parametrize(
    ("op", "values", "name"),
    [
        ("mla_context", {"batch": 2, "isl_or_kvlen": 1024, "heads": 128}, "attention prefill"),
        ("mla_generation", {"batch": 2, "isl_or_kvlen": 1024, "heads": 128}, "attention decode"),
        ("generation_attention", {"batch": 2, "isl_or_kvlen": 1024, "heads": 64}, "attention decode"),
        ("mla_bmm", {"m": 16, "heads": 128}, "gemm absorbed"),
        ("moe", {"m": 64, "n": 768, "k": 2048, "notes": "topk=8 num_experts=128 moe_ep=4"}, "experts"),
        ("rmsnorm", {"m": 4096, "n": 8192}, "elementwise"),
    ],
)
def test_other_operations_have_a_price(op: str, values: dict[str, object], name: str) -> None:
    priced = one(row(op=op, hardware="h200_sxm", dtype="bfloat16", latency_us=50, **values))
    assert priced.set == name
    assert 0 < priced.ideal <= priced.predicted * 1.01


def test_a_cache_may_be_narrower_than_the_arithmetic() -> None:
    sizes = {"batch": 64, "isl_or_kvlen": 8192, "heads": 32, "kv_heads": 8, "head_dim": 128, "latency_us": 300}
    wide, narrow = (
        one(row(op="attention_generation", device=H100, dtype=dtype, **sizes)) for dtype in ("bfloat16", "bfloat16/fp8")
    )
    assert narrow.predicted < 0.6 * wide.predicted


def test_a_window_in_the_notes_counts() -> None:
    sizes = {"batch": 64, "isl_or_kvlen": 8192, "heads": 32, "kv_heads": 8, "head_dim": 128, "latency_us": 300}
    far, near = (one(row(op="attention_generation", device=H100, notes=notes, **sizes)) for notes in ("", "window=128"))
    assert near.predicted < 0.2 * far.predicted


def test_a_device_in_no_catalogue_is_priced_by_the_peak_its_row_gives() -> None:
    sizes = {"m": 4096, "n": 4096, "k": 4096, "derived_tflops": 600, "frac_peak_flops": 0.6}
    priced = one(row(op="gemm_best_shape", hardware="Gaudi 9", dtype="bfloat16", **sizes))
    assert priced.ideal == pytest.approx(2 * 4096**3 / 1000e12)
    assert "no devices profile" in priced.extrapolates


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (row(op="gemm", hardware="Gaudi 9", m=1, n=1, k=1, latency_us=1), "unknown"),
        (row(op="gemm", device=H100, m="", n=1, k=1, latency_us=1), "m is ''"),
        (row(op="gemm", device=H100, m=1, n=1, k=1), "neither a latency nor a rate"),
        (row(op="sort", device=H100, latency_us=1), "'sort' is unknown"),
        (row(op="moe", device=H100, m=1, n=1, k=1, latency_us=1), "num_experts"),
    ],
)
def test_rows_without_a_price_say_why(record: dict[str, str], reason: str) -> None:
    with pytest.raises(Skip, match=reason):
        price(record)
