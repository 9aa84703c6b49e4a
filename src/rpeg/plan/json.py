"""Plans as JSON files: read, migrate; `Plan.to_json` writes them.

``schema`` counts the versions of the format. A file of an older schema is lifted step by step by the functions in
``MIGRATIONS``; a newer one is refused.
"""

from __future__ import annotations

from rpeg.errors import GraphError, PlanError
from rpeg.graph.record import Migrations, decode, load
from rpeg.plan.plan import Plan

__all__ = ["MIGRATIONS", "SCHEMA", "from_json"]

SCHEMA = 1
MIGRATIONS: Migrations = {}


def from_json(text: str) -> Plan:
    """Return the plan of a JSON text; whether it is legal for a graph is for `rpeg.plan.rules` to say.

    Raises:
        PlanError: when the text is not JSON, of another schema, or has unknown, missing or mistyped fields.
    """
    try:
        return decode(Plan, load(text, "plan", SCHEMA, MIGRATIONS), "plan", {})
    except GraphError as error:
        raise PlanError("plan file", error.faults) from error
