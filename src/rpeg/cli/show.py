"""``rpeg show``: a graph and where this machine would run it, as text, as JSON or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rpeg.cli.source import Overrides, SourceName, read_graph
from rpeg.errors import Fault, RecipeError

__all__ = ["show"]


def show(
    source: SourceName,
    overrides: Overrides = None,
    json: Annotated[bool, typer.Option("--json", help="Print the graph as JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with the drawing and its rewrites.")] = None,
    base: Annotated[str | None, typer.Option(help="The graph that the history starts from, for the page.")] = None,
    step_seconds: Annotated[
        list[str] | None, typer.Option(help="Seconds of a stage in a step, for the page: gen=40. Repeat it.")
    ] = None,
    num_bytes: Annotated[
        list[str] | None, typer.Option("--bytes", help="Bytes of one version of data, for the page. Repeat it.")
    ] = None,
) -> None:
    """Print the stages of a graph with what each reads and writes, and where this machine would run them."""
    from rpeg.graph.text import to_text
    from rpeg.plan.bind import bind_local
    from rpeg.plan.text import plan_text

    graph = read_graph(source, overrides or [])
    for_page = {"--base": base, "--step-seconds": step_seconds, "--bytes": num_bytes}
    if html is None and (given := [name for name, value in for_page.items() if value]):
        raise RecipeError("rpeg show", [Fault(name, "is for the page", "add --html FILE") for name in given])
    if json:
        from rpeg.graph.json import to_json

        typer.echo(to_json(graph), nl=False)
    elif html is None:
        typer.echo(to_text(graph))
        typer.echo(plan_text(bind_local(graph)))
    if html is not None:
        from rpeg.cli.frames import frames, through_history
        from rpeg.view.graph_page import write_graph_page

        graphs = through_history(graph, read_graph(base) if base else None)
        typer.echo(write_graph_page(html, frames(graphs, step_seconds or [], num_bytes or [])), err=json)
        if graph.history and len(graphs) == 1:
            typer.echo(f"its {len(graph.history)} rewrites need the graph they start from: --base GRAPH", err=True)
