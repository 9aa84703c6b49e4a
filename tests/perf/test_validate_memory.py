"""Rows of memory: how they are read, a few with their sources, and that every row has a price."""

from __future__ import annotations

import pytest

from rpeg.perf.activations import Kept
from rpeg.perf.validate.memory import COLUMNS, price, price_peak
from rpeg.perf.validate.memory_job import constants_for, job_of, software_of
from rpeg.perf.validate.row import Priced, Skip
from rpeg.plan.plan import Pipeline

NAMES = (
    "row_id source table_or_page hardware gpus model params_b layers hidden heads kv_heads ffn vocab moe_experts "
    "moe_topk seq_len global_batch micro_batch tp pp dp cp ep vp zero_or_fsdp recompute dtype metric value unit notes"
).split()

# Korthikanti et al. 2022 (arXiv 2205.05198), figures 1 and 7, as digitised in calculon-ai/calculon (Apache-2.0).
KORTHIKANTI = {
    "source": "Korthikanti et al. MLSys23 (2205.05198)", "gpus": "64", "model": "gpt3-175B", "params_b": "175",
    "layers": "96", "hidden": "12288", "heads": "96", "kv_heads": "96", "ffn": "49152", "vocab": "51200",
    "seq_len": "2048", "micro_batch": "1", "tp": "8", "pp": "8", "dp": "1", "vp": "3", "unit": "GiB",
    "hardware": "A100-80GB",
}  # fmt: skip
# pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md (BSD-3-Clause).
TORCHTITAN = {
    "source": "pytorch/torchtitan benchmarks", "gpus": "8", "model": "Llama3.1-8B", "seq_len": "8192",
    "global_batch": "16", "micro_batch": "2", "tp": "1", "pp": "1", "dp": "8", "zero_or_fsdp": "fsdp2_full_shard",
    "recompute": "selective", "metric": "peak_memory_per_gpu", "unit": "GiB", "hardware": "H100 96GB HBM2e",
}  # fmt: skip
# huggingface/nanotron, docs/benchmark_summary.svg (Apache-2.0).
NANOTRON = {
    "source": "huggingface/nanotron docs", "gpus": "32", "model": "Llama-arch 8.86B", "params_b": "8.86",
    "layers": "32", "hidden": "4096", "heads": "32", "ffn": "14336", "seq_len": "4096", "global_batch": "256",
    "micro_batch": "1", "tp": "1", "pp": "2", "dp": "16", "zero_or_fsdp": "zero1", "recompute": "none",
    "metric": "peak_memory_per_gpu", "unit": "GB", "value": "61.1", "hardware": "H100-SXM-80GB (8/node)",
}  # fmt: skip
# PrimeIntellect-ai/prime-rl, benchmarks/results (Apache-2.0).
PRIME = {
    "source": "PrimeIntellect-ai/prime-rl", "system": "prime-rl trainer only", "hardware": "H100 HBM3", "gpus": "8",
    "model": "Qwen3-4B-Instruct-2507", "algorithm": "RL Full", "parallelism": "FSDP2, EP1 CP1, AC Recompute, FA3",
    "max_or_mean_response_len": "seq 65536", "metric": "peak_gpu_memory", "value": "36.1", "unit": "GiB",
    "notes": "default keeps optimizer states in CPU memory; SFT rows without LM-head chunking",
}  # fmt: skip


def row(base: dict[str, str], **changes: str) -> dict[str, str]:
    return {**dict.fromkeys(NAMES, ""), **base, **changes}


def one(record: dict[str, str]) -> Priced:
    [found] = price(record)
    return found


def error_pct(found: Priced) -> float:
    return 100.0 * (found.predicted / found.measured - 1.0)


@pytest.mark.parametrize(
    ("metric", "recompute", "value"),
    [
        ("params_and_optimizer_GiB", "", "45.5625"),
        ("activations_GiB", "none", "66.84375"),
        ("activations_GiB", "selective(attn)+seqpar", "12.3515625"),
    ],
)
def test_components_of_a_published_figure(metric: str, recompute: str, value: str) -> None:
    found = one(row(KORTHIKANTI, metric=metric, recompute=recompute, value=value))
    assert found.set == "memory components"
    assert abs(error_pct(found)) < 0.2


@pytest.mark.parametrize(
    ("recompute", "value"),
    [("seqpar", "62.04"), ("selective", "56.53"), ("selective+seqpar", "18.49"), ("full", "8.71")],
)
def test_shares_of_activations(recompute: str, value: str) -> None:
    found = one(row(KORTHIKANTI, metric="activation_pct_of_tp_baseline", recompute=recompute, value=value, unit="%"))
    assert abs(error_pct(found)) < 0.3


@pytest.mark.parametrize(("notes", "value"), [("eager", "82.4"), ("compile", "77.0")])
def test_peaks_of_torchtitan(notes: str, value: str) -> None:
    found = one(row(TORCHTITAN, notes=notes, value=value))
    assert found.set == "peak memory"
    assert 0.0 < error_pct(found) < 6.0
    assert found.extrapolates == ""


def test_gigabytes_of_allocators_are_binary() -> None:
    found = one(row(NANOTRON))
    assert 0.0 < error_pct(found) < 10.0
    assert one(row(NANOTRON, unit="GiB")).predicted == found.predicted
    assert one(row(NANOTRON, unit="MiB")).predicted == pytest.approx(1024 * found.predicted)


def test_the_vocabulary_follows_from_the_parameters() -> None:
    shape = job_of(row(NANOTRON)).training.shape
    assert (shape.vocabulary, shape.is_tied) == (131072, False)
    small = row(NANOTRON, params_b="1.34", layers="16", hidden="2048", ffn="8192", model="Llama-arch 1.34B")
    shape = job_of(small).training.shape
    assert (shape.vocabulary, shape.is_tied) == (131072, True)


@pytest.mark.parametrize(
    ("changes", "low", "high"),
    [
        ({}, -3.0, 5.0),
        ({"algorithm": "SFT Full", "max_or_mean_response_len": "seq 16384", "value": "54.6"}, -4.0, 4.0),
        ({"algorithm": "RL LoRA(r=16)", "value": "28.8"}, -3.0, 7.0),
        ({"algorithm": "RL LoRA(r=16)", "gpus": "1", "parallelism": "FSDP2, EP1 CP1, AC Offload, FA3", "value": "31.1"},
         -3.0, 8.0),
    ],
)  # fmt: skip
def test_peaks_of_a_reinforcement_learning_trainer(changes: dict[str, str], low: float, high: float) -> None:
    found = price_peak({**PRIME, **changes})
    assert found.set == "peak memory"
    assert low < error_pct(found) < high


def test_formulas_and_buffers() -> None:
    table = {"metric": "bytes_per_param_non_distributed", "unit": "B/param", "source": "NVIDIA/Megatron-LM"}
    texts = {"fp16 param, fp16 grads": "20", "bf16 param, fp32 grads": "18", "fp32 param, fp32 grads": "16"}
    assert [one(row(table, dtype=dtype, value=value)).predicted for dtype, value in texts.items()] == [20.0, 18.0, 16.0]
    split = row(table, dtype="bf16 param, fp32 grads", dp="4", value="9", metric="bytes_per_param_distributed")
    assert one(split).predicted == 6 + 12 / 4
    buffers = {"metric": "nccl_buffers", "unit": "MiB", "gpus": "4", "value": "392", "hardware": "H100/H200"}
    assert one(row(buffers)).predicted == pytest.approx(392.0)
    context = {"metric": "cuda_kernels_overhead", "unit": "GiB", "value": "1.78", "notes": "older PyTorch; newer 0.9"}
    assert one(row(context)).predicted == pytest.approx(1.78)
    assert one(row(context, notes="newer PyTorch", value="0.9")).predicted == pytest.approx(0.9)


def test_components_of_other_software_include_the_ends() -> None:
    record = row(NANOTRON, metric="optimizer_GiB", unit="GiB", value="5")
    both = row(NANOTRON, metric="params_and_optimizer_GiB", unit="GiB", value="5")
    assert one(record).predicted < one(both).predicted
    alone = row(NANOTRON, metric="gradients_GiB", unit="GiB", value="5")
    assert one(alone).predicted == pytest.approx(4 * (18 * 243_277_824 + 131072 * 4096) / 2**30, rel=1e-3)


def test_metrics_say_what_is_counted() -> None:
    reserved = one(row(NANOTRON, metric="max_memory_reserved")).predicted
    assert one(row(NANOTRON, metric="max_memory_allocated")).predicted < reserved
    assert one(row(NANOTRON, metric="nvidia_smi_used")).predicted > reserved


def test_a_run_that_was_measured_has_fitted() -> None:
    found = one(row(TORCHTITAN, micro_batch="16", global_batch="128", recompute="none", value="90"))
    assert found.predicted < 96.0
    assert one(row(TORCHTITAN, micro_batch="16", hardware="a device nobody knows", value="90")).predicted > 200.0


def test_software_is_told_by_the_source_first() -> None:
    texts = {
        "NVIDIA/NeMo docs": "megatron", "Narayanan et al. SC21": "megatron-2022", "pytorch/torchtitan": "torchtitan",
        "verl-project/verl": "torch-fsdp", "mosaicml/llm-foundry": "deepspeed", "somebody's blog": "unknown",
    }  # fmt: skip
    assert {source: software_of({"source": source}) for source in texts} == texts
    assert software_of({"source": "a blog", "zero_or_fsdp": "fsdp"}) == "torch-fsdp"
    assert constants_for({"source": "a blog"}).is_fallback
    assert "no memory profile" in one(row(NANOTRON, source="a blog", zero_or_fsdp="")).extrapolates


@pytest.mark.parametrize(
    ("changes", "zero"),
    [
        ({}, 1.0),
        ({"zero_or_fsdp": "fsdp2"}, 3.0),
        ({"zero_or_fsdp": "shard_grad_op"}, 2.0),
        ({"zero_or_fsdp": "zero2"}, 2.0),
        ({"zero_or_fsdp": "ddp"}, 0.0),
        ({"zero_or_fsdp": "distributed optimizer"}, 1.0),
        ({"zero_or_fsdp": "", "source": "DeepSpeed"}, 3.0),
        ({"zero_or_fsdp": "", "source": "x"}, 1.0),
    ],
)
def test_levels_of_sharding(changes: dict[str, str], zero: float) -> None:
    assert job_of(row(NANOTRON, **changes)).training.degrees.zero == zero


@pytest.mark.parametrize(
    ("source", "recompute", "kept"),
    [("torchtitan", "selective", Kept.PRODUCTS), ("Megatron", "selective", Kept.WITHOUT_SCORES), ("x", "", Kept.ALL),
     ("x", "full", Kept.INPUT), ("x", "none", Kept.ALL), ("x", "AC offload", Kept.OFFLOADED)],
)  # fmt: skip
def test_what_recomputation_keeps(source: str, recompute: str, kept: Kept) -> None:
    assert job_of(row(NANOTRON, source=source, recompute=recompute)).training.kept is kept


def test_layouts_are_read() -> None:
    degrees = job_of(row(KORTHIKANTI, zero_or_fsdp="hsdp shard 8", recompute="full")).training.degrees
    assert (degrees.tp, degrees.pp, degrees.virtual_stages, degrees.zero_ranks) == (8, 8, 3, 8)
    assert not degrees.is_sequence_parallel
    assert job_of(row(KORTHIKANTI)).training.pipeline is Pipeline.INTERLEAVED
    assert job_of(row(NANOTRON, notes="GPipe")).training.pipeline is Pipeline.GPIPE
    assert job_of(row(NANOTRON, notes="LoRA rank 8")).training.adapter_rank == 8
    assert job_of(row(NANOTRON, notes="LoRA")).training.adapter_rank == 16
    assert job_of(row(NANOTRON, notes="cpu offload")).training.is_optimizer_on_host
    assert job_of(row(NANOTRON, notes="liger kernels")).training.loss_pieces == 131072 / 8192


def test_a_pipeline_has_as_many_micro_batches_as_stages() -> None:
    found = job_of(row(TORCHTITAN, pp="4", dp="2", micro_batch="32", global_batch="64"))
    assert (found.training.tokens, found.training.num_micro_batches) == (8 * 8192, 4)
    assert "micro-batches of 8" in found.assumed


def test_what_a_row_leaves_open_is_said() -> None:
    found = job_of(row({"model": "Llama-3.1-8B", "gpus": "16", "tp": "2"}))
    assert found.training.degrees.dp == 8.0
    assert found.training.length_tokens == 4096.0
    assert "length 4096" in found.assumed
    assert "micro-batch 1" in found.assumed


def test_rows_without_a_model_or_a_value_are_skipped() -> None:
    with pytest.raises(Skip, match="unknown model"):
        price(row({"metric": "peak_memory_per_gpu", "value": "3", "unit": "GiB"}))
    with pytest.raises(Skip, match="no value"):
        price(row(NANOTRON, value=""))


def test_columns_are_those_of_the_file() -> None:
    assert set(NAMES) >= COLUMNS
