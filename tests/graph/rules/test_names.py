"""V1 names, V2 accesses, V5 writers: one graph per way to break each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rpeg.graph.access import Access, Mode
from rpeg.graph.data import Column, Data, DataKind, Per
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Effect, Stage, StageKind
from rpeg.graph.validate import validate


def test_v1_one_name_for_two_things(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.add(minimal, Stage("weights", StageKind.SOURCE))
    assert broken(graph) == [("V1", ("weights",), "the name is used 2 times")]


@pytest.mark.parametrize("name", ["Gen", "1st", "", "a b", "grün", "a-b", "_a", "a\n"])
def test_v1_a_name_outside_the_grammar(minimal: Graph, edit: Any, broken: Any, name: str) -> None:
    graph = edit.add(minimal, Stage(name, StageKind.SOURCE))
    assert broken(graph) == [("V1", (name,), "is no identifier")]


def test_v1_fused_names_are_in_the_grammar(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.add(minimal, Stage("old_logp+value.2", StageKind.SOURCE, effects=frozenset({Effect.NETWORK})))
    assert broken(graph) == []


@pytest.mark.parametrize(("stage", "data", "missing"), [("gen", "seeds", "seeds"), ("critic", "weights", "critic")])
def test_v1_an_access_to_something_undeclared(
    minimal: Graph, edit: Any, broken: Any, stage: str, data: str, missing: str
) -> None:
    graph = edit.add(minimal, Access(stage, data, Mode.READ))
    assert broken(graph) == [("V1", (stage, data), f"{missing} is not declared")]


def test_v1_undeclared_models(minimal: Graph, broken: Any) -> None:
    graph = replace(minimal, models=())
    names = ["grads", "weights", "gen", "train", "update"]
    assert broken(graph) == [("V1", (name,), "uses the undeclared model actor") for name in names]
    assert validate(graph)[0].hint == "declared: none"


def test_v1_undeclared_symbols_wherever_a_size_stands(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.contract(minimal, prompts=Dim("P"))
    graph = edit.stage(graph, "train", firings=Dim("m"))
    graph = edit.stage(graph, "gen", yields=Dim("G * keep"))
    graph = edit.data(graph, "grads", columns=(Column("grads", "float32", (Dim("B"), Dim("H"))),))
    subjects = [("contract", "P"), ("gen", "keep"), ("train", "m"), ("grads", "H")]
    assert broken(graph) == [("V1", (name,), f"uses the undeclared symbol {symbol}") for name, symbol in subjects]
    assert validate(graph)[0].hint == "declared: B, G"


def test_v2_an_unknown_column(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.access(minimal, "train", "rollouts", columns=("tokens", "logp", "version", "reward", "mask"))
    assert broken(graph) == [("V2", ("train", "rollouts"), "no column mask, reward")]
    assert validate(graph)[0].hint == "it has tokens logp version"


def test_v2_update_of_a_stream(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.access(minimal, "train", "grads", mode=Mode.UPDATE)
    assert broken(graph) == [("V2", ("train", "grads"), "updates stream data")]


def test_v2_a_write_to_what_comes_from_outside(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.add(minimal, Data("log", DataKind.EXTERNAL, (), Per.RUN), Access("update", "log", Mode.WRITE))
    assert broken(graph) == [("V2", ("update", "log"), "writes EXTERNAL data")]


def test_v2_a_delay_on_a_write(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.access(minimal, "train", "grads", delay=1)
    assert broken(graph) == [("V2", ("train", "grads"), "has delay 1 on a write")]


def test_v2_a_negative_delay(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.access(minimal, "gen", "prompts", delay=-1)
    assert broken(graph) == [("V2", ("gen", "prompts"), "has delay -1")]


def test_v5_two_writers_of_a_column(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.add(minimal, Access("train", "rollouts", Mode.WRITE, ("logp",)))
    graph = edit.drop(graph, "train", "rollouts")
    graph = edit.add(
        graph, Access("update", "rollouts", Mode.READ, ("tokens",)), Access("train", "rollouts", Mode.WRITE, ("logp",))
    )
    assert broken(graph) == [("V5", ("rollouts", "gen", "train"), "column logp has 2 writers")]


def test_v5_two_writers_of_different_columns_are_fine(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.access(minimal, "gen", "rollouts", columns=("tokens",))
    graph = edit.access(graph, "train", "rollouts", columns=("tokens",))
    graph = edit.add(graph, Access("train", "rollouts", Mode.WRITE, ("logp", "version")))
    assert broken(graph) == []


@pytest.mark.parametrize("merges", [(None, None), ("sum", None)])
def test_v5_two_updates_of_a_state(minimal: Graph, edit: Any, broken: Any, merges: tuple[str | None, ...]) -> None:
    graph = edit.access(minimal, "update", "weights", merge=merges[0])
    graph = edit.add(graph, Access("train", "weights", Mode.UPDATE, merge=merges[1]))
    problems = [problem for problem in broken(graph) if problem[0] == "V5"]
    assert problems == [("V5", ("weights", "update", "train"), "has 2 writers and no merge")]


def test_v5_two_updates_that_merge_are_fine(minimal: Graph, edit: Any, broken: Any) -> None:
    ema = Stage("ema", StageKind.UPDATE)
    graph = edit.access(minimal, "update", "weights", merge="mean")
    graph = edit.add(graph, ema, Access("ema", "weights", Mode.UPDATE, merge="ema(0.99)"))
    assert broken(graph) == []


def test_columns_of_data_without_any(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.add(minimal, Data("nothing", DataKind.EXTERNAL, (), Per.RUN), Access("gen", "nothing", Mode.READ))
    assert broken(graph) == []
