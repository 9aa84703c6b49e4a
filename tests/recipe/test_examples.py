"""The example recipes: right, without advice, and what their own reward functions return."""

from pathlib import Path

import pytest

from rpeg.environments.rewards import check_reward
from rpeg.recipe.load import load_recipe
from rpeg.recipe.rules import advice
from rpeg.recipe.sources import load_rewards, load_task

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["arithmetic", "own_data", "ppo", "ppo_shared"])
def test_recipes_are_right(name: str) -> None:
    recipe = load_recipe(EXAMPLES / f"{name}.yaml")
    assert advice(recipe, EXAMPLES) == []
    assert load_recipe(recipe.to_yaml()) == recipe
    task = load_task(recipe)
    rewards = load_rewards(recipe, task)
    check_reward(rewards, [task.train(index) for index in range(3)])
    assert len(task.held_out(recipe.evaluation.prompts)) >= 3


def test_the_quickstart_has_the_measured_values() -> None:
    recipe = load_recipe(EXAMPLES / "arithmetic.yaml")
    scratch, warmup = recipe.model.scratch, recipe.warmup
    assert scratch is not None
    assert warmup is not None
    assert (scratch.layers, scratch.hidden, scratch.heads, scratch.intermediate) == (2, 128, 4, 320)
    # Per layer: query, key, value and output 4 * 128 * 128, gate, up and down 3 * 128 * 320, two norms of 128 and the
    # norms of query and key, 32 each; beside the layers: 64 tied embeddings of 128 and the last norm.
    assert 2 * (4 * 128 * 128 + 3 * 128 * 320 + 2 * 128 + 2 * 32) + 64 * 128 + 128 == 385_792
    assert (warmup.steps, warmup.batch_size, warmup.lr, warmup.working_share) == (1500, 32, 3e-3, 0.4)
    algorithm = recipe.algorithm
    assert (algorithm.prompts, algorithm.group_size, algorithm.updates_per_step) == (32, 8, 2)
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.std_normalise) == (0.2, 0.28, False)
    assert (recipe.sampling.max_new_tokens, recipe.optimizer.lr, recipe.optimizer.warmup_updates) == (48, 1e-4, 10)
    assert (recipe.run.seed, recipe.run.steps, recipe.run.threads) == (4, 60, 1)


def test_own_rewards_by_hand() -> None:
    recipe = load_recipe(EXAMPLES / "own_data.yaml")
    task = load_task(recipe)
    problem = next(p for p in (task.train(i) for i in range(task.size or 0)) if p.columns["tolerance"] == 10)
    right = int(problem.answer)
    scores = load_rewards(recipe, task).score([problem] * 3, [f"{right}", f"it is {right + 5}", "no"])
    # 1 - 0/10, 1 - 5/10, no number; short: 1 - length/8.
    assert scores.values["close_to_answer"] == [1.0, 0.5, 0.0]
    assert scores.values["short"] == pytest.approx([1 - len(f"{right}") / 8, 0.0, 0.75])
    assert scores.totals[2] == pytest.approx(0.075)
