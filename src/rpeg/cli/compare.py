"""``rpeg compare``: two plans side by side."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from rpeg.cli.planned import Allow, Cluster, MaxStaleness, SoftwareName, read_planned

__all__ = ["compare"]


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="File of rpeg plan --out, or a plan (JSON).")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other one.")],
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Recipe that both are for (YAML).")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Dotted overrides of the recipe.")
    ] = None,
    cluster: Cluster = None,
    staleness_max: MaxStaleness = None,
    allow: Allow = None,
    lengths: Annotated[Path | None, typer.Option(help="Run folder whose responses are as long as these.")] = None,
    software: SoftwareName = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print step, stages, memory and busy share of two plans, what limits each, and in what they differ."""
    from rpeg.cli.workload import read_task
    from rpeg.search.compare import compare as compared
    from rpeg.search.compare_text import as_json, as_text

    task = read_task(recipe, overrides or [], lengths)
    left, right = (read_planned(path, task, cluster, staleness_max, allow, software) for path in (a, b))
    found = compared(
        (a.name, left.case, left.graph, left.plan),
        (b.name, right.case, right.graph, right.plan),
    )
    if json:
        typer.echo(json_text.dumps({**as_json(found), "assumed": task.assumed}))
        return
    typer.echo(as_text(found))
    for each in task.assumed:
        typer.echo(f"assumed: {each}")
