"""Graph files: the golden file of every schema stays readable, and what cannot be read says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rpeg.errors import GraphError
from rpeg.graph import json as graph_json
from rpeg.graph.graph import Graph
from rpeg.graph.json import SCHEMA, from_json, to_json
from rpeg.graph.text import to_text
from rpeg.graph.validate import validate

GOLDEN = Path(__file__).parents[1] / "golden"


def test_the_file_of_schema_1_stays_readable() -> None:
    """Never write this file anew: graphs of every schema lie in run folders."""
    text = (GOLDEN / "graph-schema-1.json").read_text()
    graph = from_json(text)
    assert validate(graph) == []
    assert graph.digest() == "2dac5eb02925de7c41f6f44b698b6c6990195df58bdcc67c60c0477565003483"
    assert to_text(graph) + "\n" == (GOLDEN / "graph-schema-1.txt").read_text()
    if SCHEMA == 1:
        assert to_json(graph) == text


def test_there_is_a_golden_file_for_every_schema() -> None:
    assert [(GOLDEN / f"graph-schema-{n}.json").exists() for n in range(1, SCHEMA + 1)] == [True] * SCHEMA


def test_a_file_is_readable_text(minimal: Graph) -> None:
    text = to_json(minimal)
    assert text.endswith("}\n")
    assert list(json.loads(text)) == [
        *("name", "contract", "symbols", "models", "data", "stages", "accesses"),
        *("history", "schema"),
    ]
    assert len(text) < 8000


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "line 1: is not JSON (Expecting value)"),
        ('{"schema": 1,\n"name": }', "line 2: is not JSON (Expecting value)"),
        pytest.param("[" * 100_000, "text: is nested too deeply", id="deep"),
        ("[]", "schema: is missing; this is not a graph file"),
        ("{}", "schema: is missing; this is not a graph file"),
        ('{"schema": "1"}', "schema: is missing; this is not a graph file"),
        ('{"schema": 2}', "schema: is 2; this version reads 1 to 1"),
        ('{"schema": 0}', "schema: is 0; this version reads 1 to 1"),
    ],
)
def test_what_is_no_graph_file(text: str, fault: str) -> None:
    with pytest.raises(GraphError) as caught:
        from_json(text)
    assert str(caught.value).startswith(f"graph file: 1 fault\n  1. {fault}")


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("nmae",), "x", "graph: has unknown fields nmae"),
        (("schema",), True, "graph.schema: is True; expected int"),
        (("contract", "max_staleness"), "0", "graph.contract.max_staleness: is '0'; expected int"),
        (("stages", 1, "kind"), "trian", "graph.stages[1].kind: is 'trian'; one of source, generate,"),
        (("stages", 0, "firings"), 1, "graph.stages[0].firings: is 1; sizes are written as text"),
        (
            ("stages", 0, "firings"),
            "exec('x')",
            "graph.stages[0].firings: is \"exec('x')\": has Call outside the grammar",
        ),
        (("accesses", 1, "dalay"), 1, "graph.accesses[1]: has unknown fields dalay"),
        (("data", 0, "columns"), None, "graph.data[0].columns: is None; expected a list"),
    ],
)
def test_a_wrong_field_is_named_with_its_place(
    minimal: Graph, path: tuple[str | int, ...], value: object, fault: str
) -> None:
    record = json.loads(to_json(minimal))
    place: Any = record
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(GraphError) as caught:
        from_json(json.dumps(record))
    assert f"  1. {fault}" in str(caught.value)


def test_a_missing_field_is_named(minimal: Graph) -> None:
    record = json.loads(to_json(minimal))
    del record["stages"], record["data"]
    with pytest.raises(GraphError, match="graph: lacks data, stages; every Graph has them"):
        from_json(json.dumps(record))


def test_older_files_are_lifted_step_by_step(minimal: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {
        -1: lambda record: {**record, "schema": 0, "title": record["heading"]},
        0: lambda record: (
            {**{k: v for k, v in record.items() if k not in {"title", "heading"}}, "schema": 1}
            | {"name": record["title"]}
        ),
    }
    monkeypatch.setattr(graph_json, "MIGRATIONS", steps)
    record = json.loads(to_json(minimal))
    old = {key: value for key, value in record.items() if key != "name"} | {"heading": "minimal", "schema": -1}
    assert from_json(json.dumps(old)) == minimal


@pytest.mark.parametrize("levels", [16, 200])
def test_regions_inside_regions_have_an_end(minimal: Graph, levels: int) -> None:
    text = to_json(minimal)
    head, tail = text.split('"body": null', 1)
    opened = head + '"body": {"index": "turn", "trips": "2", "graph": '
    with pytest.raises(GraphError, match="text: is nested too deeply; write graphs with rpeg"):
        from_json(opened * levels + text + ("}" + tail) * levels)
    few = from_json(opened * 2 + text + ("}" + tail) * 2)
    assert few.stages[0].body is not None


def test_a_value_inside_hundreds_of_lists_is_refused() -> None:
    with pytest.raises(GraphError):
        from_json('{"schema": 1, "name": ' + "[" * 800 + "]" * 800 + "}")
