"""``rpeg explain``: why a plan takes as long as it does, and what would change that."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from rpeg.cli.planned import Allow, Cluster, MaxStaleness, SoftwareName, read_planned
from rpeg.errors import Fault, PlanError

__all__ = ["explain"]


def explain(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="File of rpeg plan --out, or a plan (JSON).")],
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Recipe that it is for (YAML).")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Dotted overrides of the recipe.")
    ] = None,
    cluster: Cluster = None,
    staleness_max: MaxStaleness = None,
    allow: Allow = None,
    wishes: Annotated[
        list[str] | None,
        typer.Option("--set", help="What searches have to keep: train.tp=4, gen.where=rack.node[0:16]. Repeat it."),
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            help="Only what this changes: nic=2x, hbm=1.2x, flops=2x, memory=1.5x, nvlink=0.5x, host=2x, gpus=128, "
            "staleness=2, prompts=2x, response.mean=8192. Repeat it."
        ),
    ] = None,
    same_plan: Annotated[
        bool, typer.Option("--same-plan", help="With --what-if: keep meshes and layouts instead of searching again.")
    ] = False,
    lengths: Annotated[Path | None, typer.Option(help="Run folder whose responses are as long as these.")] = None,
    software: SoftwareName = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what limits a plan, the slack of the rest, what every figure is worth, and the best single changes."""
    from rpeg.cli.workload import read_task
    from rpeg.search.answer import what_if as answer
    from rpeg.search.explain import explain as explained
    from rpeg.search.explain_text import answer_json, answer_text, as_json, as_text

    if same_plan and not what_if:
        raise PlanError("rpeg explain", [Fault("--same-plan", "is for changes", "add --what-if nic=2x")])
    task = read_task(recipe, overrides or [], lengths)
    found = read_planned(plan, task, cluster, staleness_max, allow, software, wishes or [])
    if what_if:
        answered = answer(found.case, what_if, found.graph, found.plan, same_plan=same_plan)
        text, record = answer_text(answered), answer_json(answered)
    else:
        explanation = explained(found.case, found.graph, found.plan)
        text, record = as_text(explanation), as_json(explanation)
    if json:
        typer.echo(json_text.dumps({**record, "assumed": task.assumed}))
        return
    typer.echo(text)
    for each in task.assumed:
        typer.echo(f"assumed: {each}")
