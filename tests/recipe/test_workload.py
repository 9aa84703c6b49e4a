"""Workloads: what a plan is made for, with every fault named."""

from pathlib import Path

import pytest

from rpeg.errors import GraphError, RecipeError
from rpeg.recipe.workload import is_workload, load_workload

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "stages", "rows"), [("ppo_8b", 12, 512), ("ppo_70b", 12, 1024), ("grpo_7b", 7, 512 * 16)]
)
def test_examples_are_right(name: str, stages: int, rows: int) -> None:
    workload = load_workload(EXAMPLES / f"{name}.yaml")
    graph = workload.graph()
    assert is_workload(EXAMPLES / f"{name}.yaml")
    assert len(graph.stages) == stages
    assert graph.contract.prompts.evaluate(graph.env) * graph.contract.group.evaluate(graph.env) == rows


def test_a_training_recipe_is_none() -> None:
    assert not is_workload(EXAMPLES / "arithmetic.yaml")


def test_overrides_reach_parameters_and_lengths() -> None:
    overrides = ["algorithm.mini_batches=8", "response_tokens.mean=2048", "algorithm.whiten=true"]
    workload = load_workload(EXAMPLES / "ppo_8b.yaml", overrides)
    assert workload.response_tokens.mean == 2048
    assert workload.graph().contract.updates_per_step == 8


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["models.x=y"], "models.x: is no role of the graph; its roles are actor, critic, rm, ref"),
        (["foo=1"], "foo: there is no such key; the keys are name, algorithm, models"),
        (["prompt_tokens.mean=-1", "dtype=int"], "2 faults"),
        (["algorithm.name=pppo"], "algorithm.name: input should be 'grpo'"),
        (["models.rm=null"], "models.rm: input should be a valid string"),
        (["nothing"], "override 'nothing': has no '='"),
        (["models={actor: llama-3.1-8b}"], "models.critic: is missing: a stage of ppo uses it"),
    ],
)
def test_faults_say_what_would_be_right(overrides: list[str], text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_workload(EXAMPLES / "ppo_8b.yaml", overrides)
    assert text in str(caught.value)


def test_parameters_are_the_algorithms_own() -> None:
    with pytest.raises(GraphError, match="-3"):
        load_workload(EXAMPLES / "ppo_8b.yaml", ["algorithm.prompts=-3"])
    with pytest.raises(GraphError, match="is no parameter of ppo"):
        load_workload(EXAMPLES / "ppo_8b.yaml", ["algorithm.clip=1"])
