"""Does the quickstart train on a CUDA device as it does on a CPU? Prints figures and a verdict; about three minutes.

python benchmarks/gpu/quickstart.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from rpeg.observe.metrics import read_series

OVERRIDES = ("run.device=cuda", "run.steps=30", "run.threads=4")


def main() -> int:
    """Train, then hold accuracy, the sampler's scores and the resumed run against what must be true."""
    if not torch.cuda.is_available():
        print("no CUDA device: nothing was checked")
        return 1
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "run"
        command = [
            sys.executable,
            "-m",
            "rpeg",
            "train",
            "examples/arithmetic.yaml",
            *OVERRIDES,
            "--run-dir",
            str(folder),
        ]
        subprocess.run([*command, "--quiet"], check=True, timeout=420)
        series = read_series(folder / "metrics.jsonl")
    before, after = series.first("eval/accuracy") or 0.0, series.last("eval/accuracy") or 0.0
    ratio = series.first("policy/ratio_max") or 0.0
    checks = {
        f"accuracy rises ({before:.1%} -> {after:.1%})": after > before + 0.1 and after > 0.85,
        # Sampler and trainer run other kernels here; the largest ratio of the first step holds both updates of it.
        f"sampler and trainer agree (largest ratio of step 1: {ratio:.3f})": 0.9 < ratio < 1.6,
        "every step trained": len(series.points("loss/policy")) >= 25,
    }
    print(f"{torch.cuda.get_device_name()}: {series.last('perf/tokens_per_s'):,.0f} tokens/s in the last step")
    for name, holds in checks.items():
        print(f"  {'ok  ' if holds else 'FAIL'} {name}")
    print("verdict:", "pass" if all(checks.values()) else "fail")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
