"""V10 gradients and weights, V13 seeds."""

from __future__ import annotations

from typing import Any

import pytest

from rpeg.graph.access import Access, Mode
from rpeg.graph.data import Column, Data, DataKind, Lifetime, ModelRef, Per
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Stage, StageKind


def with_critic(minimal: Graph, edit: Any) -> Graph:
    """A second trained model beside the actor."""
    return edit.add(
        minimal,
        ModelRef("critic"),
        Data("critic.grads", DataKind.STREAM, (Column("grads", "float32"),), Per.STEP, "critic", 0),
        Data("critic.weights", DataKind.STATE, (), Per.RUN, "critic", lifetime=Lifetime.SAVED),
        Stage("train_critic", StageKind.TRAIN, "critic"),
        Stage("update_critic", StageKind.UPDATE, "critic"),
        Access("train_critic", "rollouts", Mode.READ),
        Access("train_critic", "critic.weights", Mode.READ, delay=1),
        Access("train_critic", "critic.grads", Mode.WRITE),
        Access("update_critic", "critic.grads", Mode.READ),
        Access("update_critic", "critic.weights", Mode.UPDATE),
    )


def test_v10_gradients_of_another_model(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = with_critic(minimal, edit)
    assert broken(graph) == []
    graph = edit.add(graph, Access("update_critic", "grads", Mode.READ))
    assert broken(graph) == [("V10", ("update_critic", "train"), "updates critic with gradients of actor")]


@pytest.mark.parametrize(("delay", "versions"), [(0, 1), (2, 2)])
def test_v10_training_on_another_version_than_the_one_replaced(
    minimal: Graph, edit: Any, broken: Any, delay: int, versions: int
) -> None:
    graph = edit.data(edit.access(minimal, "train", "weights", delay=delay), "weights", versions=versions)
    problems = [problem for problem in broken(graph) if problem[0] != "V4"]
    text = f"reads weights {delay} steps back, update replaces version t-1"
    assert problems == [("V10", ("train", "update"), text)]


def test_v10_training_without_the_weights(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.drop(minimal, "train", "weights")
    assert broken(graph) == [("V10", ("train", "update"), "reads nothing that update makes (weights)")]


def test_v10_an_update_of_no_model_is_a_controller(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.add(minimal, Stage("kl_control", StageKind.UPDATE), Access("kl_control", "grads", Mode.READ))
    assert broken(graph) == []


def test_v13_random_numbers_without_a_seed(minimal: Graph, edit: Any, broken: Any) -> None:
    graph = edit.access(minimal, "gen", "prompts", columns=("text",))
    assert broken(graph) == [("V13", ("gen",), "draws random numbers without a seed")]
