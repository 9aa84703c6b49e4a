"""Graphs as JSON files: write, read, migrate.

``schema`` counts the versions of the format. A file of an older schema is lifted step by step by the functions in
``MIGRATIONS``; a newer one is refused.
"""

from __future__ import annotations

import json

from rpeg.graph.graph import Graph
from rpeg.graph.record import Migrations, decode, encode, load, too_deep

__all__ = ["MIGRATIONS", "SCHEMA", "from_json", "to_json"]

SCHEMA = 1
MIGRATIONS: Migrations = {}

_MAX_LEVELS = 16


def to_json(graph: Graph) -> str:
    """Return the canonical JSON text, fields in declaration order, one line per record."""
    return json.dumps(encode(graph), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def from_json(text: str) -> Graph:
    """Return the graph of a JSON text; whether it keeps the rules is for `rpeg.graph.validate` to say.

    Raises:
        GraphError: when the text is not JSON, of another schema, or has unknown, missing or mistyped fields.
    """
    record = load(text, "graph", SCHEMA, MIGRATIONS)
    try:
        return _shallow(decode(Graph, record, "graph", {"Graph": Graph}))
    except RecursionError as error:
        raise too_deep("graph") from error


def _shallow(graph: Graph) -> Graph:
    """Return ``graph`` unless its stages have stages inside them on so many levels that nobody could follow."""
    level = [graph]
    for _ in range(_MAX_LEVELS):
        level = [stage.body.graph for each in level for stage in each.stages if stage.body is not None]
        if not level:
            return graph
    raise too_deep("graph")
