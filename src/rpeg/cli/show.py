"""``rpeg show``: the graph and the plan of a recipe, or a graph file, as text."""

from __future__ import annotations

from typing import Annotated

import typer

from rpeg.cli.source import read_graph

__all__ = ["show"]


def show(
    source: Annotated[str, typer.Argument(help="Recipe (YAML) or graph file (JSON).", metavar="RECIPE|GRAPH")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Dotted overrides of a recipe.", metavar="[KEY=VALUE]...")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the graph as JSON.")] = False,
) -> None:
    """Print the stages of a graph with what each reads and writes, and where this machine would run them."""
    from rpeg.graph.text import to_text
    from rpeg.plan.bind import bind_local
    from rpeg.plan.text import plan_text

    graph = read_graph(source, overrides or [])
    if json:
        from rpeg.graph.json import to_json

        typer.echo(to_json(graph), nl=False)
        return
    typer.echo(to_text(graph))
    typer.echo(plan_text(bind_local(graph)))
