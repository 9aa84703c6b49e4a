"""What of a rewritten graph does not fit the recipe's loss or its critic: said before the start, and with the key."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runtime.conftest import Recorder, tiny_recipe
from tests.runtime.test_algorithms import settings

from rpeg.errors import InvalidInput
from rpeg.graph.graph import Graph
from rpeg.observe.run_folder import RunFolder
from rpeg.recipe.graph import build_graph
from rpeg.recipe.schema import Recipe
from rpeg.runtime.run import train
from rpeg.runtime.support_learning import learning_advice, learning_faults
from rpeg.search.structures import structures

RETIMED = "retime{stage=gen,r=-1}"
RELAX = "relax{stage=gen,steps=1}"
CARRY = "partial_rollout{stage=gen,budget=4096,max_carry=1}"
IN_FLIGHT = "in_flight{stage=gen,kv=keep}"


def recipe_of(name: str, **algorithm: Any) -> Recipe:
    """Return the tiny recipe with another algorithm."""
    return tiny_recipe(algorithm=settings(name, **algorithm))


def planned(recipe: Recipe, staleness: int, *rewrites: str, allow: tuple[str, ...] = ()) -> Graph:
    """Return the structure that a search makes with these rewrites."""
    (found,) = (s for s in structures(build_graph(recipe), staleness, allow) if s.rewrites == rewrites)
    return found.graph


@pytest.mark.parametrize(
    ("staleness", "rewrites", "what"),
    [
        (1, (RELAX, RETIMED), None),
        (1, (CARRY,), None),
        (2, (RELAX, RELAX, "retime{stage=gen,r=-2}"), "none with staleness 2: uncorrected losses"),
        (2, (IN_FLIGHT, RELAX, RELAX, "retime{stage=gen,r=-2}"), "none with staleness 2: uncorrected losses"),
        (2, (CARRY, RELAX, RETIMED), "none with staleness 1 and answers carried over 1 steps: uncorrected losses"),
    ],
)
def test_answers_of_a_plan_are_no_older_than_an_uncorrected_loss_bears(
    staleness: int, rewrites: tuple[str, ...], what: str | None
) -> None:
    recipe = recipe_of("grpo")
    graph = planned(recipe, staleness, *rewrites, allow=("in_flight", "partial_rollout"))
    faults = [str(fault) for fault in learning_faults(graph, recipe)]
    if what is None:
        assert faults == []
    else:
        (fault,) = faults
        assert fault.startswith(f"algorithm.correction: {what}")
        assert "plan with --staleness-max 1" in fault
    advice = list(map(str, learning_advice(graph, recipe)))
    assert [text[:46] for text in advice] == ["algorithm.correction: none with staleness 1: a"] * (staleness == 1)


def test_corrected_answers_of_a_plan_may_be_older() -> None:
    recipe = recipe_of("grpo", correction="truncated")
    graph = planned(recipe, 2, RELAX, RELAX, "retime{stage=gen,r=-2}")
    assert [*learning_faults(graph, recipe), *learning_advice(graph, recipe)] == []


@pytest.mark.parametrize("correction", ["auto", "masked"])
def test_a_rewrite_does_not_switch_the_correction_off(correction: str) -> None:
    rewrites = ["use_recorded_logprob{stage=old}"]
    recipe = recipe_of("grpo", staleness=3, correction=correction, rewrites=rewrites)
    (fault,) = map(str, learning_faults(build_graph(recipe), recipe))
    assert fault.startswith(f"algorithm.correction: {'truncated' if correction == 'auto' else correction}, and in the")
    assert "nothing would be corrected" in fault


def test_a_trunk_that_only_the_plan_shares_is_refused_before_the_start(tmp_path: Any) -> None:
    recipe = recipe_of("ppo")
    shared = planned(recipe, 0, "share_trunk{actor=actor,critic=critic}", allow=("share_trunk",))
    reason = (
        r"critic\.sharing: is none, and in the graph policy and critic are one model \(value, .*set algorithm\.name"
    )
    with pytest.raises(InvalidInput, match=reason):
        train(recipe, lambda: RunFolder(tmp_path), Recorder(), build=lambda _: shared)
    assert list(tmp_path.iterdir()) == []


def test_a_critic_of_its_own_is_refused_where_the_recipe_shares_one() -> None:
    (fault,) = learning_faults(build_graph(recipe_of("ppo")), recipe_of("ppo_shared"))
    assert str(fault).startswith("critic.sharing: is full, and the graph has a critic of its own (value, ")


@pytest.mark.parametrize("name", ["grpo", "ppo", "ppo_shared"])
def test_the_graph_of_a_recipe_fits_it(name: str) -> None:
    recipe = recipe_of(name)
    assert list(learning_faults(build_graph(recipe), recipe)) == []
