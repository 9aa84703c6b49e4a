"""The schema: defaults, values that follow from others, and writing a recipe back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rpeg.recipe.keys import Place, all_keys, find, stand_in
from rpeg.recipe.load import load_recipe
from rpeg.recipe.overrides import apply_overrides
from rpeg.recipe.schema import Recipe, RewardItem
from rpeg.recipe.source import read_source


def test_defaults_are_decided(right: str) -> None:
    recipe = load_recipe(right)
    scratch = recipe.model.scratch
    assert scratch is not None
    assert (scratch.kv_heads, scratch.head_size, scratch.vocabulary, scratch.init_std) == (4, 32, 64, 0.05)
    assert recipe.sampling.slots == 32 * 8
    assert recipe.reward.functions == (RewardItem(function="task", weight=1.0),)
    assert (recipe.algorithm.correction, recipe.algorithm.old_logprob) == ("none", "recorded")
    assert (recipe.algorithm.clip_low, recipe.algorithm.clip_high) == (0.2, 0.28)
    assert (recipe.warmup, recipe.run.threads, recipe.run.device) == (None, None, "auto")


@pytest.mark.parametrize(
    ("overrides", "correction", "old_logprob"),
    [
        (["algorithm.staleness=1"], "truncated", "recomputed"),
        (["algorithm.staleness=3"], "truncated", "recomputed"),
        (["algorithm.staleness=1", "algorithm.correction=none"], "none", "recorded"),
        (["algorithm.correction=truncated"], "truncated", "recomputed"),
        (["algorithm.old_logprob=recomputed"], "none", "recomputed"),
    ],
)
def test_auto_follows_from_the_staleness(right: str, overrides: list[str], correction: str, old_logprob: str) -> None:
    algorithm = load_recipe(right, overrides).algorithm
    assert (algorithm.correction, algorithm.old_logprob) == (correction, old_logprob)


def test_what_is_written_reads_back_equal(right: str) -> None:
    for overrides in (
        [],
        ["algorithm.staleness=2", "sampling.slots=7"],
        ["warmup={steps: 3}", "optimizer.betas=[0.8, 0.99]", "optimizer.eps=1e-12"],
        ["data.task_options={min_terms: 2}", "run.threads=3"],
    ):
        recipe = load_recipe(right, overrides)
        assert load_recipe(recipe.to_yaml()) == recipe


@settings(max_examples=60)
@given(st.text(alphabet="${}\\ab:#'\" \n0.yes", min_size=1, max_size=12))
def test_any_text_value_survives_writing(text: str) -> None:
    tree = {
        "name": "x",
        "model": {"path": "/"},
        "data": {"task": "arithmetic", "task_options": {"note": text}},
        "algorithm": {"prompts": 1, "group_size": 2},
        "sampling": {"max_new_tokens": 1},
        "optimizer": {"lr": 1.0},
        "run": {"steps": 1},
    }
    recipe = Recipe.model_validate(tree)
    read = apply_overrides(read_source(recipe.to_yaml()), [])
    assert read.faults == ()
    assert read.tree is not None
    assert read.tree["data"]["task_options"] == {"note": text}


def test_every_key_is_described_and_has_a_place() -> None:
    keys = list(all_keys())
    assert len(keys) > 60
    for key in keys:
        place = find(key)
        assert place is not None, key
        assert place.info is not None, key
        assert place.info.description, key
        assert place.info.description.endswith("."), key


def test_stand_ins_make_a_recipe() -> None:
    tree = stand_in(Place(Recipe, (), False, None))
    assert isinstance(tree, dict)
    assert Recipe.model_validate(tree).algorithm.group_size == 8


def test_recipes_do_not_change(right: str) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_recipe(right).run.steps = 3  # type: ignore[misc]
