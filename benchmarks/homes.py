"""Homes of workers, side by side: seconds per step, per event and per call of one process, of several, and of Ray.

    python benchmarks/homes.py --rounds 3 --steps 20
    python benchmarks/homes.py --rounds 0 --warmup 1        events and calls only

The tiny model of examples/arithmetic.yaml is first warmed up for a while; every run starts from that folder, so all of
one staleness do the same work. Runs take turns, so that a machine that slows down slows all of them.

An event is one of the seven of a GRPO step, played by the engine as in a run (tokens, rows, spans, books), whose worker
has nothing to do: what it takes is what an event of a run takes beside the work. Its CPU time is that of this process.
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
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

import torch

from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.observe.run_folder import RunFolder
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import KnownCosts
from rpeg.plan.lower import lower
from rpeg.plan.plan import Plan
from rpeg.plan.play import Player
from rpeg.recipe.graph import build_graph
from rpeg.recipe.load import load_recipe
from rpeg.runtime.engine import WallClock
from rpeg.runtime.group import Groups, Ran
from rpeg.runtime.hauls import Hauls
from rpeg.runtime.homes.choose import open_home
from rpeg.runtime.ledger import Ledger
from rpeg.runtime.origin import Origin
from rpeg.runtime.rows import Rows
from rpeg.runtime.run import train
from rpeg.runtime.store import Store
from rpeg.runtime.task import Task
from rpeg.runtime.worker import WorkerSpec
from rpeg.view.live import SilentView

RECIPE = Path(__file__).parents[1] / "examples" / "arithmetic.yaml"
WAYS = {
    "inline k=0": ("inline", 0),
    "inline k=1": ("inline", 1),
    "processes k=1": ("processes", 1),
    "ray k=1": ("ray", 1),
}
SIZES = {"rounds": 3, "steps": 20, "skip": 3, "warmup": 150, "threads": 1, "calls": 200, "events": 1400}
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
        load = os.getloadavg()[0]
        found_s = {home: seconds_in(home, warm, args.calls, args.events) for home, _ in WAYS.values()}
    print(f"{os.cpu_count()} cores, load {load:.1f}")
    if args.rounds:
        print(f"{args.rounds} rounds of {args.steps} steps without the first {args.skip}, {args.threads} threads each")
        report(steps_s)
    print(f"{'median ms':>14}  {'an event':>10}  {'its CPU':>10}  {'a call':>10}  {'with 100 MB':>11}")
    for home, (event_s, cpu_s, empty_s, large_s) in found_s.items():
        numbers = f"{event_s * 1e3:10.2f}  {cpu_s * 1e3:10.2f}  {empty_s * 1e3:10.2f}  {large_s * 1e3:11.0f}"
        print(f"{home:>14}  {numbers}")


def run(folder: Path, *overrides: str) -> RunFolder:
    """Train without evaluation in a new folder."""
    folder.mkdir()
    recipe = load_recipe(RECIPE, ["evaluation.every_steps=0", "run.checkpoint_every_steps=1000", *overrides])
    train(recipe, lambda: RunFolder(folder), SilentView())
    return RunFolder(folder)


def seconds(folder: RunFolder) -> list[float]:
    """Return the seconds of every step."""
    return [json.loads(line)["time/step_s"] for line in folder.metrics.read_text().splitlines()]


def seconds_in(home_name: str, warm: RunFolder, number: int, events: int) -> tuple[float, float, float, float]:
    """Return the seconds of an event on the wall and on this CPU, of a call that does nothing, of one with weights."""
    recipe = load_recipe(RECIPE, [f"run.home={home_name}"])
    graph = build_graph(recipe)
    plan = bind_local(graph)
    home = open_home(recipe, plan, print)
    weights = torch.ones(WEIGHTS)
    try:
        home.spawn("host", WorkerSpec(recipe, graph, ("reward",), Origin(warm.model, warm.model, None, 0), 1)).result()
        event_s, cpu_s = seconds_of_events(IdleGroups(home, graph, plan), graph, plan, events)
        empty = [time_of(lambda: home.call("host", "__sizeof__")) for _ in range(number)]
        large = [time_of(lambda: home.call("host", "__eq__", weights)) for _ in range(max(3, number // 20))]
    finally:
        home.close()
    return event_s, cpu_s, statistics.median(empty), statistics.median(large)


class IdleGroups(Groups):
    """Groups whose every task goes to the worker ``host``, which has no rows to do it with."""

    def run(self, task: Task) -> Future[Ran]:
        """Call for nothing, by the way that a task takes."""
        none = Rows({})
        return super().run(replace(task, stage="reward", kind=StageKind.VERIFY, samples=none, groups=none))


def seconds_of_events(groups: Groups, graph: Graph, plan: Plan, number: int) -> tuple[float, float]:
    """Return the median seconds of an event over the steps that it takes to fire ``number`` of them.

    On the wall, and of this process's CPU time, which neighbours on the machine do not change.
    """
    events = lower(graph, plan, KnownCosts({}))
    stages = [stage.name for stage in graph.stages if graph.firings(stage.name) >= 1]
    steps = range(number // len(stages))
    ledger, ends_s = Ledger(graph, plan, {}), [(time.perf_counter(), time.process_time())]

    def close(step: int) -> None:
        ledger.close(step)
        ends_s.append((time.perf_counter(), time.process_time()))

    clock = WallClock(graph, events, groups, Store(graph, {}), steps, (ledger.add, close), 60.0, Hauls(graph, plan))
    Player(events, clock).play(len(steps))
    wall_s, cpu_s = ([end - start for start, end in pairwise(each)] for each in zip(*ends_s, strict=True))
    return statistics.median(wall_s) / len(stages), statistics.median(cpu_s) / len(stages)


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
