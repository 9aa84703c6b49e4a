"""``rpeg check``: does a graph keep the rules?"""

from __future__ import annotations

import json as json_text
from typing import Annotated

import typer

from rpeg.cli.source import Overrides, SourceName, read_unchecked

__all__ = ["check"]


def check(
    source: SourceName,
    overrides: Overrides = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object with every problem.")] = False,
) -> None:
    """Check a graph against the rules V1-V15; status 2 when it breaks one, with every problem and its remedy."""
    from rpeg.graph.validate import check as require
    from rpeg.graph.validate import validate

    graph = read_unchecked(source, overrides or [])
    if json:
        problems = [{"rule": p.rule, "subjects": p.subjects, "text": p.text, "hint": p.hint} for p in validate(graph)]
        typer.echo(json_text.dumps({"graph": graph.name, "digest": graph.digest(), "problems": problems}))
        raise typer.Exit(2 if problems else 0)
    require(graph)
    size = f"{len(graph.stages)} stages, {len(graph.data)} data, {len(graph.accesses)} accesses"
    typer.echo(f"{graph.name} {graph.digest()[:8]}: {size}; the rules V1-V15 hold")
