"""V3 sizes and rates, V8 grain."""

from __future__ import annotations

from typing import Any

import pytest

from rpeg.graph.access import Access, Mode
from rpeg.graph.data import Column, Data, DataKind, Per, Symbol, SymbolKind
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Grain, Stage, StageKind
from rpeg.graph.validate import validate


@pytest.mark.parametrize(
    ("prompts", "text"),
    [
        ("0", "prompts is 0"),
        ("B - 5", "prompts is -1"),
        ("B / 3", "prompts is 4/3"),
        ("1 / (B - 4)", "prompts 1 / (B - 4): divides by zero"),
        ("keep", "prompts keep: symbol keep has no value (known: B, G)"),
    ],
)
def test_v3_a_batch_of_no_size(minimal: Graph, edit: Any, broken: Any, prompts: str, text: str) -> None:
    graph = edit.add(minimal, Symbol("keep", "1", SymbolKind.RANDOM, "share of the groups with spread"))
    assert broken(edit.contract(graph, prompts=Dim(prompts))) == [("V3", ("contract",), text)]


def test_v3_groups_of_no_size(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.contract(minimal, group=Dim("G - 2"))
    assert broken(graph) == [("V3", ("contract",), "group is 0")]


@pytest.mark.parametrize(
    ("firings", "text"), [("0", "firings is 0"), ("1 - G", "firings is -1"), ("3 / G", "firings is 3/2")]
)
def test_v3_firings_that_are_no_count(minimal: Graph, edit: Any, broken: Any, firings: str, text: str) -> None:
    graph = edit.stage(minimal, "update", firings=Dim(firings))
    assert broken(graph) == [("V3", ("update",), text)]


def test_v3_a_stage_may_act_in_every_eighth_step(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.add(minimal, Stage("eval", StageKind.EVALUATE, firings=Dim("1 / 8")))
    assert broken(graph) == []


def test_v3_firings_divide_the_batch(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.stage(minimal, "train", firings=Dim("3"))
    assert broken(graph) == [("V3", ("train",), "3 firings do not divide the batch of 8 rows")]
    assert validate(graph)[0].hint == "possible: 1, 2, 4, 8"


def test_v3_rows_pass_in_every_step(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.stage(minimal, "train", firings=Dim("1 / 2"))
    assert broken(graph) == [("V3", ("train",), "1/2 firings do not divide the batch of 8 rows")]


def test_v3_a_long_list_of_divisors_is_cut(minimal: Graph, edit: Any) -> None:
    graph = edit.stage(edit.contract(minimal, prompts=Dim("60")), "train", firings=Dim("7"))
    assert validate(graph)[0].hint == "possible: 1, 2, 3, 4, 5, 6, 8, 10, …"


def judged(minimal: Graph, edit: Any, yields: str) -> Graph:
    """A verifier that returns ``yields`` rows per row stands between generation and training."""
    return edit.add(
        minimal,
        Data("scores", DataKind.STREAM, (Column("reward", "float32"),), Per.SAMPLE),
        Stage("reward", StageKind.VERIFY, yields=Dim(yields)),
        Access("reward", "rollouts", Mode.READ),
        Access("reward", "scores", Mode.WRITE),
        Access("train", "scores", Mode.READ),
    )


def test_v3_rows_agree(minimal: Graph, edit: Any, broken: Any) -> None:
    assert broken(judged(minimal, edit, "1")) == []
    text = "reads 8 rows of rollouts and 4 rows of scores"
    assert broken(judged(minimal, edit, "1 / 2")) == [("V3", ("train", "rollouts", "scores"), text)]


def test_v3_rows_of_random_number_are_not_compared(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.add(minimal, Symbol("keep", "1", SymbolKind.RANDOM, ""))
    assert broken(judged(graph, edit, "keep")) == []


def test_v3_a_step_trains_on_the_batch(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.stage(minimal, "gen", yields=Dim("3"))
    assert broken(graph) == [("V3", ("train", "rollouts"), "reads 12 rows, the contract has 8")]


def test_v8_groups_are_not_split(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.stage(minimal, "train", grain=Grain.GROUP, firings=Dim("8"))
    assert broken(graph) == [("V8", ("train",), "8 firings of 1 rows split groups of 2")]
    assert validate(graph)[0].hint == "at most 4 firings, dividing it"
    assert broken(edit.stage(graph, "train", firings=Dim("4"))) == []


def test_v8_sixteen_firings_of_four_with_groups_of_eight(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.contract(minimal, prompts=Dim("8"), group=Dim("8"))
    graph = edit.stage(edit.stage(graph, "gen", yields=Dim("8")), "train", grain=Grain.GROUP, firings=Dim("16"))
    assert broken(graph) == [("V8", ("train",), "16 firings of 4 rows split groups of 8")]


def test_v8_the_whole_batch_comes_at_once(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.stage(minimal, "train", grain=Grain.BATCH, firings=Dim("2"))
    assert broken(graph) == [("V8", ("train",), "needs the whole batch but fires 2 times")]


def test_v8_a_training_step_per_update_is_a_whole_batch_each(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.contract(minimal, updates_per_step=4, passes=2)
    for name, firings, passes in (("train", "2", 2), ("update", "2", 1)):
        graph = edit.stage(graph, name, firings=Dim(firings), passes=passes)
    graph = edit.stage(graph, "train", grain=Grain.BATCH)
    assert broken(graph) == []
    assert broken(edit.stage(graph, "train", firings=Dim("4"))) == [
        ("V8", ("train",), "needs the whole batch but fires 4 times")
    ]
    assert validate(edit.stage(graph, "train", firings=Dim("4")))[0].hint == "set firings to 2"
    assert broken(edit.stage(graph, "update", grain=Grain.BATCH)) == [
        ("V8", ("update",), "needs the whole batch but fires 2 times")
    ]


def test_v3_firings_of_a_stage_without_rows_are_no_more_than_the_rows(minimal: Graph, edit: Any, broken: Any) -> None:
    assert broken(edit.stage(minimal, "update", firings=Dim("9"))) == [
        ("V3", ("update",), "9 firings are more than the 8 rows of a step")
    ]


def test_v3_sweeps_are_positive(minimal: Graph, edit: Any, broken: Any) -> None:
    assert broken(edit.stage(minimal, "train", passes=0)) == [("V3", ("train",), "passes is 0")]


def test_v3_does_not_look_for_all_divisors_of_a_huge_batch(minimal: Graph, edit: Any) -> None:
    huge = edit.stage(edit.contract(minimal, prompts=Dim("1000000000000")), "train", firings=Dim("3"))
    assert "possible: 1, 2, 4, 5, 8, 10, 16, 20, …" in {problem.hint for problem in validate(huge)}
