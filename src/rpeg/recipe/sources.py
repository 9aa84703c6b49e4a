"""The task and the rewards that a recipe names, opened."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rpeg.environments import catalog
from rpeg.environments.base import Task
from rpeg.environments.dataset import load_file_task
from rpeg.environments.reward_pool import RewardPool
from rpeg.environments.rewards import BUILT_IN, Reward, RewardSum, Scorer, load_reward
from rpeg.errors import Fault, RewardError
from rpeg.recipe.schema import DataSection, Recipe

__all__ = ["load_rewards", "load_task", "open_rewards"]


def load_task(recipe: Recipe) -> Task:
    """Return the recipe's task: a named one, or the rows of a file.

    Raises:
        DataError: with every fault of the file or the task's options.
    """
    data = recipe.data
    if data.task is not None:
        working_share = recipe.warmup.working_share if recipe.warmup else 0.5
        return catalog.load_task(data.task, data.task_options, recipe.run.seed, working_share)
    assert data.path is not None, "a recipe has a task or a path"
    return load_file_task(
        Path(data.path),
        prompt_column=data.prompt_column,
        answer_column=data.answer_column,
        answer_required=_reads_answers(recipe),
        evaluation_path=Path(data.evaluation_path) if data.evaluation_path else None,
        evaluation_fraction=data.evaluation_fraction,
        seed=recipe.run.seed,
    )


def _reads_answers(recipe: Recipe) -> bool:
    """Whether a reward compares with the answer column, or the user has named one that must then exist."""
    default = DataSection.model_fields["answer_column"].default
    return recipe.data.answer_column != default or any(item.function in BUILT_IN for item in recipe.reward.functions)


def load_rewards(recipe: Recipe, task: Task) -> RewardSum:
    """Return the weighted sum of the recipe's reward functions.

    Raises:
        RewardError: with every function that cannot be found or imported.
    """
    found: list[tuple[Reward, float]] = []
    faults: list[Fault] = []
    for item in recipe.reward.functions:
        try:
            found.append((load_reward(item.function, task, Path.cwd()), item.weight))
        except RewardError as error:
            faults.extend(error.faults)
    if faults:
        raise RewardError("reward functions", faults)
    return RewardSum(found)


def open_rewards(recipe: Recipe) -> Scorer:
    """Return the recipe's reward functions in processes of their own, or in this one where the recipe says so.

    Raises:
        InvalidInput: with every function that cannot be found or imported; from processes only when they are asked.
    """
    settings = recipe.reward
    if not settings.processes:
        return _own_rewards(recipe)
    return RewardPool(partial(_own_rewards, recipe), settings.processes, settings.timeout_s)


def _own_rewards(recipe: Recipe) -> RewardSum:
    return load_rewards(recipe, load_task(recipe))
