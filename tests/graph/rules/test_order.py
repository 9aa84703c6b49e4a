"""V4 cycles without delay, V9 what dangles or is dead."""

from __future__ import annotations

from typing import Any

from rpeg.graph.access import Access, Mode
from rpeg.graph.data import Column, Data, DataKind, Per
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Effect, Stage, StageKind


def test_v4_names_the_stages_of_the_loop(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.access(minimal, "gen", "weights", delay=0)
    text = "gen -> train -> update -> gen can never start: no delay on the cycle"
    assert broken(graph) == [("V4", ("gen", "train", "update"), text)]


def test_v4_a_stage_that_waits_for_itself(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.add(minimal, Access("train", "grads", Mode.READ))
    assert broken(graph) == [("V4", ("train",), "train -> train can never start: no delay on the cycle")]


def test_v4_different_columns_are_no_dependence(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.data(minimal, "grads", columns=(Column("grads", "float32"), Column("norm", "float32")))
    graph = edit.access(graph, "train", "grads", columns=("grads",))
    graph = edit.access(graph, "update", "grads", columns=("grads",))
    graph = edit.add(
        graph,
        Access("update", "grads", Mode.WRITE, ("norm",)),
        Stage("log", StageKind.VERIFY, effects=frozenset({Effect.HOST_IO})),
        Access("log", "grads", Mode.READ, ("norm",)),
    )
    assert broken(graph) == []


def test_v9_nobody_writes_it(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.add(
        minimal,
        Data("scores", DataKind.STREAM, (Column("reward", "float32"),), Per.SAMPLE),
        Access("train", "scores", Mode.READ),
    )
    assert broken(graph) == [("V9", ("scores",), "column reward is read by train but nothing writes it")]


def test_v9_nobody_writes_one_column_of_it(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.access(minimal, "gen", "rollouts", columns=("tokens", "logp"))
    assert broken(graph) == [("V9", ("rollouts",), "column version is read by train but nothing writes it")]


def test_v9_nobody_uses_it(minimal: Graph, edit: Any, broken: Any) -> None:
    dead = Stage("ref", StageKind.FORWARD, "actor")
    graph = edit.add(minimal, dead, Access("ref", "rollouts", Mode.READ))
    assert broken(graph) == [("V9", ("ref",), "leads to no update, save or evaluation")]


def test_v9_a_stage_with_an_effect_is_its_own_purpose(minimal: Graph, edit: Any, broken: Any) -> None:
    upload = Stage("upload", StageKind.FORWARD, effects=frozenset({Effect.NETWORK}))
    assert broken(edit.add(minimal, upload, Access("upload", "rollouts", Mode.READ))) == []
