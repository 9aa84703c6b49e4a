"""Plans as JSON files: read, migrate; `Plan.to_json` writes them.

``schema`` counts the versions of the format. A file of an older schema is lifted step by step by the functions in
``MIGRATIONS``; a newer one is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

from rpeg.errors import Fault, GraphError, PlanError
from rpeg.graph.record import decode
from rpeg.plan.plan import Plan

__all__ = ["MIGRATIONS", "SCHEMA", "from_json"]

SCHEMA = 1
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""Schema n to the function that turns an object of schema n into one of schema n + 1."""


def from_json(text: str) -> Plan:
    """Return the plan of a JSON text; whether it is legal for a graph is for `rpeg.plan.rules` to say.

    Raises:
        PlanError: when the text is not JSON, of another schema, or has unknown, missing or mistyped fields.
    """
    record = _load(text)
    while record["schema"] in MIGRATIONS:
        record = MIGRATIONS[record["schema"]](record)
    if record["schema"] != SCHEMA:
        raise _refuse("schema", f"is {record['schema']}", f"this version reads 1 to {SCHEMA}")
    try:
        return decode(Plan, record, "plan", {})
    except GraphError as error:
        raise PlanError("plan file", error.faults) from error


def _load(text: str) -> dict[str, Any]:
    try:
        loaded: object = json.loads(text)
    except json.JSONDecodeError as error:
        raise _refuse(f"line {error.lineno}", f"is not JSON ({error.msg})", "write plans with rpeg") from error
    except RecursionError as error:
        raise _refuse("text", "is nested too deeply", "write plans with rpeg") from error
    record = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
    if not isinstance(record.get("schema"), int):
        raise _refuse("schema", "is missing", "this is not a plan file")
    return record


def _refuse(where: str, what: str, remedy: str) -> PlanError:
    return PlanError("plan file", [Fault(where, what, remedy)])
