"""Overrides and references."""

from collections.abc import Callable

import pytest

from rpeg.recipe.load import load_recipe

Faults = Callable[..., list[str]]


def test_values_are_typed_as_in_yaml(right: str) -> None:
    recipe = load_recipe(
        right,
        [
            "algorithm.group_size=16",
            "optimizer.lr=1e-3",
            "optimizer.betas=[0.8,0.9]",
            "algorithm.std_normalise=true",
            "run.device=cpu",
            "data.task_options.min_terms=2",
            "run.threads=2",
        ],
    )
    assert recipe.algorithm.group_size == 16
    assert recipe.sampling.slots == 32 * 16
    assert recipe.optimizer.lr == 1e-3
    assert recipe.optimizer.betas == (0.8, 0.9)
    assert recipe.algorithm.std_normalise is True
    assert recipe.data.task_options == {"min_terms": 2}


def test_the_last_one_counts_and_null_takes_away(right: str) -> None:
    recipe = load_recipe(right, ["run.steps=5", "warmup.steps=10", "warmup=null", "run.steps=6", "run.threads=null"])
    assert (recipe.run.steps, recipe.warmup) == (6, None)
    assert load_recipe(right, ["warmup.steps=10"]).warmup is not None


def test_a_section_is_replaced_as_a_whole(right: str) -> None:
    assert load_recipe(right, ["optimizer={lr: 0.5}", "optimizer.eps=1e-6"]).optimizer.eps == 1e-6
    assert load_recipe(right, ["evaluation={every_steps: 0}"]).evaluation.prompts == 256


def test_an_element_of_a_list(right: str) -> None:
    listed = right + "reward:\n  functions:\n    - function: task\n    - {function: exact, weight: 2}\n"
    recipe = load_recipe(listed, ["reward.functions.1.weight=0.5"])
    assert [item.weight for item in recipe.reward.functions] == [1.0, 0.5]


def test_an_element_that_is_not_there(faults_of: Faults, right: str) -> None:
    listed = right + "reward:\n  functions:\n    - function: task\n"
    assert faults_of("reward.functions.4.weight=0.5", text=listed) == [
        "reward.functions.4.weight: list index out of range (override); set the section it belongs to as a whole"
    ]


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("run.steps", "override 'run.steps': has no '='; write run.steps=..., a whole number of at least 1"),
        ("run.steps 5", "override 'run.steps 5': has no '='; write run.steps=..., a whole number of at least 1"),
        ("run.steps:5", "override 'run.steps:5': has no '='; write run.steps=..., a whole number of at least 1"),
        ("nonsense", "override 'nonsense': has no '='; write key=value, as in run.steps=100"),
        ("=5", "override '=5': has no key; write key=value, as in run.steps=100"),
        ("", "override '': has no '='; write key=value, as in run.steps=100"),
        ("+run.steps=5", "+run.steps: there is no such key (override); did you mean run.steps?"),
        ("run.steps=[1", "run.steps: not YAML: expected ',' or ']', but got '<stream end>' at column 3 (override); "),
    ],
)
def test_overrides_that_cannot_be_read(faults_of: Faults, override: str, fault: str) -> None:
    (found,) = faults_of(override)
    assert found.startswith(fault)


def test_references_to_other_keys(right: str) -> None:
    recipe = load_recipe(right, ["sampling.slots=${algorithm.prompts}", r"data.task_options={}"])
    assert recipe.sampling.slots == 32


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        (
            "sampling.slots=${algorithm.promts}",
            "sampling.slots: holds a reference that leads nowhere: Interpolation key",
        ),
        (
            "sampling.slots=${a b",
            "sampling.slots: holds a reference that cannot be read; ${...} stands for another key",
        ),
    ],
)
def test_references_that_lead_nowhere_are_one_fault(faults_of: Faults, override: str, fault: str) -> None:
    (found,) = faults_of(override)
    assert found.startswith(fault)
    assert found.endswith(r"write \${ for the signs themselves")
