"""Graphs as JSON files: write, read, migrate.

``schema`` counts the versions of the format. A file of an older schema is lifted step by step by the functions in
``MIGRATIONS``; a newer one is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

from rpeg.errors import Fault, GraphError
from rpeg.graph.graph import Graph
from rpeg.graph.record import decode, encode

__all__ = ["MIGRATIONS", "SCHEMA", "from_json", "to_json"]

SCHEMA = 1
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""Schema n to the function that turns an object of schema n into one of schema n + 1."""

_MAX_LEVELS = 16
_TOO_DEEP = ("is nested too deeply", "write graphs with rpeg")


def to_json(graph: Graph) -> str:
    """Return the canonical JSON text, fields in declaration order, one line per record."""
    return json.dumps(encode(graph), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def from_json(text: str) -> Graph:
    """Return the graph of a JSON text; whether it keeps the rules is for `rpeg.graph.validate` to say.

    Raises:
        GraphError: when the text is not JSON, of another schema, or has unknown, missing or mistyped fields.
    """
    record = _load(text)
    while record["schema"] in MIGRATIONS:
        record = MIGRATIONS[record["schema"]](record)
    if record["schema"] != SCHEMA:
        raise _refuse("schema", f"is {record['schema']}", f"this version reads 1 to {SCHEMA}")
    try:
        return _shallow(decode(Graph, record, "graph", {"Graph": Graph}))
    except RecursionError as error:
        raise _refuse("text", *_TOO_DEEP) from error


def _shallow(graph: Graph) -> Graph:
    """Return ``graph`` unless its stages have stages inside them on so many levels that nobody could follow."""
    level = [graph]
    for _ in range(_MAX_LEVELS):
        level = [stage.body.graph for each in level for stage in each.stages if stage.body is not None]
        if not level:
            return graph
    raise _refuse("text", *_TOO_DEEP)


def _load(text: str) -> dict[str, Any]:
    try:
        loaded: object = json.loads(text)
    except json.JSONDecodeError as error:
        raise _refuse(f"line {error.lineno}", f"is not JSON ({error.msg})", "write graphs with rpeg") from error
    except RecursionError as error:
        raise _refuse("text", *_TOO_DEEP) from error
    record = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
    if not isinstance(record.get("schema"), int):
        raise _refuse("schema", "is missing", "this is not a graph file")
    return record


def _refuse(where: str, what: str, remedy: str) -> GraphError:
    return GraphError("graph file", [Fault(where, what, remedy)])
