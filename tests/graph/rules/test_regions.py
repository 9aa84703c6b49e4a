"""V15 loops inside stages: bounded trips, what the body takes from outside, and the rules inside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rpeg.graph.access import Access, Mode
from rpeg.graph.data import Column, Data, DataKind, Per, Symbol, SymbolKind
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.region import Region
from rpeg.graph.stage import Effect, Grain, Stage, StageKind
from rpeg.graph.validate import validate

TURNS = Symbol("turns", "1", SymbolKind.RANDOM, "")


def conversation(minimal: Graph, *names: str) -> Graph:
    """A loop body that takes ``names`` from outside."""
    data = tuple(Data(name, DataKind.EXTERNAL, (), Per.SAMPLE) for name in names)
    return replace(minimal, name="turn", data=data, stages=(), accesses=())


def looped(minimal: Graph, edit: Any, body: Graph, trips: str = "4") -> Graph:
    return edit.stage(minimal, "gen", body=Region("turn", Dim(trips), body))


def talking(minimal: Graph, delay: int, **fields: Any) -> Graph:
    """A body in which one stage answers what was said ``delay`` turns before."""
    said = Data("said", DataKind.STATE, (Column("text", "int64"),), Per.SAMPLE)
    stages = (Stage("answer", StageKind.ENVIRONMENT, **fields),)
    accesses = (Access("answer", "said", Mode.READ, delay=delay), Access("answer", "said", Mode.UPDATE))
    return replace(minimal, name="turn", data=(said,), stages=stages, accesses=accesses)


def test_trips_with_a_symbol_that_nobody_declared(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = looped(minimal, edit, conversation(minimal), "max(turns, 4)")
    text = "its trips max(turns, 4) use turns, which has no bound"
    assert broken(graph) == [("V15", ("gen",), text)]


def test_trips_that_grow_without_bound(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.add(looped(minimal, edit, conversation(minimal), "max(turns, 4)"), TURNS)
    assert broken(graph) == [("V15", ("gen",), "its trips max(turns, 4) grow without bound with turns")]
    assert validate(graph)[0].hint == "take the smaller one of them and a number: min(..., 10)"


@pytest.mark.parametrize("trips", ["1", "G", "min(turns, 4)", "min(ceil(1 / turns), B)", "2 * min(turns, G) + B"])
def test_trips_with_a_bound(minimal: Graph, edit: Any, broken: Any, trips: str) -> None:
    assert broken(edit.add(looped(minimal, edit, conversation(minimal), trips), TURNS)) == []


def test_a_body_that_uses_what_its_stage_does_not_access(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = looped(minimal, edit, conversation(minimal, "prompts", "tools", "weights"))
    assert broken(graph) == [("V15", ("gen",), "its body uses tools, which it does not access")]
    assert validate(graph)[0].hint == "add the accesses to the stage"


def test_delays_inside_count_turns(minimal: Graph, edit: Any, broken: Any) -> None:
    assert broken(looped(minimal, edit, talking(minimal, delay=1))) == []
    text = "inside, V4 answer: answer -> answer can never start: no delay on the cycle"
    assert broken(looped(minimal, edit, talking(minimal, delay=0))) == [("V15", ("gen",), text)]
    text = "inside, V6 said, answer: answer reads 3 steps back, 1 version(s) kept"
    assert broken(looped(minimal, edit, talking(minimal, delay=3))) == [("V15", ("gen",), text)]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"firings": Dim("8"), "grain": Grain.GROUP}, "V8 answer: 8 firings of 1 rows split groups of 2"),
        ({"effects": frozenset({Effect.RNG})}, "V13 answer: draws random numbers without a seed"),
        ({"yields": Dim("keep")}, "V1 answer: uses the undeclared symbol keep"),
        ({"firings": Dim("G - 2")}, "V3 answer: firings is 0"),
    ],
)
def test_the_rules_hold_inside(minimal: Graph, edit: Any, broken: Any, fields: dict[str, Any], text: str) -> None:
    graph = looped(minimal, edit, talking(minimal, 1, **fields))
    assert broken(graph) == [("V15", ("gen",), f"inside, {text}")]


def test_the_body_sees_the_symbols_around_it(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = looped(minimal, edit, talking(minimal, 1, yields=Dim("min(turns, 1)")))
    assert broken(edit.add(graph, TURNS)) == []


def test_a_loop_in_a_loop(minimal: Graph, edit: Any, broken: Any) -> None:
    inner = Region("token", Dim("turns"), conversation(minimal, "said"))
    graph = edit.add(looped(minimal, edit, talking(minimal, 1, body=inner)), TURNS)
    text = "inside, V15 answer: its trips turns grow without bound with turns"
    assert broken(graph) == [("V15", ("gen",), text)]
