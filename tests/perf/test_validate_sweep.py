"""Plausible rows without a measurement: newer devices, larger machines, longer contexts, and what must hold of them."""

import math
from itertools import pairwise

import pytest

from rpeg.perf.validate import inference, kernels, training
from rpeg.perf.validate.training_run import run_of

DEVICES = ("A100-SXM-80GB", "H100-SXM-80GB", "H200", "H20", "B200", "B300", "GB200", "GB300", "MI300X", "MI355X")
FASTER = (
    ("A100-SXM-80GB", "H100-SXM-80GB"), ("H100-SXM-80GB", "H200"), ("H20", "H100-SXM-80GB"), ("H200", "B200"),
    ("B200", "GB200"), ("B200", "B300"), ("GB200", "GB300"), ("MI300X", "MI355X"),
)  # fmt: skip
LAYOUTS = {
    "Llama-3.1-70B": (4, 4, 1),
    "Qwen3-235B-A22B": (2, 2, 8),
    "DeepSeek-V3": (2, 4, 8),
    "GPT-OSS-120B": (1, 4, 8),
}
SOURCES = ("a paper", "NVIDIA-NeMo/Megatron-Bridge", "pytorch/torchtitan")


def train(model: str, device: str, gpus: int = 256, length: int = 4096, **changes: str) -> tuple[float, float]:
    """Return tokens per second and GPU, and which share of the ideal that is."""
    tp, pp, ep = LAYOUTS[model]
    row = {
        "source": "a paper", "model": model, "hardware": device, "gpus": str(gpus), "tp": str(tp), "pp": str(pp),
        "cp": "1", "ep": str(ep), "seq_len": str(length), "micro_batch": "1", "dtype": "bf16", "recompute": "full",
        "global_batch": str(8 * gpus // (tp * pp)), "metric": "tokens_per_s_per_gpu", "unit": "tok/s/GPU", "value": "1",
    }  # fmt: skip
    (priced,) = training.price({**row, **changes})
    return priced.predicted, priced.predicted / priced.ideal


@pytest.mark.parametrize("model", LAYOUTS)
def test_training_is_between_a_few_percent_and_three_quarters_of_the_peak(model: str) -> None:
    for device in DEVICES:
        for source in SOURCES:
            for length in (4096, 131072):
                share = train(model, device, length=length, source=source)[1]
                assert 0.02 < share < 0.75, (model, device, source, length, share)


@pytest.mark.parametrize("model", LAYOUTS)
def test_a_faster_chip_does_not_train_slower(model: str) -> None:
    for slower, faster in FASTER:
        for dtype in ("bf16", "fp8"):
            assert train(model, faster, dtype=dtype)[0] >= train(model, slower, dtype=dtype)[0], (slower, faster, dtype)


@pytest.mark.parametrize("device", ["H100-SXM-80GB", "GB200", "MI300X"])
def test_more_devices_with_as_much_work_each_are_no_faster_each(device: str) -> None:
    for model in LAYOUTS:
        found = [train(model, device, gpus)[0] for gpus in (64, 128, 256, 512, 1024, 4096, 16384)]
        assert all(more <= 1.01 * fewer for fewer, more in pairwise(found)), (model, found)


@pytest.mark.parametrize("device", DEVICES)
def test_long_contexts_cost_more_per_token(device: str) -> None:
    for model in LAYOUTS:
        found = [train(model, device, length=length)[0] for length in (32768, 65536, 131072, 262144, 1048576)]
        assert all(longer < shorter for shorter, longer in pairwise(found)), (model, found)


def test_a_job_lies_evenly_in_racks() -> None:
    row = {
        "model": "Llama-3.1-8B",
        "hardware": "GB200",
        "tp": "2",
        "pp": "1",
        "seq_len": "4096",
        "metric": "s",
        "value": "1",
    }
    counts = {
        gpus: [level.count for level in run_of({**row, "gpus": gpus}).system.levels] for gpus in ("64", "256", "512")
    }
    assert counts == {"64": [1, 16, 4], "256": [4, 16, 4], "512": [8, 16, 4]}  # racks, nodes in each, devices in each
    uneven = run_of({**row, "gpus": "6"}).system  # not whole nodes: as the machine is
    assert [level.count for level in uneven.levels] == [256, 18, 4]


def test_kernels_of_faster_chips_and_longer_contexts() -> None:
    def seconds(device: str, **sizes: str) -> float:
        (priced,) = kernels.price(
            {"device": device, "hardware": device, "dtype": "bfloat16", "latency_us": "1", **sizes}
        )
        assert priced.ideal <= priced.predicted < math.inf
        return priced.predicted

    shapes = [{"op": "gemm", "m": m, "n": "8192", "k": "8192"} for m in ("1", "64", "1024", "16384")]
    for op in ("attention_context", "attention_generation"):
        lengths = [
            {"op": op, "batch": "4", "heads": "32", "kv_heads": "8", "isl_or_kvlen": length}
            for length in ("2048", "131072")
        ]
        shapes += lengths
        assert all(seconds(device, **lengths[0]) < seconds(device, **lengths[1]) for device in DEVICES)
    for slower, faster in FASTER:
        if "H20" not in (slower, faster):  # its memory is faster than that of H100
            assert all(seconds(faster, **each) <= 1.01 * seconds(slower, **each) for each in shapes)


@pytest.mark.parametrize("framework", ["vllm 0.12", "sglang", "another"])
def test_serving_on_faster_chips_under_more_load(framework: str) -> None:
    def token_ms(device: str, concurrency: str, model: str = "Llama-3.1-70B") -> float:
        row = {
            "framework": framework, "hardware": device, "gpus": "8", "model": model, "regime": "online", "tp": "8",
            "isl": "4096", "osl": "512", "batch_or_concurrency": concurrency, "weight_dtype": "fp8", "metric": "tpot",
            "unit": "ms", "value": "1",
        }  # fmt: skip
        (priced,) = inference.price(row)
        return priced.predicted

    for device in DEVICES:
        found = [token_ms(device, each) for each in ("1", "16", "256")]
        assert found == sorted(found)
    # The weights of DeepSeek-V3 do not fit on eight A100 or H100: what was measured still had more than one request.
    for slower, faster in (("A100-SXM-80GB", "H100-SXM-80GB"), ("H100-SXM-80GB", "H200"), ("H200", "B200")):
        assert token_ms(faster, "64", "DeepSeek-V3") < token_ms(slower, "64", "DeepSeek-V3")


def test_weights_that_do_not_fit_are_said() -> None:
    row = {
        "framework": "vllm 0.12", "hardware": "H100-SXM-80GB", "gpus": "8", "model": "DeepSeek-V3", "regime": "online",
        "tp": "8", "isl": "1024", "osl": "512", "batch_or_concurrency": "16", "weight_dtype": "fp8", "metric": "tpot",
        "unit": "ms", "value": "1",
    }  # fmt: skip
    (priced,) = inference.price(row)
    assert "of the memory: room for caches assumed" in priced.extrapolates
    (fits,) = inference.price({**row, "hardware": "B200"})
    assert "room for caches assumed" not in fits.extrapolates
