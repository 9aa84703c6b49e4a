"""V6 versions kept, V7 staleness, V11 recorded columns, V12 refresh, V14 checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rpeg.graph.access import Access, Bound, Mode, Refresh
from rpeg.graph.data import Column, Data, DataKind, Lifetime, Per
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Stage, StageKind
from rpeg.graph.validate import validate


def stale(minimal: Graph, edit: Any, k: int) -> Graph:
    """The generator reads the weights k + 1 versions back, and everything else allows it."""
    graph = edit.access(minimal, "gen", "weights", delay=k + 1)
    graph = edit.data(graph, "weights", versions=k + 1)
    return edit.contract(edit.data(graph, "rollouts", lifetime=Lifetime.SAVED), max_staleness=k)


def test_staleness_that_everything_allows(minimal: Graph, edit: Any, broken: Any) -> None:
    assert [broken(stale(minimal, edit, k)) for k in range(1, 4)] == [[], [], []]


def test_v6_an_overwritten_version(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.data(stale(minimal, edit, 2), "weights", versions=1)
    assert broken(graph) == [("V6", ("weights", "gen"), "gen reads 3 steps back, 1 version(s) kept")]
    assert validate(graph)[0].hint == "keep 3 versions or read with AT_LEAST"
    assert broken(edit.access(graph, "gen", "weights", bound=Bound.AT_LEAST)) == []


def test_v6_is_about_states(minimal: Graph, edit: Any, broken: Any) -> None:
    assert broken(edit.access(minimal, "update", "grads", delay=2)) == [
        ("V7", ("gen",), "samples are up to 2 versions old, the contract allows 0"),
        ("V14", ("rollouts",), "is needed to resume but its lifetime is step"),
    ]


def test_v7_older_than_the_contract_allows(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.contract(stale(minimal, edit, 2), max_staleness=1)
    assert broken(graph) == [("V7", ("gen",), "samples are up to 2 versions old, the contract allows 1")]


def test_v7_counts_samples_that_are_carried_over(minimal: Graph, edit: Any, broken: Any) -> None:
    unfinished = Data("unfinished", DataKind.STATE, (), Per.SAMPLE, max_carry=2, lifetime=Lifetime.SAVED)
    graph = edit.add(stale(minimal, edit, 1), unfinished, Access("gen", "unfinished", Mode.UPDATE))
    assert broken(graph) == [("V7", ("gen",), "samples are up to 3 versions old, the contract allows 1")]


def without(graph: Graph, column: str) -> Graph:
    data = {d.name: d for d in graph.data}["rollouts"]
    kept = replace(data, columns=tuple(c for c in data.columns if c.name != column))
    return replace(graph, data=tuple(kept if d.name == "rollouts" else d for d in graph.data))


@pytest.mark.parametrize("column", ["logp", "version"])
def test_v11_stale_samples_without_their_record(minimal: Graph, edit: Any, broken: Any, column: str) -> None:
    graph = without(stale(minimal, edit, 1), column)
    assert broken(graph) == [("V11", ("rollouts",), f"samples are stale but gen does not record {column}")]
    assert validate(graph)[0].hint == f"add the column {column} to rollouts"
    assert broken(without(minimal, column)) == []


def test_v11_a_record_that_nobody_reads(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.access(stale(minimal, edit, 1), "train", "rollouts", columns=("tokens", "version"))
    assert broken(graph) == [("V11", ("rollouts",), "samples are stale but train does not read logp")]


@pytest.mark.parametrize("refresh", [Refresh.REQUEST, Refresh.TOKEN])
def test_v11_fresh_weights_within_a_step_count_as_stale(
    minimal: Graph, edit: Any, broken: Any, refresh: Refresh
) -> None:
    graph = edit.stage(edit.access(minimal, "gen", "weights", refresh=refresh), "gen", heads=("kv_keep",))
    assert broken(graph) == []
    problem = ("V11", ("rollouts",), "samples are stale but gen does not record version")
    assert broken(without(graph, "version")) == [problem]


def test_v12_new_weights_within_a_sample_need_a_kv_policy(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.access(minimal, "gen", "weights", refresh=Refresh.TOKEN)
    assert broken(graph) == [("V12", ("gen",), "switches weights within a sample without a KV policy")]
    assert broken(edit.stage(graph, "gen", heads=("kv_recompute",))) == []
    assert broken(edit.access(minimal, "gen", "weights", refresh=Refresh.REQUEST)) == []


def test_v14_a_state_that_a_checkpoint_would_lose(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.data(minimal, "weights", lifetime=Lifetime.RUN)
    assert broken(graph) == [("V14", ("weights",), "is needed to resume but its lifetime is run")]


def test_v14_rollouts_made_ahead_are_saved(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.data(stale(minimal, edit, 1), "rollouts", lifetime=Lifetime.STEP)
    assert broken(graph) == [("V14", ("rollouts",), "is needed to resume but its lifetime is step")]


def test_v14_unfinished_samples_are_saved(minimal: Graph, edit: Any, broken: Any) -> None:
    unfinished = Data("unfinished", DataKind.STATE, (Column("tokens", "int64"),), Per.SAMPLE, max_carry=1)
    graph = edit.contract(stale(minimal, edit, 1), max_staleness=2)
    graph = edit.add(graph, unfinished, Access("gen", "unfinished", Mode.WRITE))
    assert broken(graph) == [("V14", ("unfinished",), "is needed to resume but its lifetime is step")]


def test_v14_nothing_is_saved_twice(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.data(minimal, "rollouts", lifetime=Lifetime.SAVED)
    assert broken(graph) == [("V14", ("rollouts",), "is saved but can be recomputed")]


def filtered(graph: Graph, edit: Any, *names: str) -> Graph:
    """A filter between generation and training passes on the columns ``names``."""
    kept = Data("kept", DataKind.STREAM, tuple(Column(n, "float32") for n in names), Per.SAMPLE, versions=0)
    return edit.add(
        edit.drop(graph, "train", "rollouts"),
        kept,
        Stage("filter", StageKind.FILTER),
        Access("filter", "rollouts", Mode.READ),
        Access("filter", "kept", Mode.WRITE),
        Access("train", "kept", Mode.READ),
    )


def test_v11_follows_the_samples_through_a_filter(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = stale(minimal, edit, 1)
    assert broken(filtered(graph, edit, "tokens", "logp", "version")) == []
    problem = ("V11", ("kept",), "samples are stale but filter does not record logp")
    assert broken(filtered(graph, edit, "tokens", "version")) == [problem]


def test_v11_what_nobody_trains_on_needs_no_record(minimal: Graph, edit: Any, broken: Any) -> None:
    """A greedy answer whose reward the others are compared with."""
    graph = edit.add(
        stale(minimal, edit, 1),
        Data("answers", DataKind.STREAM, (Column("tokens", "int64"),), Per.GROUP, lifetime=Lifetime.SAVED),
        Stage("greedy", StageKind.GENERATE, "actor"),
        Access("greedy", "weights", Mode.READ, delay=2),
        Access("greedy", "answers", Mode.WRITE),
        Stage("compare", StageKind.ADVANTAGE),
        Access("compare", "answers", Mode.READ),
        Data("advantages", DataKind.STREAM, (Column("advantage", "float32"),), Per.SAMPLE, versions=0),
        Access("compare", "advantages", Mode.WRITE),
        Access("train", "advantages", Mode.READ),
    )
    assert broken(graph) == []


def test_v14_a_batch_that_waits_until_the_next_step_is_saved(minimal: Graph, edit: Any, broken: Any) -> None:
    """Retimed by one step a synchronous graph has no stale samples, but a batch between the steps all the same."""
    graph = edit.access(edit.access(minimal, "gen", "weights", delay=0), "train", "rollouts", delay=1)
    assert broken(graph) == [("V14", ("rollouts",), "is needed to resume but its lifetime is step")]
    assert broken(edit.data(graph, "rollouts", lifetime=Lifetime.SAVED)) == []
