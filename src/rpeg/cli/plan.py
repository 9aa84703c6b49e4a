"""``rpeg plan``: the best plans of a recipe on a machine, and what a given one is expected to do."""

from __future__ import annotations

import json as json_text
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rpeg.cli.planned import SoftwareName
from rpeg.errors import Fault, PlanError

if TYPE_CHECKING:
    from rpeg.cli.workload import Task
    from rpeg.hardware.topology import System
    from rpeg.perf.software import Software
    from rpeg.perf.step import Prediction
    from rpeg.search.find import Found
    from rpeg.search.objective import Objective

__all__ = ["plan"]


def plan(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Recipe of a workload or of a training run (YAML).")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Dotted overrides of the recipe.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Machine: a name of the catalogue, a part such as alps:256, or a .toml file.")
    ] = None,
    staleness_max: Annotated[int, typer.Option(min=0, help="How many steps old samples may be.")] = 0,
    allow: Annotated[
        str, typer.Option(help="What may change the learning: share_trunk,in_flight,... (commas between).")
    ] = "",
    wishes: Annotated[
        list[str] | None, typer.Option("--set", help="Fix something: train.tp=4, gen.where=rack.node[0:16]. Repeat it.")
    ] = None,
    objective: Annotated[
        str, typer.Option(help="What is made small: step, gpu_hours, or reward (per GPU-hour).")
    ] = "step",
    top: Annotated[int, typer.Option(min=1, help="Plans to show.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Write the best plan with its graph here (JSON).")] = None,
    fixed: Annotated[Path | None, typer.Option(help="Price this plan (JSON) instead of looking for one.")] = None,
    lengths: Annotated[Path | None, typer.Option(help="Run folder whose responses are as long as these.")] = None,
    software: SoftwareName = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Look for the best plans of a recipe on a machine, or price a given one: step, memory, what limits it."""
    from rpeg.cli.workload import read_task
    from rpeg.hardware.catalog import load_system

    task = read_task(recipe, overrides or [], lengths)
    system = load_system(_machine(task, cluster))
    used = task.software(software, system)
    if fixed is not None:
        _show_fixed(_priced(task, fixed, system, used), task, json)
        return
    from rpeg.search.find import Goal
    from rpeg.search.objective import find_for
    from rpeg.search.ranking import as_json, as_text, ranked
    from rpeg.search.structures import structures
    from rpeg.search.wishes import read_wishes

    task, staleness_max = task.kept_young(staleness_max)
    allowed = tuple(name for name in allow.split(",") if name)
    graphs = (each.graph for each in structures(task.graph, staleness_max, allowed))
    pins, regions = read_wishes(wishes or [], graphs, system)
    goal = Goal(staleness_max, allowed, pins, regions, top, workers=task.workers)
    outcome, part = find_for(_objective(objective), task.graph, task.workload, system, goal, used)
    plans = ranked(outcome, task.workload, part, used)
    if out is not None:
        _write(out, plans[0].found, recipe, part.name)
    if json:
        typer.echo(json_text.dumps({**as_json(outcome, plans), "assumed": task.assumed}))
        return
    typer.echo(as_text(outcome, plans))
    _say_assumed(task)


def _objective(name: str) -> Objective:
    from rpeg.search.objective import Objective

    if name not in list(Objective):
        fault = Fault("--objective", f"is {name!r}", f"one of {', '.join(Objective)}")
        raise PlanError("rpeg plan", [fault])
    return Objective(name)


def _write(path: Path, found: Found, recipe: str, cluster: str) -> None:
    from rpeg.search.bundle import Bundle, write_bundle

    write_bundle(path, Bundle(found.priced.plan, found.structure.graph, Path(recipe).stem, cluster))


def _show_fixed(found: Prediction, task: Task, json: bool) -> None:
    from rpeg.perf.step_text import as_json, as_text

    if json:
        typer.echo(json_text.dumps({**as_json(found), "assumed": task.assumed}))
        return
    typer.echo(as_text(found))
    _say_assumed(task)


def _say_assumed(task: Task) -> None:
    for each in task.assumed:
        typer.echo(f"assumed: {each}")


def _machine(task: Task, cluster: str | None) -> str:
    if cluster is not None:
        return cluster
    if task.has_devices:
        return f"local:{os.cpu_count() or 1}"
    remedy = "name it, such as --cluster alps:256 or --cluster dgx-h100:64"
    raise PlanError("rpeg plan", [Fault("--cluster", "is missing: a workload says nothing of a machine", remedy)])


def _priced(task: Task, path: Path, system: System, software: Software) -> Prediction:
    """Return the prediction of a plan file: of its own graph where it has one, else of the recipe's."""
    from rpeg.perf.step import predict
    from rpeg.search.bundle import read_bundle

    bundle = read_bundle(path)
    return predict(bundle.graph or task.graph, bundle.plan, task.workload, system, software)
