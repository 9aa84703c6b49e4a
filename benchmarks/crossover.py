"""Sync against async on two cores: the plan that the model chooses beside the others, predicted and measured.

    rpeg calibrate --host
    python benchmarks/crossover.py --rounds 3 --steps 8      # prints the table of docs/log.md, in Markdown

Three ways to use two cores, as plans of workers with one thread each: all in turn on one, all in turn on two that
share the rows, and sampling beside training one step ahead. For each of two models the chosen one is what `rpeg plan`
would take: the least predicted seconds. Beside them, measured alone, one worker with two threads: how many threads a
worker has is no part of a plan. Runs take turns, so that a machine that slows down slows all of them; a run's seconds
are the median of its steps without the first two.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median

from rpeg.graph.graph import Graph
from rpeg.hardware.catalog import load_system
from rpeg.perf.lengths import constant
from rpeg.perf.software import software_for
from rpeg.perf.step import predict
from rpeg.perf.workload import Workload
from rpeg.plan.bind import bind_local
from rpeg.plan.plan import Mesh, Plan
from rpeg.recipe.graph import build_graph
from rpeg.runtime.calibrate.engine import shape_of_trial
from rpeg.runtime.calibrate.trials import Trial, run, written
from rpeg.shapes.parameters import num_parameters

MODELS: Mapping[str, Trial] = {
    "small": Trial(layers=2, hidden=128, heads=4, intermediate=320, prompts=32, group=8, response_tokens=24, updates=2),
    "large": Trial(layers=4, hidden=256, heads=8, intermediate=768, prompts=32, group=8, response_tokens=24, updates=2),
}
Bind = Callable[[Graph], Plan]


def shared(graph: Graph) -> Plan:
    """Return the plan in which two ranks take all models' stages in turn, each on half of the rows."""
    plan = bind_local(graph)
    meshes = tuple(
        mesh if mesh.name == "host" else Mesh(mesh.name, "local.slot[0:2]", (("dp", 2),)) for mesh in plan.meshes
    )
    return replace(plan, meshes=meshes)


WAYS: Mapping[str, tuple[int, int, Bind]] = {
    "in turn on one": (0, 1, bind_local),
    "in turn on one, two threads": (0, 2, bind_local),
    "in turn on two": (0, 1, shared),
    "side by side": (1, 1, bind_local),
}
"""Staleness, threads of a worker, and what makes the plan."""


def main() -> None:
    """Predict, run in turn, print the table and whether the chosen plans were the fastest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    print("| model | weights | plan | predicted, s | measured, s | |\n|---|---|---|---|---|---|")
    for model, base in MODELS.items():
        trials = {
            way: (replace(base, staleness=k, threads=threads, home="processes"), bind)
            for way, (k, threads, bind) in WAYS.items()
        }
        said = {way: prediction(trial, bind) for way, (trial, bind) in trials.items() if trial.threads == 1}
        took: dict[str, list[float]] = {way: [] for way in trials}
        for _ in range(args.rounds):
            for way, (trial, bind) in trials.items():
                took[way] += run(trial, args.steps, bind=bind)[0][2:]
        measured = {way: median(each) for way, each in took.items()}
        chosen, fastest = min(said, key=said.__getitem__), min(measured, key=measured.__getitem__)
        for way in trials:
            marks = ", ".join([*(["chosen"] if way == chosen else []), *(["fastest"] if way == fastest else [])])
            weights = f"{num_parameters(shape_of_trial(base)) / 1e6:.2f} M"
            predicted = f"{said[way]:.3f}" if way in said else "-"
            print(f"| {model} | {weights} | {way} | {predicted} | {measured[way]:.3f} | {marks} |")


def prediction(trial: Trial, bind: Bind) -> float:
    """Return the seconds of a step that the model says."""
    with written(trial, 2) as (recipe, _):
        graph = build_graph(recipe)
    lengths = constant(float(trial.prompt_tokens)), constant(float(trial.response_tokens))
    shapes = {each.name: shape_of_trial(trial) for each in graph.models}
    load = Workload(
        shapes, *lengths, "float32", micro_batch_tokens=float(trial.micro_batch_tokens), slots=float(trial.rows)
    )
    return float(predict(graph, bind(graph), load, load_system("local"), software_for("rpeg-processes")).step_s)


if __name__ == "__main__":
    main()
