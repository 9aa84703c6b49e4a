"""What commands may be given in place of a graph: a recipe or a graph file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rpeg.errors import Fault, GraphError
from rpeg.graph.graph import Graph

__all__ = ["read_graph"]


def read_graph(source: str, overrides: Sequence[str]) -> Graph:
    """Return the graph of a recipe file with overrides, or of a graph file.

    Raises:
        GraphError: when the file is no graph; `RecipeError` when it is no recipe.
    """
    if not source.endswith(".json"):
        from rpeg.recipe.graph import build_graph
        from rpeg.recipe.load import load_recipe

        return build_graph(load_recipe(Path(source), overrides))
    from rpeg.graph.json import from_json
    from rpeg.graph.validate import check

    if overrides:
        raise GraphError(
            source, [Fault(overrides[0], "overrides belong to recipes", "give the recipe instead of the graph")]
        )
    if not Path(source).is_file():
        raise GraphError(source, [Fault(source, "there is no such file")])
    return check(from_json(Path(source).read_text()))
