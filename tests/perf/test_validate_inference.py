"""Rows about inference engines: a few public ones with their sources, and rows of kinds that were never seen.

Sources: Mutinifni/splitwise-sim data/perf_model.csv (MIT); NVIDIA/TensorRT-LLM docs/source/performance (Apache-2.0);
ai-dynamo/aiconfigurator comparisons with end-to-end runs (Apache-2.0).
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from rpeg.perf.validate import inference, inference_silicon
from rpeg.perf.validate.row import Priced, Skip
from rpeg.perf.validate.serving_rows import machine, number, precision_of, profile_of
from rpeg.shapes.catalog import shape_of

SPLITWISE = {
    "source": "Mutinifni/splitwise-sim data/perf_model.csv (MIT)",
    "framework": "vLLM (2023, Splitwise ISCA24)",
    "hardware": "H100-SXM-80GB",
    "model": "llama2-70b",
    "params_b": "69",
    "layers": "80",
    "hidden": "8192",
    "heads": "64",
    "kv_heads": "8",
    "ffn": "28672",
    "vocab": "32000",
    "tp": "2",
    "gpus": "2",
    "weight_dtype": "fp16",
    "kv_dtype": "fp16",
    "regime": "static_batch",
    "isl": "512",
    "osl": "128",
    "batch_or_concurrency": "1",
    "unit": "ms",
}
TRTLLM = {
    **SPLITWISE,
    "source": "NVIDIA/TensorRT-LLM docs/source/performance/perf-overview.md @258c754 (v0.17)",
    "framework": "TensorRT-LLM 0.17",
    "model": "LLaMA v3.1 8B",
    "params_b": "8.03",
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "ffn": "14336",
    "vocab": "128256",
    "tp": "1",
    "gpus": "1",
    "weight_dtype": "fp8",
    "kv_dtype": "fp8",
    "regime": "inflight_max_load",
    "batch_or_concurrency": "max (memory-limited)",
    "metric": "output_tokens_per_s",
    "unit": "tok/s (all GPUs)",
}
SILICON = {
    "backend": "vllm",
    "backend_version": "0.12.0",
    "model_path": "Qwen/Qwen3-32B",
    "system": "h100_sxm",
    "precision": "",
    "mode": "agg",
    "isl": "1024",
    "osl": "512",
    "batch_size": "16.0",
    "tp_size": "4.0",
    "pp_size": "1.0",
    "silicon_concurrency": "16",
    "silicon_ttft_ms": "164.2",
    "silicon_tpot_ms": "11.85",
}


def silicon(**changes: str) -> list[Priced]:
    return inference_silicon.price({**SILICON, **changes})


def one(base: dict[str, str], **changes: str) -> Priced:
    (priced,) = inference.price({**base, **changes})
    return priced


@pytest.mark.parametrize(
    ("changes", "metric", "measured"),
    [
        ({}, "decode_time_per_token", 37.0),
        ({}, "prefill_time", 83.827),
        ({}, "e2e_time", 4785.682),
        ({"isl": "4096"}, "prefill_time", 642.662),
        ({"batch_or_concurrency": "16"}, "decode_time_per_token", 41.972),
        ({"tp": "8", "gpus": "8"}, "decode_time_per_token", 29.762),
        ({"hardware": "A100-SXM-80GB"}, "prefill_time", 196.862),
        ({"hardware": "A100-SXM-80GB", "tp": "8", "gpus": "8"}, "e2e_time", 5803.03),
    ],
)
def test_static_batches_of_2023(changes: dict[str, str], metric: str, measured: float) -> None:
    priced = one({**SPLITWISE, **changes}, metric=metric, value=str(measured))
    assert (priced.set, priced.measured, priced.unit) == ("static-batch inference", measured, "ms")
    assert priced.predicted == pytest.approx(measured, rel=0.2)
    assert priced.ideal < priced.predicted


@pytest.mark.parametrize(
    ("isl", "osl", "measured"),
    [(128, 2048, 21109.38), (500, 2000, 16500.69), (1000, 1000, 15244.78), (2048, 128, 3556.73), (2048, 2048, 9488.42)],
)
def test_maximum_load(isl: int, osl: int, measured: float) -> None:
    priced = one(TRTLLM, isl=str(isl), osl=str(osl), value=str(measured))
    assert (priced.set, priced.better) == ("maximum-load inference", "high")
    assert priced.predicted == pytest.approx(measured, rel=0.25)
    assert priced.ideal > priced.predicted


def test_online_time_per_token() -> None:
    rows = [
        (silicon(), 11.85),
        (silicon(tp_size="2.0", osl="128", silicon_concurrency="128", silicon_tpot_ms="80.26"), 80.26),
        (silicon(tp_size="8.0", isl="4096", osl="1024", silicon_concurrency="64", silicon_tpot_ms="18.98"), 18.98),
    ]
    for (token, first), measured in rows:
        assert (token.set, first.set) == ("online time per output token", "online time to first token")
        assert token.measured == measured
        assert token.predicted == pytest.approx(measured, rel=0.12)
        assert token.ideal < token.predicted


def test_one_row_gives_what_was_measured() -> None:
    assert [priced.set for priced in silicon(silicon_ttft_ms="")] == ["online time per output token"]
    assert [priced.set for priced in silicon(silicon_tpot_ms="")] == ["online time to first token"]
    with pytest.raises(Skip, match="neither time per output token"):
        silicon(silicon_tpot_ms="", silicon_ttft_ms="")
    with pytest.raises(Skip, match="lengths of prompts"):
        silicon(isl="")


UNSEEN = [
    {
        "model_path": "deepseek-ai/DeepSeek-R1",
        "system": "h200_sxm",
        "precision": "fp8",
        "tp_size": "8.0",
        "moe_ep_size": "8",
    },
    {
        "model_path": "deepseek-ai/DeepSeek-V3",
        "system": "b200_sxm",
        "gemm_quant_mode": "fp8_block",
        "moe_quant_mode": "nvfp4",
        "tp_size": "1.0",
        "attention_dp_size": "8.0",
        "moe_ep_size": "8",
        "silicon_concurrency": "512",
    },
    {"model_path": "openai/gpt-oss-120b", "system": "mi300x", "precision": "mxfp4", "tp_size": "8", "moe_tp_size": "8"},
    {"model_path": "Qwen/Qwen3-235B-A22B", "system": "gb200", "precision": "nvfp4", "tp_size": "4", "moe_tp_size": "4"},
    {
        "model_path": "meta-llama/Llama-3.1-405B",
        "system": "h200_sxm",
        "precision": "fp8",
        "tp_size": "8",
        "pp_size": "2",
    },
    {"model_path": "meta-llama/Llama-3.1-8B", "system": "l40s", "precision": "int8_wo", "tp_size": "1"},
    {"model_path": "someone/else-13B", "system": "xpu-9", "backend": "newengine", "tp_size": ""},
    {
        "model_path": "deepseek-ai/DeepSeek-R1",
        "system": "gb200",
        "mode": "disagg",
        "precision": "fp4",
        "tp_size": "",
        "silicon_concurrency": "1024",
        "prefill_tp_size": "4",
        "prefill_num_workers": "2",
        "prefill_batch_size": "2",
        "decode_tp_size": "1",
        "decode_attention_dp_size": "16",
        "decode_moe_ep_size": "16",
        "decode_num_workers": "1",
        "decode_batch_size": "64",
    },
]


@pytest.mark.parametrize("changes", UNSEEN, ids=lambda changes: f"{changes['model_path']} {changes['system']}")
def test_rows_of_new_kinds_get_a_price_that_is_flagged(changes: dict[str, str]) -> None:
    for priced in silicon(**changes):
        assert math.isfinite(priced.predicted)
        assert 0 < priced.ideal
        assert 0.5 * priced.ideal < priced.predicted < 100 * priced.ideal
        assert priced.extrapolates


def test_what_is_assumed_is_said() -> None:
    assert silicon()[0].extrapolates == ""
    assert silicon(model_path="Qwen/Qwen3-30B-A3B")[0].extrapolates == "layers experts new"
    assert "device xpu-9: taken for dgx-h100" in silicon(system="xpu-9")[0].extrapolates
    assert "no serving profile of newengine" in silicon(backend="newengine")[0].extrapolates
    assert "no concurrency given" in silicon(silicon_concurrency="")[0].extrapolates
    assert "prompt_tokens 100000 above" in silicon(isl="100000")[0].extrapolates
    ended = one(SPLITWISE, metric="e2e_time", osl="8192", value="19932.278")
    assert "responses ended after 580 tokens" in ended.extrapolates
    with pytest.raises(Skip, match="its name has no size"):
        silicon(model_path="nobody/knows")


def test_a_time_below_the_peak_of_the_hardware_is_not_what_the_row_says() -> None:
    with pytest.raises(Skip, match=r"360\.554 ms is better than the peak of the hardware, 2\d+"):
        one(SPLITWISE, metric="prefill_time", batch_or_concurrency="64", value="360.554")


@pytest.mark.parametrize(
    ("metric", "unit", "factor"),
    [
        ("output_tokens_per_s_per_gpu", "tok/s/GPU", 1.0),
        ("output_tokens_per_s", "tok/s (all GPUs)", 4.0),
        ("total_tokens_per_s", "tok/s (all GPUs)", 4.0 * (512 + 128) / 128),
        ("requests_per_s", "req/s", 4.0 / 128),
    ],
)
def test_rates_are_of_all_replicas(metric: str, unit: str, factor: float) -> None:
    alone = one(TRTLLM, osl="128", value="1", metric="output_tokens_per_s_per_gpu", unit="tok/s/GPU").predicted
    found = one(TRTLLM, osl="128", gpus="4", value="1", metric=metric, unit=unit)
    assert found.predicted == pytest.approx(factor * alone)


def test_units_of_times() -> None:
    milliseconds = one(SPLITWISE, metric="ttft", value="80").predicted
    assert one(SPLITWISE, metric="ttft", value="0.08", unit="s").predicted == pytest.approx(milliseconds / 1e3)
    with pytest.raises(Skip, match="metric colour is not known"):
        one(SPLITWISE, metric="colour", value="80")
    with pytest.raises(Skip, match="value ''"):
        one(SPLITWISE, metric="ttft", value="")


def test_requests_at_a_rate() -> None:
    base = {
        **TRTLLM,
        "regime": "online",
        "batch_or_concurrency": "",
        "isl": "467",
        "osl": "256",
        "weight_dtype": "bf16",
    }
    base["framework"] = "TensorRT-LLM 0.14 + Triton"
    found = [one(base, qps=qps, value="1").predicted for qps in ("2", "8", "32", "INF")]
    assert found == sorted(found)
    assert found[0] == pytest.approx(504, rel=0.03)  # NVIDIA: 504 tok/s at 2 requests per second
    slow, fast = (one(base, qps=qps, value="1", metric="itl_mean", unit="ms").predicted for qps in ("2", "32"))
    assert slow < fast


def test_names_of_engines() -> None:
    assert profile_of("TensorRT-LLM 0.5") == profile_of("trtllm", "0.6.1") == "trtllm-2023"
    assert profile_of("TensorRT-LLM 0.14 + Triton") == profile_of("trtllm", "1.0.0rc3") == "trtllm"
    assert profile_of("vllm") == profile_of("vllm", "0.6.3") == "vllm"
    assert profile_of("vllm", "0.2.7") == "vllm-2023"
    assert profile_of("SGLang", "0.5.1.post1") == "sglang"
    assert profile_of("lmdeploy 0.7") == "lmdeploy"


def test_precisions() -> None:
    dense, experts = shape_of("Qwen3-32B"), shape_of("GPT-OSS-120B")
    assert precision_of(dense, "").cache == "bfloat16"
    assert precision_of(dense, "fp8").cache == "float8"
    assert precision_of(dense, "fp8", cache="bf16").cache == "bfloat16"
    found = precision_of(experts, "mxfp4")
    assert (found.products, found.experts) == ("bfloat16", "float4")
    found = precision_of(experts, "fp8_block", "nvfp4")
    assert (found.products, found.experts) == ("float8", "float4")


def test_cells() -> None:
    assert number({"a": " 2.5 "}, "a") == 2.5
    assert number({"a": "x", "b": "3"}, "a", "b") == 3.0
    assert number({}, "a", default=7.0) == 7.0
    assert np.isinf(number({"qps": "INF"}, "qps"))
    assert machine("h200_sxm")[0].device.name.startswith("H200")
