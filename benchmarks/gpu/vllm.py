"""Does vLLM sample for a trainer on the same CUDA device? Prints figures and a verdict; meant for less than 8 minutes.

    python benchmarks/gpu/vllm.py

Needs a CUDA build of vLLM in this Python: pip install 'rpeg[train,vllm]'. The same short run is trained with both
engines. Most of the time is vLLM's start, which compiles. `run.deterministic` is off, as vLLM's kernels may refuse it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch

from rpeg.observe.metrics import Series, read_series

OVERRIDES = (
    "run.device=cuda", "run.deterministic=false", "run.steps=10", "run.threads=4", "warmup.steps=300",
    "algorithm.updates_per_step=1", "evaluation.every_steps=10",
    "model.dtype=bfloat16", "model.scratch.hidden=256", "model.scratch.heads=4",
)  # fmt: skip
LIMIT_S = 225
"""Longest run with one engine."""


def trained(engine: str, folder: Path) -> Series:
    """Train with an engine and return the metrics of every step."""
    overrides = [*OVERRIDES, f"sampling.engine={engine}"]
    command = [sys.executable, "-m", "rpeg", "train", "examples/arithmetic.yaml", *overrides, "--run-dir", str(folder)]
    subprocess.run([*command, "--quiet"], check=True, timeout=LIMIT_S)
    return read_series(folder / "metrics.jsonl")


def main() -> int:
    """Train with both engines, then hold vLLM's run against what must be true."""
    if not torch.cuda.is_available() or find_spec("vllm") is None:
        print("no CUDA device, or no vllm in this Python: nothing was checked")
        return 1
    with tempfile.TemporaryDirectory() as root:
        found = {engine: trained(engine, Path(root) / engine) for engine in ("torch", "vllm")}
    print(torch.cuda.get_device_name())
    for engine, series in found.items():
        speed, ratio = series.last("perf/tokens_per_s") or 0.0, worst_ratio(series)
        accuracy = f"{series.first('eval/accuracy'):.1%} -> {series.last('eval/accuracy'):.1%}"
        print(f"  {engine:5} {speed:9,.0f} tokens/s in the last step, ratio up to {ratio:.3f}, accuracy {accuracy}")
    series, other = found["vllm"], found["torch"]
    checks = {
        "every step trained": len(series.points("loss/policy")) >= 9,
        # One update per step: sampler and trainer have the same weights, and the ratio is what their kernels differ by.
        "sampler and trainer agree": worst_ratio(series) < max(1.2, 2 * worst_ratio(other)),
        "accuracy does not fall": (series.last("eval/accuracy") or 0.0)
        >= (series.first("eval/accuracy") or 0.0) - 0.05,
    }
    for name, holds in checks.items():
        print(f"  {'ok  ' if holds else 'FAIL'} {name}")
    print("verdict:", "pass" if all(checks.values()) else "fail")
    return 0 if all(checks.values()) else 1


def worst_ratio(series: Series) -> float:
    """Return the largest ratio of trained to sampled probability in any step."""
    return max((value for _, value in series.points("policy/ratio_max")), default=float("inf"))


if __name__ == "__main__":
    sys.exit(main())
