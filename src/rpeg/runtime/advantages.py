"""The role that compares: turns the scores of a step into advantages."""

from __future__ import annotations

from rpeg.numerics.advantages import group_advantages
from rpeg.recipe.schema import Recipe
from rpeg.runtime.rows import Rows
from rpeg.runtime.task import Outcome, Task

__all__ = ["Advantages"]


class Advantages:
    """The baseline that rewards are compared with."""

    def __init__(self, recipe: Recipe) -> None:
        """Take the sizes of groups and what is divided by from the recipe."""
        self._algorithm = recipe.algorithm

    def compare(self, task: Task) -> Outcome:
        """Compare every reward with those of its group; unscorable samples get NaN, which the trainer leaves out."""
        rewards = task.samples.tensor("reward")
        algorithm = self._algorithm
        advantages, stats = group_advantages(rewards, algorithm.group_size, algorithm.std_normalise)
        advantages[~rewards.isfinite()] = float("nan")
        return Outcome(Rows({"advantage": advantages}), metrics=stats.metrics(), num_rows=len(rewards))
