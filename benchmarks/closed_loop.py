"""The loop closed: real runs on this machine beside what the model says of them, with the profiles of this machine.

    rpeg calibrate --host
    python benchmarks/closed_loop.py                 # prints the tables of docs/perf-calibration.md, in Markdown

Every plan is priced before it runs, from what its user would give: the shape of the model, the load, the cap of
answers, the staleness and the home of the workers. None of the plans is among those the profiles were fitted on.
Lengths are those of the recipe: prompts of one length, answers at the cap, which a model from scratch with 512 tokens
hardly ever ends before. A run's seconds are medians of its steps without the first one. Memory is the most resident
memory of the process above what it had before, after a first small run (workers in processes are left out: each brings
its own libraries).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rpeg.hardware.catalog import load_system
from rpeg.observe.json_files import write_text
from rpeg.perf.lengths import constant
from rpeg.perf.software import software_for
from rpeg.perf.step import Prediction, predict
from rpeg.perf.workload import Workload
from rpeg.plan.bind import bind_local
from rpeg.recipe.graph import build_graph
from rpeg.runtime.calibrate import memory
from rpeg.runtime.calibrate.engine import shape_of_trial
from rpeg.runtime.calibrate.trials import Trial, run, written
from rpeg.shapes.parameters import num_parameters

PLANS: Mapping[str, Trial] = {
    "A": Trial(layers=2, hidden=96, heads=3, intermediate=256, prompts=12, group=8, response_tokens=32),
    "B": Trial(layers=3, hidden=128, heads=4, intermediate=384, prompts=8, group=6, response_tokens=40, updates=2),
    "C": Trial(layers=4, hidden=192, heads=6, intermediate=512, prompts=6, group=8, response_tokens=24),
    "D": Trial(layers=5, hidden=224, heads=7, intermediate=600, prompts=4, group=8, response_tokens=28),
    "E": Trial(layers=2, hidden=64, heads=4, intermediate=192, prompts=24, group=8, response_tokens=20),
    "F": Trial(layers=1, hidden=160, heads=5, intermediate=400, prompts=10, group=10, response_tokens=56),
    "G": Trial(layers=3, hidden=96, heads=3, intermediate=256, prompts=8, group=8, response_tokens=32, staleness=1),
    "H": Trial(layers=2, hidden=160, heads=5, intermediate=400, prompts=6, group=8, response_tokens=32, staleness=2),
    "I": Trial(layers=2, intermediate=384, prompts=12, response_tokens=24, staleness=1, home="processes"),
    "J": Trial(
        layers=3, hidden=192, heads=6, intermediate=512, group=6, response_tokens=32, staleness=2, home="processes"
    ),
}  # fmt: skip
STEPS = 6
BEGIN, END = "<!-- closed loop -->", "<!-- end of closed loop -->"
STAGES = ("gen", "reward", "old", "train", "update")
SOFTWARE = {"inline": "rpeg", "processes": "rpeg-processes"}


@dataclass(frozen=True)
class Measured:
    """What a run took."""

    step_s: float
    stages_s: dict[str, float]
    peak_bytes: int | None


def main() -> None:
    """Predict, run, print both tables and the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of a run; the first does not count")
    parser.add_argument("--into", type=Path, help="page whose part between the marks is replaced by the tables")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # one plan in this process, its figures as JSON
    args = parser.parse_args()
    if args.one:
        print(json.dumps(asdict(measure(PLANS[args.one], args.steps))))
        return
    predicted = {name: prediction(trial) for name, trial in PLANS.items()}
    measured = {name: in_process(name, args.steps) for name in PLANS}
    text = report(predicted, measured)
    print(text)
    if args.into is not None:
        before, mark, rest = args.into.read_text().partition(BEGIN)
        write_text(args.into, f"{before}{mark}\n{text}{END}{rest.partition(END)[2]}")


def prediction(trial: Trial) -> Prediction:
    """Return what the model says of a plan."""
    with written(trial, STEPS) as (recipe, _):
        graph = build_graph(recipe)
    lengths = constant(float(trial.prompt_tokens)), constant(float(trial.response_tokens))
    shapes = {model.name: shape_of_trial(trial) for model in graph.models}
    load = Workload(
        shapes, *lengths, "float32", micro_batch_tokens=float(trial.micro_batch_tokens), slots=float(trial.rows)
    )
    return predict(graph, bind_local(graph), load, load_system("local"), software_for(SOFTWARE[trial.home]))


def in_process(name: str, steps: int) -> Measured:
    """Run a plan in a process of its own, so that no run finds the memory of an earlier one."""
    command = [sys.executable, __file__, "--one", name, "--steps", str(steps)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return Measured(**json.loads(found.stdout.splitlines()[-1]))


def measure(trial: Trial, steps: int) -> Measured:
    """Run a plan as ``rpeg train`` does."""
    before: int | None = None
    if memory.is_told() and trial.home == "inline":
        run(Trial(hidden=32, heads=2, prompts=2, group=2, response_tokens=4), 2)
        before = memory.settled_bytes()
        memory.restart_peak()
    steps_s, spans = run(trial, steps)
    stages: dict[str, dict[int, float]] = {}
    for span in spans:
        of_stage = stages.setdefault(span.stage, {})
        of_stage[span.step] = of_stage.get(span.step, 0.0) + span.duration_s
    seconds = {name: median(each.values()) for name, each in stages.items()}
    return Measured(median(steps_s), seconds, None if before is None else memory.peak_bytes() - before)


def report(predicted: Mapping[str, Prediction], measured: Mapping[str, Measured]) -> str:
    """Return which plans there were, both sides of every figure, and the median errors, in Markdown."""
    used = dict.fromkeys(name for each in predicted.values() for name in each.profiles[:2])
    load = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end."
    names = ("plan", "layers", "hidden", "weights", "rows", "cap", "updates", "staleness", "home")
    plans = table(names, [plan_row(name, trial) for name, trial in PLANS.items()])
    columns = ("step", *STAGES, "memory")
    errors: dict[str, list[float]] = {name: [] for name in columns}
    rows: list[tuple[str, ...]] = []
    for name in PLANS:
        pairs = {column: figures(predicted[name], measured[name], column) for column in columns}
        rows.append((name, *(cell(pair, column) for column, pair in pairs.items())))
        for column, pair in pairs.items():
            errors[column] += [] if pair is None else [100.0 * (pair[0] / pair[1] - 1.0)]
    rows.append(("median error", *(f"**{median(map(abs, errors[name])):.1f} %**" for name in columns)))
    rows.append(("median of signed", *(f"{median(errors[name]):+.1f} %" for name in columns)))
    sides = table(("plan", *(f"{name}, {'MB' if name == 'memory' else 'ms'}" for name in columns)), rows)
    return f"Profiles: {'; '.join(used)}. {load}\n\n{plans}\n{sides}"


def figures(predicted: Prediction, measured: Measured, column: str) -> tuple[float, float] | None:
    """Return both sides of a figure; None where a plan does not have it."""
    if column == "step":
        return predicted.step_s, measured.step_s
    if column == "memory":
        peak = sum(group.peak_bytes for group in predicted.groups if group.devices)
        return None if measured.peak_bytes is None else (float(peak), float(measured.peak_bytes))
    if column not in measured.stages_s:
        return None
    line = next(each for each in predicted.stages if each.name == column)
    return line.occupancy_s + line.tail_s * line.firings, measured.stages_s[column]


def cell(pair: tuple[float, float] | None, column: str) -> str:
    """Return ``predicted / measured (error)``."""
    if pair is None:
        return "-"
    scale, digits = (1e-6, 0) if column == "memory" else (1e3, 1 if pair[1] < 0.01 else 0)
    return f"{pair[0] * scale:.{digits}f} / {pair[1] * scale:.{digits}f} ({100.0 * (pair[0] / pair[1] - 1.0):+.0f} %)"


def plan_row(name: str, trial: Trial) -> tuple[str, ...]:
    """Return what a plan is."""
    weights = num_parameters(shape_of_trial(trial))
    load = f"{trial.prompts} x {trial.group}", trial.response_tokens, trial.updates, trial.staleness, trial.home
    return tuple(str(each) for each in (name, trial.layers, trial.hidden, f"{weights / 1e6:.2f} M", *load))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    ruled = (header, ["---"] * len(header), *rows)
    return "".join(f"| {' | '.join(row)} |\n" for row in ruled)


if __name__ == "__main__":
    main()
