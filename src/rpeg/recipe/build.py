"""Turns a checked recipe into the things that the environments know: a task and its rewards."""

from __future__ import annotations

from pathlib import Path

from rpeg.environments.base import Task
from rpeg.environments.catalog import load_task
from rpeg.environments.dataset import load_file_task
from rpeg.environments.rewards import BUILT_IN, Reward, RewardSum, load_reward
from rpeg.errors import Fault, RewardError
from rpeg.recipe.schema import Recipe

__all__ = ["build_rewards", "build_task"]


def build_task(recipe: Recipe) -> Task:
    """Return the task or the data file of a recipe.

    Raises:
        DataError: the task refuses its options, or rows of the file cannot be used.
    """
    data = recipe.data
    if data.task is not None:
        working_share = 0.0 if recipe.warmup is None else recipe.warmup.working_share
        return load_task(data.task, data.task_options, recipe.run.seed, working_share)
    assert data.path is not None
    compares_answers = any(item.function in BUILT_IN for item in recipe.reward.functions)
    default_column = type(data).model_fields["answer_column"].default
    return load_file_task(
        Path(data.path),
        prompt_column=data.prompt_column,
        answer_column=data.answer_column,
        # A column that was named must be there even if only a user's own function reads it.
        answer_required=compares_answers or data.answer_column != default_column,
        evaluation_path=None if data.evaluation_path is None else Path(data.evaluation_path),
        evaluation_fraction=data.evaluation_fraction,
        seed=recipe.run.seed,
    )


def build_rewards(recipe: Recipe, task: Task) -> RewardSum:
    """Return the weighted rewards of a recipe; the user's modules are imported here.

    Raises:
        RewardError: with a fault for every function that cannot be loaded.
    """
    rewards: list[tuple[Reward, float]] = []
    faults: list[Fault] = []
    for item in recipe.reward.functions:
        try:
            rewards.append((load_reward(item.function, task, Path.cwd()), item.weight))
        except RewardError as error:
            faults.extend(error.faults)
    if faults:
        raise RewardError("reward", faults)
    return RewardSum(rewards)
