"""Firings as events."""

from __future__ import annotations

from typing import Any

from rpeg.algorithms.ppo import ppo
from rpeg.graph.dim import Dim
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import KnownCosts
from rpeg.plan.firings import event_id, num_events, row_parts
from rpeg.plan.lower import lower
from rpeg.transforms.registry import parse


def test_a_stage_has_as_many_events_as_firings(make: Any) -> None:
    graph = make.graph({"gen": 4, "train": 1, "eval": Dim("1 / 10")}, [], [])
    assert [num_events(graph, stage) for stage in ("gen", "train", "eval")] == [4, 1, 1]


def test_names_of_events() -> None:
    assert event_id("train", 1) == "train.1"


STAGES = ("gen", "gae", "train_actor", "update_actor", "train_critic", "update_critic", "kl_control", "publish")


def test_sweeps_fire_again_over_the_same_parts() -> None:
    graph = ppo(8, mini_batches=2, passes=3)
    assert [num_events(graph, stage) for stage in STAGES] == [1, 1, 6, 6, 6, 6, 1, 1]
    assert [row_parts(graph, stage) for stage in STAGES] == [1, 1, 2, 6, 2, 6, 1, 1]
    finer = parse("fire{stage=train_actor,rows=2}").apply(graph)
    assert [num_events(finer, stage) for stage in ("train_actor", "update_actor")] == [12, 6]
    assert row_parts(finer, "train_actor") == 4


def test_each_sweep_waits_for_the_updates_of_the_one_before() -> None:
    """Two mini-batches in two sweeps, advantages in two parts: the second sweep needs the first part again."""
    graph = parse("fire{stage=gae,rows=4}").apply(ppo(8, mini_batches=2, passes=2))
    lowered = lower(graph, bind_local(graph), KnownCosts({}))
    into = {
        (arc.src, arc.dst): arc.tokens for arc in lowered.arcs if arc.reason in ("data:advantages", "data:actor.grads")
    }
    assert {pair: tokens for pair, tokens in into.items() if "actor" in pair[1]} == {
        ("gae.0", "train_actor.0"): 0,
        ("gae.1", "train_actor.1"): 0,
        ("gae.0", "train_actor.2"): 0,
        ("gae.1", "train_actor.3"): 0,
        **{(f"train_actor.{n}", f"update_actor.{n}"): 0 for n in range(4)},
    }
    weights = {
        (arc.src, arc.dst): arc.tokens
        for arc in lowered.arcs
        if arc.reason == "state:actor.master" and arc.dst.startswith("train_actor")
    }
    assert weights == {
        ("update_actor.3", "train_actor.0"): 1,
        ("update_actor.0", "train_actor.1"): 0,
        ("update_actor.1", "train_actor.2"): 0,
        ("update_actor.2", "train_actor.3"): 0,
    }
    (order,) = [slots for resource, slots in bind_local(graph).order if any(s.stage == "gen" for s in slots)]
    pairs = [(slot.stage, slot.firing) for slot in order if slot.stage.endswith("_actor")]
    assert pairs == [(f"{kind}_actor", n) for n in range(4) for kind in ("train", "update")]
