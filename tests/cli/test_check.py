"""``rpeg check``: what is wrong with a graph file: the rule, the names, the numbers, the remedy; never a traceback."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from rpeg.algorithms.catalog import ALGORITHMS
from rpeg.errors import InvalidInput
from rpeg.graph.diff import diff, diff_text
from rpeg.graph.json import from_json, to_json
from rpeg.graph.validate import check

Record = dict[str, Any]


def of(records: list[Record], **fields: object) -> Record:
    """Return the record with these fields."""
    return next(each for each in records if all(each[name] == value for name, value in fields.items()))


def without_delay(graph: Record) -> None:
    of(graph["accesses"], stage="gen", data="actor.rollout")["delay"] = 0


def too_few_versions(graph: Record) -> None:
    of(graph["accesses"], stage="gen", data="actor.rollout")["delay"] = 3


def two_writers(graph: Record) -> None:
    graph["accesses"].append(of(graph["accesses"], stage="reward", data="scores", mode="write") | {"stage": "gen"})


def split_groups(graph: Record) -> None:
    for stage in graph["stages"]:
        if stage["name"] in ("gen", "reward", "advantage", "train"):
            stage["firings"] = "8"


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        (
            without_delay,
            [
                "V4 gen, reward, advantage, train, update, push, pull: gen -> reward -> advantage -> train -> "
                "update -> push -> pull -> gen can never start: no delay on the cycle; "
                "read one of the states one step back (delay 1)"
            ],
        ),
        (
            too_few_versions,
            [
                "V6 actor.rollout, gen: gen reads 3 steps back, 1 version(s) kept; "
                "keep 3 versions or read with AT_LEAST",
                "V7 gen: samples are up to 2 versions old, the contract allows 0; "
                "shorten the delays or raise max_staleness",
                "V14 rollouts: is needed to resume but its lifetime is step; make it SAVED",
            ],
        ),
        (
            two_writers,
            ["V5 scores, reward, gen: column reward has 2 writers; keep one writer per column"],
        ),
        (
            split_groups,
            ["V8 advantage: 8 firings of 1 rows split groups of 2; at most 4 firings, dividing it"],
        ),
    ],
)
def test_a_broken_rule(
    rpeg: Any, graph_file: Callable[..., Path], change: Callable[[Record], None], faults: list[str]
) -> None:
    ended = rpeg("check", graph_file(change))
    assert (ended.status, ended.out) == (2, "")
    drawn, _, listed = ended.err.partition("\n\n")
    count = f"{len(faults)} fault{'s' if len(faults) > 1 else ''}"
    numbered = [f"  {number}. {fault}" for number, fault in enumerate(faults, 1)]
    assert listed.splitlines() == [f"graph grpo: {count}", *numbered]
    marked = {line.split("<-- ")[1] for line in drawn.splitlines() if "<-- " in line}
    assert {rule for mark in marks(marked) for rule in mark} == {fault.split(" ")[0] for fault in faults}


def marks(found: set[str]) -> Iterator[list[str]]:
    yield from (mark.split(", ") for mark in found)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda graph: graph.update(schema=7), "schema: is 7; this version reads 1 to 1"),
        (lambda graph: graph.pop("schema"), "schema: is missing; this is not a graph file"),
        (
            lambda graph: graph["stages"][0].update(colour="red"),
            "graph.stages[0]: has unknown fields colour; Stage has name, kind, model, heads, grain, firings, passes, "
            "yields, effects, body, source",
        ),
        (
            lambda graph: graph["data"][0].update(kind="river"),
            "graph.data[0].kind: is 'river'; one of stream, state, external",
        ),
        (
            lambda graph: graph["stages"][0].update(firings="__import__('os')"),
            "graph.stages[0].firings: is \"__import__('os')\": has Call outside the grammar; "
            "use whole numbers, declared names, + - * / //, min, max, ceil",
        ),
    ],
)
def test_a_file_that_is_no_graph(
    rpeg: Any, graph_file: Callable[..., Path], change: Callable[[Record], object], fault: str
) -> None:
    ended = rpeg("check", graph_file(change))
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.splitlines()[1:] == [f"  1. {fault}"]


def test_a_graph_that_keeps_the_rules(rpeg: Any, graph_file: Callable[..., Path]) -> None:
    path = graph_file()
    digest = from_json(path.read_text()).digest()
    said = f"grpo {digest[:8]}: 7 stages, 9 data, 19 accesses; the rules V1-V15 hold\n"
    assert rpeg("check", path) == (0, said, "")
    assert json.loads(rpeg("check", path, "--json").out) == {"graph": "grpo", "digest": digest, "problems": []}


def test_problems_as_json(rpeg: Any, graph_file: Callable[..., Path]) -> None:
    ended = rpeg("check", graph_file(split_groups), "--json")
    assert (ended.status, ended.err) == (2, "")
    assert json.loads(ended.out)["problems"] == [
        {
            "rule": "V8",
            "subjects": ["advantage"],
            "text": "8 firings of 1 rows split groups of 2",
            "hint": "at most 4 firings, dividing it",
        }
    ]


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the way to every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


STRANGE = (None, 0, -1, 3, 10**30, 1.5, True, "", "gen", "rollouts", "0", "1/0", "B * G", "Z", [], {}, ["gen"], "\0")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_nothing_in_a_file_leads_to_a_traceback(name: str) -> None:
    """Values replaced by strange ones or by others of the file, records lost and doubled: read, checked, compared."""
    rng, graph = random.Random(name), ALGORITHMS[name](8)
    record = json.loads(to_json(graph))
    ways, refused = list(places(record)), 0
    for _ in range(60):
        broken = deepcopy(record)
        for way in rng.sample(ways, rng.randint(1, 3)):
            change_at(broken, way, rng, record, ways)
        try:
            read = from_json(json.dumps(broken))
            diff_text(graph, read, diff(graph, read))
            check(read)
        except InvalidInput as error:
            refused += bool(str(error))
    assert refused > 20


def change_at(broken: Any, way: tuple[str | int, ...], rng: random.Random, whole: Any, ways: list[Any]) -> None:
    """Replace, drop or double what stands at ``way``, as far as earlier changes left it there."""
    for key in way[:-1]:
        if not isinstance(broken, dict | list) or (isinstance(broken, list) and key >= len(broken)):
            return
        broken = broken.get(key) if isinstance(broken, dict) else broken[key]
    last = way[-1]
    if isinstance(broken, list) and isinstance(last, int) and last < len(broken):
        if rng.random() < 0.5:
            broken.append(deepcopy(broken[last]))
        else:
            del broken[last]
    elif isinstance(broken, dict):
        other: Any = whole
        for key in rng.choice(ways):
            other = other[key]
        broken[last] = rng.choice((*STRANGE, other, other, other))
