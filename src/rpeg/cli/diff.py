"""``rpeg diff``: what differs between two graphs."""

from __future__ import annotations

import json as json_text
from typing import Annotated

import typer

from rpeg.cli.source import read_unchecked

__all__ = ["diff"]


def diff(
    before: Annotated[str, typer.Argument(help="Graph file, recipe, algorithm, or -.", metavar="A")],
    after: Annotated[str, typer.Argument(help="Graph file, recipe, algorithm, or -.", metavar="B")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per difference.")] = False,
) -> None:
    """Print what B has and A has not (+), the other way round (-), and what changed (~)."""
    from rpeg.graph.diff import diff as differences
    from rpeg.graph.diff import diff_text
    from rpeg.graph.record import encode

    old, new = read_unchecked(before), read_unchecked(after)
    changes = differences(old, new)
    if json:
        for change in changes:
            typer.echo(json_text.dumps(encode(change)))
        return
    typer.echo(diff_text(old, new, changes))
