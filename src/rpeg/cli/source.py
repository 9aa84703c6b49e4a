"""What commands take for a graph: a graph file, a recipe, an algorithm, or a graph on standard input."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rpeg.errors import Fault, GraphError
from rpeg.graph.graph import Graph

__all__ = ["STANDARD_INPUT", "Overrides", "SourceName", "read_graph", "read_unchecked"]

SourceName = Annotated[
    str,
    typer.Argument(
        metavar="GRAPH|RECIPE|ALGORITHM",
        help="Graph file (JSON), recipe (YAML), name of an algorithm, or - for a graph on standard input.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Dotted overrides of a recipe, or parameters of an algorithm."),
]

STANDARD_INPUT = "-"
"""The name that stands for a graph as JSON on standard input."""

_RECIPES = (".yaml", ".yml")


def read_graph(source: str, overrides: Sequence[str] = ()) -> Graph:
    """Return the graph of a graph file, of a recipe file or of an algorithm, the latter two with overrides, checked.

    Raises:
        GraphError: when there is no such thing or it breaks a rule; `RecipeError` when it is no recipe.
    """
    from rpeg.graph.validate import check

    return check(read_unchecked(source, overrides))


def read_unchecked(source: str, overrides: Sequence[str] = ()) -> Graph:
    """Return the graph that `read_graph` would return, whether it keeps the rules or not.

    Raises:
        GraphError: when there is no such thing or it cannot be read; `RecipeError` when it is no recipe.
    """
    from rpeg.algorithms.catalog import ALGORITHMS

    if source.endswith(_RECIPES) or (source != STANDARD_INPUT and _is_other_file(source)):
        from rpeg.recipe.graph import build_graph
        from rpeg.recipe.load import load_recipe
        from rpeg.recipe.workload import is_workload, load_workload

        if is_workload(Path(source)):
            return load_workload(Path(source), overrides).graph()
        return build_graph(load_recipe(Path(source), overrides))
    if source in ALGORITHMS:
        from rpeg.recipe.algorithm import build

        return build(source, overrides)
    if overrides:
        text = "overrides belong to recipes and algorithms"
        raise GraphError(source, [Fault(overrides[0], text, "give one of these instead of a graph file")])
    from rpeg.graph.json import from_json

    return from_json(_text_of(source, list(ALGORITHMS)))


def _is_other_file(source: str) -> bool:
    return not source.endswith(".json") and Path(source).is_file()


def _text_of(source: str, algorithms: Sequence[str]) -> str:
    """Return the text of a graph file."""
    try:
        return sys.stdin.read() if source == STANDARD_INPUT else Path(source).read_text(encoding="utf-8")
    except FileNotFoundError:
        what = "there is no such file" + ("" if source.endswith(".json") else " and no such algorithm")
        raise GraphError(source, [Fault(source, what, _meant(source, algorithms))]) from None
    except IsADirectoryError:
        raise GraphError(source, [Fault(source, "is a folder", "give the graph.json in it")]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise GraphError(source, [Fault(source, f"cannot be read: {error}", "give a UTF-8 text")]) from error


def _meant(source: str, algorithms: Sequence[str]) -> str:
    from difflib import get_close_matches

    if source.endswith(".json"):
        return ""
    near = get_close_matches(source.lower(), algorithms, n=3)
    return f"did you mean {' or '.join(near)}?" if near else f"algorithms: {', '.join(algorithms)}"
