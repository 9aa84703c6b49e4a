"""``rpeg rewrite``: change a graph by rewrites that are checked, recorded in its history and can be taken back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rpeg.cli.source import SourceName, read_graph
from rpeg.errors import TransformError
from rpeg.graph.graph import Graph

if TYPE_CHECKING:
    from rpeg.transforms.base import Transform
    from rpeg.transforms.registry import Offer

__all__ = ["rewrite"]

_OVERRIDE = re.compile(r"[\w.]+=")


def rewrite(
    source: SourceName,
    rewrites: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]... [REWRITE]...",
            help="Overrides as for show; rewrites in their order: 'relax{stage=gen,steps=1}'.",
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the rewritten graph here.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page that steps through the rewrites.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the rewritten graph as JSON.")] = False,
    show_list: Annotated[
        bool, typer.Option("--list", help="Print what could be applied, and why other candidates could not.")
    ] = False,
    explore: Annotated[
        bool, typer.Option("--explore", help="Allow rewrites that change what is learned though the contract does not.")
    ] = False,
) -> None:
    """Apply REWRITES one after the other, and print what has changed; the graph file itself stays as it is."""
    overrides = [text for text in rewrites or [] if _OVERRIDE.match(text)]
    texts = [text for text in rewrites or [] if not _OVERRIDE.match(text)]
    graphs = _applied(read_graph(source, overrides), texts, explore)
    result = graphs[-1]
    if output is not None:
        _write(output, result)
    if html is not None:
        from rpeg.cli.frames import frames
        from rpeg.view.graph_page import write_graph_page

        write_graph_page(html, frames(graphs, [], []))
    if json:
        from rpeg.graph.json import to_json

        typer.echo(to_json(result), nl=False)
    elif show_list:
        _print_offers(result, explore)
    else:
        _print_result(graphs)


def _applied(graph: Graph, texts: Sequence[str], explore: bool) -> list[Graph]:
    """Return the graph, and what it is after each of the rewrites; they are all read before the first is applied."""
    from rpeg.transforms.registry import parse

    graphs = [graph]
    for each in [parse(text) for text in texts]:
        try:
            graphs.append(each.apply(graphs[-1], explore=explore))
        except TransformError as error:
            raise _with_a_way_out(error, each, graphs[-1], explore) from error
    return graphs


def _with_a_way_out(error: TransformError, refused: Transform, graph: Graph, explore: bool) -> TransformError:
    """Return the error with the option that helps, where nothing but the contract stands in the way."""
    if explore or refused.check(graph, explore=True):
        return error
    return TransformError(error.subject, [replace(f, remedy=f"{f.remedy}, or give --explore") for f in error.faults])


def _write(path: Path, graph: Graph) -> None:
    from rpeg.graph.json import to_json
    from rpeg.observe.json_files import write_text

    write_text(path, to_json(graph))


def _print_result(graphs: Sequence[Graph]) -> None:
    from rpeg.graph.diff import diff, diff_text
    from rpeg.graph.text import to_text
    from rpeg.transforms.registry import parse

    first, last = graphs[0], graphs[-1]
    applied = [graph.history[-1] for graph in graphs[1:]]
    for number, entry in enumerate(applied, 1):
        effect = parse(entry.transform).effect
        typer.echo(f"{number}. {entry.transform}  {effect}  {entry.before[:8]} -> {entry.after[:8]}")
    if applied:
        typer.echo(diff_text(first, last, diff(first, last)))
    typer.echo(to_text(last))


def _print_offers(graph: Graph, explore: bool) -> None:
    from rpeg.transforms.registry import offers

    found = list(offers(graph, explore=explore))
    width = max((len(str(offer.transform)) for offer in found), default=0)
    fits = [offer for offer in found if not offer.reasons]
    typer.echo(f"{len(fits)} of {len(found)} candidates fit {graph.name} {graph.digest()[:8]}")
    for offer in [*fits, *(offer for offer in found if offer.reasons)]:
        for line in _offer_lines(offer, width):
            typer.echo(line)


def _offer_lines(offer: Offer, width: int) -> list[str]:
    sign = "-" if offer.reasons else "+"
    lines = [f"  {sign} {str(offer.transform).ljust(width)}  {offer.transform.effect}"]
    return lines + [f"      {reason}" for reason in offer.reasons]
