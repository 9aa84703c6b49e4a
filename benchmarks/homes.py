"""Homes of workers, side by side: seconds per step and per call of one process, of several, and of Ray, in turn.

    python benchmarks/homes.py --rounds 3 --steps 20

The tiny model of examples/arithmetic.yaml is first warmed up for a while; every run starts from that folder, so all of
one staleness do the same work. Runs take turns, so that a machine that slows down slows all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import chain
from pathlib import Path

import torch

from rpeg.observe.run_folder import RunFolder
from rpeg.plan.bind import bind_local
from rpeg.recipe.graph import build_graph
from rpeg.recipe.load import load_recipe
from rpeg.runtime.homes.choose import open_home
from rpeg.runtime.origin import Origin
from rpeg.runtime.run import train
from rpeg.runtime.worker import WorkerSpec
from rpeg.view.live import SilentView

RECIPE = Path(__file__).parents[1] / "examples" / "arithmetic.yaml"
WAYS = {
    "inline k=0": ("inline", 0),
    "inline k=1": ("inline", 1),
    "processes k=1": ("processes", 1),
    "ray k=1": ("ray", 1),
}
SIZES = {"rounds": 3, "steps": 20, "skip": 3, "warmup": 150, "threads": 1, "calls": 200}
WEIGHTS = 25_000_000
"""Numbers of four bytes in the message that stands for weights: 100 MB."""


def main() -> None:
    """Warm up, run in turn, print medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    steps_s: dict[str, list[list[float]]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as place:
        warm = run(Path(place, "warm"), f"warmup.steps={args.warmup}", "run.steps=1")
        common = ["model.scratch=null", f"model.path={warm.model}", "warmup=null", f"run.steps={args.steps}"]
        for number in range(args.rounds):
            for name, (home, staleness) in WAYS.items():
                folder = Path(place, f"{home}-{staleness}-{number}")
                ways = [f"run.home={home}", f"algorithm.staleness={staleness}", f"run.threads={args.threads}"]
                steps_s[name].append(seconds(run(folder, *common, *ways))[args.skip :])
        calls_s = {home: seconds_of_calls(home, warm, args.calls) for home, _ in WAYS.values()}
    print(f"{args.rounds} rounds of {args.steps} steps without the first {args.skip}, {args.threads} threads a worker")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    report(steps_s)
    for home, (empty_s, large_s) in calls_s.items():
        print(f"{home:>14}: median {empty_s * 1e3:.2f} ms a call without arguments, {large_s * 1e3:.0f} ms with 100 MB")


def run(folder: Path, *overrides: str) -> RunFolder:
    """Train without evaluation in a new folder."""
    folder.mkdir()
    recipe = load_recipe(RECIPE, ["evaluation.every_steps=0", "run.checkpoint_every_steps=1000", *overrides])
    train(recipe, lambda: RunFolder(folder), SilentView())
    return RunFolder(folder)


def seconds(folder: RunFolder) -> list[float]:
    """Return the seconds of every step."""
    return [json.loads(line)["time/step_s"] for line in folder.metrics.read_text().splitlines()]


def seconds_of_calls(home_name: str, warm: RunFolder, number: int) -> tuple[float, float]:
    """Return the seconds of a call that does nothing, and of one that receives weights and does nothing with them."""
    recipe = load_recipe(RECIPE, [f"run.home={home_name}"])
    graph = build_graph(recipe)
    home = open_home(recipe, bind_local(graph), print)
    weights = torch.ones(WEIGHTS)
    try:
        home.spawn("host", WorkerSpec(recipe, graph, ("reward",), Origin(warm.model, warm.model, None, 0), 1)).result()
        empty = [time_of(lambda: home.call("host", "__sizeof__")) for _ in range(number)]
        large = [time_of(lambda: home.call("host", "__eq__", weights)) for _ in range(max(3, number // 20))]
    finally:
        home.close()
    return statistics.median(empty), statistics.median(large)


def time_of(call: Callable[[], Future[object]]) -> float:
    """Return the seconds until a call is answered."""
    start_s = time.perf_counter()
    call().result()
    return time.perf_counter() - start_s


def report(steps_s: dict[str, list[list[float]]]) -> None:
    """Print a line per way: its median, the range of its rounds' medians, and its speed beside the first way's."""
    overall = {name: statistics.median(chain.from_iterable(rounds)) for name, rounds in steps_s.items()}
    first = next(iter(overall.values()))
    for name, median in overall.items():
        medians = [statistics.median(each) for each in steps_s[name]]
        spread = f"rounds {min(medians):.3f}-{max(medians):.3f}"
        print(f"{name:>14}: median {median:.3f} s a step ({spread}), {first / median:.2f} x the first")


if __name__ == "__main__":
    main()
