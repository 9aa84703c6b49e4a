"""Rows of every kind that say what cannot be: counted as skipped, with the numbers; none stops the others."""

import csv
import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from rpeg.perf.validate.misfit import misfit, no_count
from rpeg.perf.validate.report import Report, validate
from rpeg.shapes.catalog import shape_of

ROWS = {
    "training": {
        "source": "a paper", "model": "Llama-3.1-8B", "hardware": "H100-SXM-80GB", "gpus": "64", "tp": "4", "pp": "2",
        "dp": "8", "cp": "1", "ep": "1", "vp": "", "seq_len": "4096", "global_batch": "256", "micro_batch": "1",
        "dtype": "bf16", "recompute": "none", "zero_or_fsdp": "", "metric": "tokens_per_s_per_gpu", "unit": "tok/s/GPU",
        "value": "9000", "notes": "", "table_or_page": "",
    },
    "memory": {
        "source": "a paper", "model": "Llama-3.1-8B", "hardware": "H100-SXM-80GB", "gpus": "64", "tp": "4", "pp": "2",
        "dp": "8", "cp": "1", "ep": "1", "vp": "", "seq_len": "4096", "global_batch": "256", "micro_batch": "1",
        "dtype": "bf16", "recompute": "none", "zero_or_fsdp": "", "metric": "peak_memory_per_gpu", "unit": "GiB",
        "value": "50", "notes": "",
    },
    "kernels": {
        "source": "a sweep", "op": "gemm", "device": "NVIDIA H100 80GB HBM3", "hardware": "h100_sxm",
        "dtype": "bfloat16", "m": "64", "n": "4096", "k": "4096", "batch": "", "isl_or_kvlen": "", "heads": "",
        "kv_heads": "", "latency_us": "15",
    },
    "collectives": {
        "source": "a sweep", "op": "all_reduce", "library": "nccl", "interconnect": "NVLink", "device": "H100-SXM-80GB",
        "nodes": "1", "gpus": "8", "size_bytes": "1048576", "time_us": "40", "algbw_GBps": "", "busbw_GBps": "",
    },
    "inference": {
        "source": "a table", "framework": "vllm", "hardware": "H100-SXM-80GB", "gpus": "4", "model": "Llama-3.1-70B",
        "regime": "online", "tp": "4", "pp": "1", "isl": "1024", "osl": "256", "batch_or_concurrency": "16",
        "weight_dtype": "fp8", "metric": "tpot", "unit": "ms", "value": "20",
    },
    "inference_silicon": {
        "backend": "vllm", "backend_version": "0.12.0", "model_path": "Qwen/Qwen3-32B", "system": "h100_sxm",
        "isl": "1024", "osl": "256", "tp_size": "2", "pp_size": "1", "silicon_concurrency": "8",
        "silicon_ttft_ms": "200", "silicon_tpot_ms": "20",
    },
    "rl_steps": {
        "system": "verl", "hardware": "H100-SXM-80GB", "gpus": "16", "model": "Qwen2.5-7B", "algorithm": "GRPO",
        "mode": "sync colocated", "parallelism": "", "batch_prompts": "128", "group_size": "8",
        "max_or_mean_response_len": "max 4096", "prompt_len": "512", "metric": "step_time", "unit": "s", "value": "100",
        "notes": "",
    },
    "real_steps": {
        "hardware": "H100-SXM-80GB", "gpus": "16", "actor_model": "LLaMA-2-7B",
        "critic_model": "LLaMA-2-7B", "batch": "512",
        "prompt_len": "128", "gen_len": "896", "plan": "TP8 PP2", "metric": "step_time", "unit": "s", "value": "60",
    },
}  # fmt: skip
"""One row of each kind, with made-up measurements."""


def report(tmp_path: Path, kind: str, *changes: Mapping[str, str | None]) -> Report:
    """Return what becomes of the row of a kind, once for each set of changes; None takes a column away."""
    rows = [{**ROWS[kind], **change} for change in changes]
    columns = [name for name in ROWS[kind] if all(row[name] is not None for row in rows)]
    path = tmp_path / f"{kind}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return validate([path])


@pytest.mark.parametrize("kind", ROWS)
def test_the_rows_as_they_are_have_prices(tmp_path: Path, kind: str) -> None:
    (outcome,) = report(tmp_path, kind, {}).outcomes
    assert (outcome.kind, outcome.reason) == (kind, "")
    assert all(0 < each.predicted < math.inf and 0 < each.ideal < math.inf for each in outcome.priced)


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("training", {"pp": "16", "vp": "4"}, "32 layers for 64 parts (pp 16 x vp 4)"),
        ("training", {"pp": "64"}, "32 layers for 64 parts (pp 64 x vp 1)"),
        ("training", {"tp": "3"}, "32 heads are not divided by tp 3"),
        ("training", {"model": "Qwen3-30B-A3B", "ep": "7"}, "128 experts are not divided by ep 7"),
        ("training", {"model": "Qwen3-30B-A3B", "ep": "64"}, "64 GPUs for ep 64 x pp 2"),
        ("training", {"seq_len": "0"}, "seq_len is '0', which is no positive number"),
        ("training", {"global_batch": "0.0"}, "global_batch is '0.0', which is no positive number"),
        ("training", {"gpus": "-8"}, "gpus is '-8', which is no positive number"),
        ("training", {"value": "nan"}, "no value: 'nan'"),
        ("training", {"value": ""}, "no value: ''"),
        ("training", {"model": "Foo-9000"}, "unknown model 'Foo-9000'"),
        ("training", {"hardware": "Gaudi 9"}, "'Gaudi 9' names no device of the catalogue"),
        ("memory", {"pp": "16", "vp": "4"}, "32 layers for 64 parts (pp 16 x vp 4)"),
        ("memory", {"tp": "3"}, "32 heads are not divided by tp 3"),
        ("memory", {"seq_len": "0"}, "seq_len is '0', which is no positive number"),
        ("memory", {"micro_batch": "0"}, "micro_batch is '0', which is no positive number"),
        ("memory", {"value": ""}, "no value"),
        ("memory", {"value": "0"}, "measured is 0"),
        ("kernels", {"m": "0"}, "m is '0', which is no positive number"),
        ("kernels", {"k": ""}, "k is '', which is no positive number"),
        ("kernels", {"op": "attention_context", "heads": "32", "kv_heads": "8", "batch": "1", "isl_or_kvlen": "0"},
         "isl_or_kvlen is '0', which is no positive number"),
        ("kernels", {"op": "sorting"}, "operation 'sorting' is unknown"),
        ("kernels", {"device": "Gaudi 9", "hardware": ""},
         "device 'Gaudi 9' is unknown, and the row does not give its peak"),
        ("collectives", {"size_bytes": "0"}, "size_bytes is '0' beside a time"),
        ("collectives", {"size_bytes": ""}, "size_bytes is '' beside a time"),
        ("collectives", {"time_us": ""}, "neither time nor bandwidth"),
        ("collectives", {"op": "gossip"}, "unknown operation 'gossip'"),
        ("inference", {"tp": "3"}, "64 heads are not divided by tp 3"),
        ("inference", {"pp": "128", "gpus": "512"}, "80 layers for 128 parts (pp 128 x vp 1)"),
        ("inference", {"isl": "0"}, "value '20' with prompts of '0' tokens"),
        ("inference", {"value": "nan"}, "measured is nan"),
        ("inference_silicon", {"tp_size": "3"}, "64 heads are not divided by tp 3"),
        ("inference_silicon", {"pp_size": "100"}, "64 layers for 100 parts (pp 100 x vp 1)"),
        ("inference_silicon", {"osl": "0"}, "the lengths of prompts and responses are not given"),
        ("inference_silicon", {"model_path": "some/thing"}, "model some/thing is unknown and its name has no size"),
        ("rl_steps", {"gpus": ""}, "no number of devices"),
        ("rl_steps", {"model": "Foo-9000"}, "unknown model 'Foo-9000'"),
        ("rl_steps", {"hardware": "Gaudi 9"}, "names no device of the catalogue"),
        ("rl_steps", {"value": "0"}, "no value"),
        ("real_steps", {"plan": "TP8 PP64", "gpus": "512"}, "32 layers for 64 parts (pp 64 x vp 1)"),
        ("real_steps", {"plan": "TP3 PP2"}, "32 heads are not divided by tp 3"),
        ("real_steps", {"plan": "TP8 PP1", "gpus": "8192"}, "512 rows in 4 mini-batches for 1024 data parallel ranks"),
        ("real_steps", {"gpus": "7"}, "has 7 devices for pp 2 tp 8"),
        ("real_steps", {"gen_len": "0"}, "no batch or no length"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_skipped_with_its_numbers(
    tmp_path: Path, kind: str, changes: dict[str, str], reason: str
) -> None:
    found = report(tmp_path, kind, changes, {})
    assert [outcome.reason for outcome in found.outcomes] == [reason, ""]
    assert found.files[0].skipped == 1


@pytest.mark.parametrize(
    ("kind", "changes", "outside"),
    [
        ("training", {"dtype": "weird_e7m0"}, "dtype weird_e7m0: taken for bfloat16"),
        ("training", dict.fromkeys(("dp", "cp", "ep", "vp", "micro_batch", "dtype", "recompute"), ""), "micro-batch"),
        ("memory", {"micro_batch": "", "seq_len": ""}, "length 4096, micro-batch 1"),
        ("memory", {"hardware": "Gaudi 9"}, ""),
        ("kernels", {"dtype": "posit16"}, "dtype posit16: taken for bfloat16"),
        ("collectives", {"library": "smoke signals"}, ""),
        ("inference", {"hardware": "Gaudi 9"}, "device Gaudi 9: taken for dgx-h100"),
        ("inference", {"weight_dtype": "posit16"}, "dtype posit16: taken for bfloat16"),
        ("inference", {"framework": "nobody's"}, "no serving profile of nobody's"),
        ("inference_silicon", {"system": "gaudi9"}, "device gaudi9: taken for dgx-h100"),
        ("rl_steps", {"system": "nobody's"}, ""),
        ("rl_steps", {"parallelism": "train tp3 pp99"}, ""),
    ],
)
def test_what_is_open_or_unknown_is_priced_and_said(
    tmp_path: Path, kind: str, changes: dict[str, str], outside: str
) -> None:
    (outcome,) = report(tmp_path, kind, changes).outcomes
    assert outcome.reason == ""
    assert all(0 < each.predicted < math.inf for each in outcome.priced)
    assert all(outside in each.extrapolates for each in outcome.priced)


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("training", ("dp", "cp", "ep", "vp", "micro_batch", "dtype", "recompute", "zero_or_fsdp", "notes")),
        ("memory", ("cp", "ep", "vp", "global_batch", "seq_len", "notes", "hardware")),
        ("inference", ("tp", "pp", "gpus", "weight_dtype", "batch_or_concurrency")),
        ("inference_silicon", ("tp_size", "pp_size", "silicon_concurrency", "backend_version")),
        ("real_steps", ("plan", "unit")),
    ],
)
def test_columns_that_are_missing_are_like_empty_cells(tmp_path: Path, kind: str, columns: tuple[str, ...]) -> None:
    (missing,) = report(tmp_path, kind, dict.fromkeys(columns)).outcomes
    (empty,) = report(tmp_path, kind, dict.fromkeys(columns, "")).outcomes
    assert missing.reason == ""
    assert [each.predicted for each in missing.priced] == [each.predicted for each in empty.priced]


def test_layouts_that_fit() -> None:
    qwen = shape_of("Qwen3-30B-A3B")
    assert misfit(qwen, tp=4, pp=12, vp=4, ep=32) == ""
    assert misfit(shape_of("Llama-3.1-8B"), ep=7) == ""  # no experts that EP could divide


@pytest.mark.parametrize("text", ["", "8", "0.5", "1,024", "none", "n/a", "-", "2 nodes", "1e6"])
def test_text_that_counts_or_says_nothing(text: str) -> None:
    assert no_count({"gpus": text}, ("gpus", "tp")) == ""


@pytest.mark.parametrize("text", ["0", "0.0", "00", "-1", "- 8", " 0 "])
def test_numbers_that_count_nothing(text: str) -> None:
    assert no_count({"tp": "4", "gpus": text}, ("tp", "gpus")).startswith(f"gpus is {text.strip()!r}")
