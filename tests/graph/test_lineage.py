"""Staleness along the lineage of a sample, lead, reachability, cycles without delay."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from rpeg.algorithms.grpo import grpo
from rpeg.graph.access import Access, Mode
from rpeg.graph.contract import Kl, Logprob
from rpeg.graph.data import Column, Data, DataKind, Lifetime, Per
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import (
    generators,
    lead,
    oldest_lineage,
    reachable_backwards,
    staleness,
    waited,
    zero_delay_cycle,
)
from rpeg.graph.stage import Stage, StageKind
from rpeg.graph.validate import validate


def retimed(graph: Graph, steps: int) -> Graph:
    """Move delays from the read of the rollout weights to the reads of the rollouts."""
    accesses = [
        replace(a, delay=a.delay - steps)
        if (a.stage, a.data) == ("gen", "actor.rollout")
        else replace(a, delay=a.delay + steps)
        if a.data == "rollouts" and a.mode is Mode.READ
        else a
        for a in graph.accesses
    ]
    return replace(graph, accesses=tuple(accesses))


@pytest.mark.parametrize("k", range(5))
@pytest.mark.parametrize("kl", [Kl.NONE, Kl.LOSS])
@pytest.mark.parametrize("old", [Logprob.RECORDED, Logprob.RECOMPUTED])
def test_staleness_is_the_delay_minus_one(k: int, kl: Kl, old: Logprob) -> None:
    graph = grpo(4, 2, k, kl=kl, old_logprob=old, evaluate_every_steps=2)
    assert [stage.name for stage in generators(graph)] == ["gen"]
    assert (staleness(graph, "gen"), lead(graph, "gen")) == (k, k)


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_the_lineage_of_a_sample_is_its_way_to_the_update_and_the_way_of_the_weights_back(moved: int) -> None:
    found = oldest_lineage(retimed(grpo(4, 2, 2), moved), "gen")
    assert [(edge.writer, edge.data, edge.reader, edge.delay) for edge in found][-2:] == [
        ("push", "actor.staged", "pull", 0),
        ("pull", "actor.rollout", "gen", 3 - moved),
    ]
    assert sum(edge.delay for edge in found) == 3
    assert all(one.reader == other.writer for one, other in pairwise([*found, found[0]]))


def test_samples_that_nobody_trains_on_have_no_lineage() -> None:
    graph = grpo(4, 2)
    alone = replace(graph, accesses=tuple(a for a in graph.accesses if a.data != "rollouts" or a.writes))
    assert (oldest_lineage(alone, "gen"), staleness(alone, "gen")) == ((), -1)


@pytest.mark.parametrize(("k", "moved"), [(k, moved) for k in range(1, 5) for moved in range(1, k + 1)])
def test_retiming_does_not_change_staleness(k: int, moved: int) -> None:
    graph = retimed(grpo(4, 2, k), moved)
    assert validate(graph) == []
    assert (staleness(graph, "gen"), lead(graph, "gen")) == (k, k - moved)


@pytest.mark.parametrize("k", range(3))
def test_the_state_of_a_kl_controller_does_not_make_samples_older(k: int) -> None:
    """A cycle gen -> train -> kl_control -> kl.coef -> reward -> train has delays too, but carries no weights."""
    graph = grpo(4, 2, k, kl=Kl.LOSS)
    controlled = replace(
        graph,
        data=(
            *graph.data,
            Data("kl", DataKind.STREAM, (Column("kl", "float32"),), Per.STEP),
            Data("kl.coef", DataKind.STATE, (Column("coef", "float32"),), Per.RUN, versions=3, lifetime=Lifetime.SAVED),
        ),
        stages=(*graph.stages, Stage("kl_control", StageKind.UPDATE)),
        accesses=(
            *graph.accesses,
            Access("train", "kl", Mode.WRITE),
            Access("kl_control", "kl", Mode.READ),
            Access("kl_control", "kl.coef", Mode.UPDATE),
            Access("gen", "kl.coef", Mode.READ, delay=3),
            Access("reward", "kl.coef", Mode.READ, delay=1),
            Access("update", "kl.coef", Mode.READ, delay=1),
        ),
    )
    assert validate(controlled) == []
    assert (staleness(controlled, "gen"), lead(controlled, "gen")) == (k, k)


def test_the_oldest_way_counts_for_staleness_and_the_youngest_for_the_lead(minimal: Graph, edit: Any) -> None:
    graph = edit.add(
        minimal, Access("gen", "weights", Mode.READ, delay=4), Access("train", "rollouts", Mode.READ, delay=2)
    )
    assert (staleness(graph, "gen"), lead(graph, "gen")) == (5, 0)


def test_samples_that_are_carried_over_are_older(minimal: Graph, edit: Any) -> None:
    unfinished = Data("unfinished", DataKind.STATE, (), Per.SAMPLE, max_carry=3)
    graph = edit.add(minimal, unfinished, Access("gen", "unfinished", Mode.UPDATE))
    assert (staleness(graph, "gen"), lead(graph, "gen")) == (3, 0)


def test_rows_wait_as_the_delays_on_their_way_say() -> None:
    graph = grpo(4, 2, 2, kl=Kl.LOSS)
    assert {waited(graph, stage.name) for stage in graph.stages} == {0}
    later = retimed(graph, 1)
    assert {stage.name: waited(later, stage.name) for stage in later.stages if waited(later, stage.name) == 0} == {
        name: 0 for name in ("gen", "push", "pull")
    }
    accesses = tuple(replace(a, delay=1) if (a.stage, a.data) == ("advantage", "scores") else a for a in later.accesses)
    assert waited(replace(later, accesses=accesses), "advantage") == 2


def test_samples_that_train_nothing_have_no_staleness(minimal: Graph, edit: Any) -> None:
    unused = edit.drop(minimal, "train", "rollouts")
    assert staleness(unused, "gen") == -1
    frozen = edit.drop(minimal, "gen", "weights")
    assert (staleness(frozen, "gen"), lead(frozen, "gen")) == (-1, 0)


def test_columns_that_nobody_reads_carry_no_lineage(minimal: Graph, edit: Any) -> None:
    graph = edit.access(minimal, "gen", "rollouts", columns=("tokens",))
    graph = edit.access(graph, "train", "rollouts", columns=("logp",))
    assert staleness(graph, "gen") == -1


def test_the_update_of_another_model_is_no_end(minimal: Graph, edit: Any) -> None:
    assert staleness(edit.stage(minimal, "update", model="critic"), "gen") == -1


def test_reachable_backwards(minimal: Graph, edit: Any) -> None:
    assert reachable_backwards(minimal, ["gen"]) == {"gen", "train", "update"}
    graph = edit.drop(minimal, "gen", "weights")
    assert reachable_backwards(graph, ["gen"]) == {"gen"}
    assert reachable_backwards(graph, ["train"]) == {"gen", "train", "update"}
    assert reachable_backwards(graph, []) == set()


def test_zero_delay_cycle(minimal: Graph, edit: Any) -> None:
    assert zero_delay_cycle(minimal) is None
    assert zero_delay_cycle(edit.access(minimal, "train", "weights", delay=0)) == ["train", "update"]
