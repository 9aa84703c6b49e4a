"""Rows of training tables: how they are read, in which units they are priced, how far off a few shipped ones are."""

from __future__ import annotations

import pytest

from rpeg.errors import HardwareError
from rpeg.perf.validate.row import Priced, Skip
from rpeg.perf.validate.training import COLUMNS, measured_s, price, profile_of, run_time
from rpeg.perf.validate.training_flops import counted_flops_per_token
from rpeg.perf.validate.training_run import framework_of, run_of, training_dtype
from rpeg.plan.plan import Pipeline, Recompute
from rpeg.shapes.catalog import shape_of
from rpeg.shapes.parameters import num_parameters

# Facts of four public tables: mosaicml/llm-foundry (Apache-2.0) scripts/train/benchmarking/README.md; NVIDIA-NeMo/
# Megatron-Bridge (Apache-2.0) docs/performance-summary-archive.md; NVIDIA/NeMo (Apache-2.0) performance summary, 24.07;
# huggingface/nanotron (Apache-2.0) docs/benchmark_summary.svg.
FOUNDRY = {
    "source": "mosaicml/llm-foundry scripts/train/benchmarking/README.md", "table_or_page": "H100 80GB BF16 L112",
    "hardware": "H100-SXM-80GB", "gpus": "8", "model": "MPT-13b", "params_b": "12.854", "seq_len": "2048",
    "global_batch": "16", "micro_batch": "2", "tp": "1", "pp": "1", "dp": "8", "zero_or_fsdp": "fsdp_full_shard",
    "recompute": "none", "dtype": "bf16", "metric": "tokens_per_s_per_gpu", "value": "4792.0", "unit": "tok/s/GPU",
}  # fmt: skip
BRIDGE = {
    "source": "NVIDIA-NeMo/Megatron-Bridge docs/performance-summary-archive.md", "hardware": "DGX-H100", "gpus": "64",
    "table_or_page": "26.04 Pre-Training Performance", "model": "LLAMA3_70B", "params_b": "70.6", "seq_len": "8192",
    "global_batch": "256", "micro_batch": "1", "tp": "4", "pp": "8", "dp": "2", "cp": "1", "vp": "5",
    "zero_or_fsdp": "distopt_ddp", "dtype": "FP8", "metric": "model_tflops_per_gpu", "value": "734",
    "unit": "TFLOP/s/GPU",
}  # fmt: skip
NEMO = {
    "source": "NVIDIA/NeMo docs/source/performance/performance_summary.md (NeMo 24.07 container)",
    "table_or_page": "Pretraining", "hardware": "DGX-H100-80GB", "gpus": "64", "model": "Nemotron-22B",
    "params_b": "22", "seq_len": "4096", "global_batch": "256", "micro_batch": "2", "tp": "2", "pp": "4", "dp": "8",
    "cp": "1", "vp": "10", "dtype": "fp8", "metric": "tokens_per_s_per_gpu", "value": "4256", "unit": "tok/s/GPU",
}  # fmt: skip
NANOTRON = {
    "source": "huggingface/nanotron docs/benchmark_summary.svg", "table_or_page": "1 nodes", "gpus": "8",
    "hardware": "H100-SXM-80GB (8/node)", "model": "Llama-arch 8.86B", "params_b": "8.86", "layers": "32",
    "hidden": "4096", "heads": "32", "ffn": "14336", "seq_len": "4096", "global_batch": "256", "micro_batch": "1",
    "tp": "1", "pp": "4", "dp": "2", "zero_or_fsdp": "zero1", "recompute": "none", "dtype": "bf16", "metric": "mfu",
    "value": "45.22", "unit": "%",
}  # fmt: skip
SHIPPED = (FOUNDRY, BRIDGE, NEMO, NANOTRON)


def changed(record: dict[str, str], **values: str) -> dict[str, str]:
    return {**record, **values}


def only(record: dict[str, str]) -> Priced:
    (priced,) = price(record)
    return priced


@pytest.mark.parametrize("record", SHIPPED, ids=lambda record: record["model"])
def test_shipped_rows_are_near_their_measurement(record: dict[str, str]) -> None:
    priced = only(record)

    assert priced.predicted == pytest.approx(priced.measured, rel=0.12)
    assert 1.2 < priced.ideal / priced.predicted < 4
    assert COLUMNS <= set(record)


def test_sets_and_groups() -> None:
    assert [only(record).set for record in SHIPPED] == [
        "dense training",
        "dense training fp8",
        "dense training fp8",
        "dense training",
    ]
    assert only(changed(BRIDGE, hardware="DGX-GB300")).set == "dense training, other devices"
    assert only(changed(BRIDGE, model="DeepSeek-V3", params_b="", gpus="512", tp="1", ep="64")).set == "moe training"
    first, second = only(FOUNDRY), only(changed(FOUNDRY, micro_batch="1", global_batch="8", value="3000"))
    assert first.group == second.group != ""
    assert first.better == "high"
    assert only(changed(FOUNDRY, gpus="16")).group != first.group


def test_all_metrics_are_the_same_step() -> None:
    run = run_of(FOUNDRY)
    seconds = float(run_time(run, "llm-foundry").total_s)
    tokens = 16 * 2048 / seconds
    flops = 6 * num_parameters(run.shape) + 12 * 40 * 5120 * 2048
    expected = {
        ("tokens_per_s_per_gpu", "tok/s/GPU"): tokens / 8,
        ("tokens_per_s", "tok/s"): tokens,
        ("throughput", "tokens/s/GPU"): tokens / 8,
        ("samples_per_s", "samples/s"): tokens / 2048,
        ("iter_time", "s"): seconds,
        ("step_time", "ms"): seconds * 1e3,
        ("model_tflops_per_gpu", "TFLOP/s/GPU"): tokens * flops / 8e12,
        ("total_pflops", "PFLOP/s"): tokens * flops / 1e15,
        ("mfu", "%"): tokens * flops / 8 / 989e12 * 100,
    }

    for (metric, unit), value in expected.items():
        record = changed(FOUNDRY, metric=metric, unit=unit, value="50")
        priced = only(record)
        assert priced.predicted == pytest.approx(value), metric
        assert (priced.better == "low") == ("time" in metric)
        # What the value means in seconds, and back.
        assert measured_s(changed(record, value=str(value)), run) == pytest.approx(seconds), metric
    assert only(changed(FOUNDRY, metric="mfu", unit="", value="0.5")).predicted < 1
    full = changed(FOUNDRY, recompute="full", metric="mfu", value="40")
    assert only(changed(full, metric="hfu")).predicted == pytest.approx(only(full).predicted * 4 / 3)


def test_operations_are_counted_as_sources_count_them() -> None:
    def flops(record: dict[str, str]) -> float:
        return counted_flops_per_token(record, run_of(record)) / 1e9

    # By hand: 6 (8.03e9 - 0.525e9) + 6 * 32 * 4096 * 8192, and with the whole square of attention.
    llama = changed(BRIDGE, model="LLAMA3_8B", params_b="8.03", vp="")
    assert flops(llama) == pytest.approx(51.47, abs=0.02)
    assert flops(changed(llama, source="NVIDIA/NeMo")) == pytest.approx(57.91, abs=0.02)
    assert flops(changed(llama, source="NVIDIA/NeMo", table_or_page="Finetuning")) == pytest.approx(45.03, abs=0.02)
    assert flops(changed(llama, table_or_page="26.06 LoRA Performance")) == pytest.approx(30.02, abs=0.02)
    oss = changed(BRIDGE, model="GPT OSS 120B", params_b="116.8", seq_len="4096", vp="")
    # As tokens per second and TFLOP/s of the same rows have it: 27.16 and 32.57.
    assert flops(oss) == pytest.approx(27.16, rel=0.01)
    assert flops(changed(oss, table_or_page="26.06 Pre-Training")) == pytest.approx(32.57, rel=0.01)
    old = {
        "source": "Narayanan et al. SC21", "hardware": "A100-80GB", "model": "GPT-76B", "gpus": "1024", "tp": "8",
        "pp": "4", "seq_len": "2048", "metric": "hw_tflops_per_gpu_incl_recompute", "value": "140",
    }  # fmt: skip
    by_hand = 96 * 60 * 10240**2 * (1 + 2048 / (6 * 10240) + 51200 / (16 * 60 * 10240)) / 1e9
    assert flops(old) == pytest.approx(by_hand)


def test_frameworks_releases_and_dtypes_are_told_from_texts() -> None:
    assert [framework_of(record) for record in SHIPPED] == ["llm-foundry", "megatron-bridge", "nemo-24", "nanotron"]
    assert framework_of({"source": "Smith et al.", "notes": "trained with Megatron-DeepSpeed"}) == "megatron-2021"
    assert framework_of({"source": "pytorch/torchtitan benchmarks"}) == "torchtitan"
    assert profile_of(BRIDGE, run_of(BRIDGE)) == "megatron-bridge-26.04"
    later = changed(BRIDGE, table_or_page="26.08 Pre-Training Performance")
    assert profile_of(later, run_of(later)) == "megatron-bridge"
    texts = ["BF16", "fp16", "FP8-CS (FP8-MX)", "MXFP8", "FP8-MX", "NVFP4", "", "fp32"]
    found = ["bfloat16", "float16", "float8", "mxfp8", "mxfp8", "nvfp4", "bfloat16", "float32"]
    assert [training_dtype(text) for text in texts] == found


def test_empty_columns_are_filled_by_rule() -> None:
    bare = {
        "source": "a paper", "hardware": "A100-SXM-80GB", "gpus": "64", "model": "Llama-2-7B", "tp": "", "pp": "",
        "seq_len": "2048", "global_batch": "1024", "metric": "tokens_per_s", "value": "100000",
    }  # fmt: skip
    run = run_of(bare)

    assert (run.layout.dp, run.layout.tp, run.layout.zero, run.layout.dtype) == (64.0, 1.0, 1, "bfloat16")
    assert run.layout.micro_rows in (1.0, 2.0, 4.0)
    assert "micro-batch" in run.assumed
    assert "framework not told" in only(bare).extrapolates
    assert run_of(changed(bare, tp="8", pp="16")).gpus == 128
    piped = run_of(changed(bare, pp="8", micro_batch="8", zero_or_fsdp="fsdp", recompute="selective"))
    assert (piped.layout.zero, piped.layout.pipeline, piped.layout.virtual_stages) == (2, Pipeline.ONE_F_ONE_B, 1.0)
    assert piped.layout.recompute is Recompute.SELECTIVE
    large = changed(bare, model="Llama-2-70B", gpus="8", tp="8", micro_batch="4")
    assert run_of(large).layout.recompute is Recompute.FULL
    assert run_of(changed(large, source="NVIDIA/NeMo")).layout.recompute is Recompute.NONE
    assert run_of(changed(bare, zero_or_fsdp="fsdp8")).layout.zero_ranks == 8.0
    assert run_of(changed(bare, zero_or_fsdp="fsdp2")).layout.zero_ranks is None
    assert run_of(changed(bare, zero_or_fsdp="zero2")).layout.zero == 2


def test_packed_fine_tuning_has_short_attention() -> None:
    packed = run_of(changed(NEMO, notes="SFT; packed SQuAD to 4096", vp=""))

    assert (packed.length_tokens, packed.rows, packed.layout.micro_rows) == (256.0, 4096.0, 32.0)
    assert packed.layout.virtual_stages == 5.0


def test_rows_that_cannot_be_priced_say_why() -> None:
    with pytest.raises(Skip, match="unknown metric 'loss'"):
        price(changed(FOUNDRY, metric="loss", unit=""))
    with pytest.raises(Skip, match="unknown model 'mystery'"):
        price(changed(FOUNDRY, model="mystery", params_b="", layers="", hidden=""))
    with pytest.raises(Skip, match="no value"):
        price(changed(FOUNDRY, value="n/a"))
    with pytest.raises(HardwareError, match="names no device of the catalogue"):
        price(changed(FOUNDRY, hardware="abacus"))


def test_unseen_devices_layouts_and_models_have_a_price() -> None:
    for values in (
        {"hardware": "DGX-GB300", "dtype": "NVFP4"},
        {"hardware": "MI300X", "dtype": "bf16", "source": "somebody"},
        {"hardware": "H200", "gpus": "16384", "global_batch": "2048", "dp": ""},
        {"seq_len": "1048576", "cp": "32", "tp": "8", "pp": "1", "vp": "", "global_batch": "8", "gpus": "256"},
        {"model": "Mixtral-8x7B", "params_b": "", "ep": "8", "gpus": "128", "vp": "4"},
        {"model": "DeepSeek-V3", "params_b": "", "ep": "64", "gpus": "1024"},
        {"model": "house model", "params_b": "33"},
    ):
        priced = only(changed(BRIDGE, **values))
        assert 0.02 < priced.predicted / priced.ideal < 0.9, values
        assert priced.extrapolates, values


def test_catalogue_models_of_the_rows_exist() -> None:
    assert shape_of("Nemotron-22B").layers == 40
