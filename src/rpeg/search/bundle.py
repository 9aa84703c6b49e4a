"""A plan with the graph it is for, in one JSON file: what ``rpeg plan --out`` writes and others read.

.. code-block:: json

    {"schema": 1, "recipe": "grpo-7b", "cluster": "alps:64", "graph": {"name": "grpo", "...": 0}, "plan": {"...": 0}}

A plan names its graph by digest only, and the graph of a plan is often not the algorithm's own but what rewrites have
made of it. So both are kept together, the graph with its history. A plan alone (what `Plan.to_json` writes) is read as
well; its graph then has to be found among the structures that a search may use.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpeg.errors import Fault, GraphError, PlanError
from rpeg.graph.graph import Graph
from rpeg.graph.json import from_json as graph_from_json
from rpeg.graph.record import Migrations, encode, load
from rpeg.graph.validate import check
from rpeg.observe.json_files import write_text
from rpeg.plan.json import from_json as plan_from_json
from rpeg.plan.plan import Plan

__all__ = ["MIGRATIONS", "SCHEMA", "Bundle", "from_json", "read_bundle", "to_json", "write_bundle"]

SCHEMA = 1
MIGRATIONS: Migrations = {}

_TEXTS = ("recipe", "cluster")
_FIELDS = ("schema", *_TEXTS, "graph", "plan")


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """A plan and what it was made for."""

    plan: Plan
    graph: Graph | None = None
    """None of a plan alone."""
    recipe: str = ""
    """Name of what was planned, for people."""
    cluster: str = ""
    """The machine as the user named it: ``alps:64``."""


def to_json(bundle: Bundle) -> str:
    """Return a bundle as JSON text, of a plan alone that plan."""
    if bundle.graph is None:
        return bundle.plan.to_json()
    record = {
        "schema": SCHEMA,
        "recipe": bundle.recipe,
        "cluster": bundle.cluster,
        "graph": encode(bundle.graph),
        "plan": encode(bundle.plan),
    }
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def from_json(text: str, where: str = "plan file") -> Bundle:
    """Return the bundle of a JSON text, or the plan of one alone.

    Args:
        text: the content of the file.
        where: what messages call it.

    Raises:
        PlanError: when it is neither, of a newer schema, has unknown or missing fields, or when plan and graph differ.
        GraphError: when the graph breaks a rule.
    """
    try:
        record = load(text, "plan", SCHEMA, MIGRATIONS)
    except GraphError as error:
        raise PlanError(where, error.faults) from error
    if "meshes" in record:
        return Bundle(plan_from_json(text))
    if faults := _faults(record):
        raise PlanError(where, faults)
    try:
        graph = graph_from_json(json.dumps(record["graph"]))
    except GraphError as error:
        raise PlanError(where, error.faults) from error
    plan = plan_from_json(json.dumps(record["plan"]))
    if plan.graph != graph.digest():
        text = f"is for graph {plan.graph[:8]}, the graph beside it is {graph.digest()[:8]}"
        raise PlanError(where, [Fault("plan", text, "write both with rpeg plan --out")])
    return Bundle(plan, check(graph), record["recipe"], record["cluster"])


def _faults(record: dict[str, Any]) -> list[Fault]:
    known = f"a plan file has {', '.join(_FIELDS)}"
    faults = [Fault(name, "is unknown", known) for name in sorted(set(record) - {*_FIELDS})]
    faults += [Fault(name, "is missing", known) for name in _FIELDS if name not in record]
    faults += [
        Fault(name, f"is {record[name]!r}", "write it as text")
        for name in _TEXTS
        if not isinstance(record.get(name, ""), str)
    ]
    return faults


def write_bundle(path: Path, bundle: Bundle) -> None:
    """Replace the file at ``path`` by a bundle in one atomic step."""
    write_text(path, to_json(bundle))


def read_bundle(path: Path) -> Bundle:
    """Return the bundle, or the plan alone, of a file.

    Raises:
        PlanError: when it cannot be read, and as `from_json`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        remedy = "give what rpeg plan --out has written, or the JSON of a plan"
        raise PlanError(str(path), [Fault("file", f"cannot be read: {error}", remedy)]) from error
    return from_json(text, str(path))
