"""Seconds that ``rpeg plan`` takes from the command to the answer, with the gap it leaves.

    python benchmarks/search.py

Every case is a process of its own, as a user starts it: nothing is kept from one to the next. Of several runs the
median is shown, on the wall and of the processor; the limits are those of the design for two idle cores. The peak is of
the memory of that process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

__all__ = ["main"]

RECIPES = "examples"
CASES = (
    ("ppo_8b", "alps:8", 2.0),
    ("ppo_8b", "alps:32", 2.0),
    ("ppo_8b", "alps:64", 2.0),
    ("grpo_7b", "alps:8", 2.0),
    ("grpo_7b", "alps:64", 2.0),
    ("ppo_70b", "alps:256", 10.0),
    ("ppo_70b", "alps:4096", 30.0),
    ("ppo_70b", "dgx-h100:16384", 60.0),
)
"""Recipe, machine, and the seconds it may take."""


class _Run(NamedTuple):
    wall_s: float
    processor_s: float
    peak_bytes: int
    answer: dict[str, object]


def _run(recipe: str, cluster: str, staleness: int) -> _Run:
    command = [sys.executable, "-m", "rpeg", "plan", f"{RECIPES}/{recipe}.yaml", "--cluster", cluster]
    command += ["--staleness-max", str(staleness), "--allow", "share_trunk" if recipe.startswith("ppo") else ""]
    began_s = time.perf_counter()
    process = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, (recipe, cluster)
    seconds = usage.ru_utime + usage.ru_stime
    return _Run(time.perf_counter() - began_s, seconds, usage.ru_maxrss * 1024, json.loads(text))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--staleness-max", type=int, default=1)
    options = parser.parse_args()
    print(f"{'recipe':<9}{'machine':<16}{'wall':>8}{'CPU':>8}{'limit':>7}{'peak':>9}{'step':>9}{'gap':>7}")
    for recipe, cluster, limit_s in CASES:
        runs = [_run(recipe, cluster, options.staleness_max) for _ in range(options.runs)]
        wall_s, processor_s = (statistics.median(values) for values in zip(*(run[:2] for run in runs), strict=True))
        answer = runs[0].answer
        print(
            f"{recipe:<9}{cluster:<16}{wall_s:>6.1f} s{processor_s:>6.1f} s{limit_s:>5.0f} s"
            f"{runs[0].peak_bytes / 1e9:>6.2f} GB{answer['plans'][0]['step_s']:>7.1f} s{answer['gap']:>7.1%}"
        )


if __name__ == "__main__":
    main()
