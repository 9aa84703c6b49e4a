"""The controller of the distance: how much a nat of it costs, a state that follows a target."""

from __future__ import annotations

from pathlib import Path

import torch

from rpeg.numerics.kl_controller import KlController
from rpeg.observe.json_files import read_json, write_json
from rpeg.recipe.schema import Recipe
from rpeg.runtime.origin import Origin
from rpeg.runtime.task import Outcome, Task

__all__ = ["KlControl", "coefficient_at"]

_FILE = "kl.json"


class KlControl:
    """The coefficient, and how it moves."""

    def __init__(self, recipe: Recipe, origin: Origin) -> None:
        """Go on with the coefficient of the checkpoint, or begin with the recipe's."""
        self._algorithm = recipe.algorithm
        self._coefficient = coefficient_at(recipe, origin)

    def update(self, task: Task) -> Outcome:
        """Move the coefficient by what the step's answers were away from the reference.

        Without a target it stays, and where there are no answers: they were to come from before the first step.
        """
        algorithm = self._algorithm
        if algorithm.kl_target is not None and task.samples.columns:
            kl_N = task.samples.tensor("kl")
            controller = KlController(self._coefficient, algorithm.kl_target, algorithm.kl_horizon)
            self._coefficient = controller.after(float(kl_N.double().mean()), len(kl_N)).coefficient
        published = {"coefficient": torch.tensor(self._coefficient, dtype=torch.float64)}
        return Outcome(weights=published, version=task.step + 1)

    def save(self, folder: Path) -> None:
        """Write the coefficient into the folder of a checkpoint."""
        write_json(folder / _FILE, {"coefficient": self._coefficient})


def coefficient_at(recipe: Recipe, origin: Origin) -> float:
    """Return the coefficient where a run stands."""
    saved = origin.saved(_FILE)
    if saved is None:
        return recipe.algorithm.kl_coefficient
    record = read_json(saved)
    assert isinstance(record, dict), f"{saved} was written by a run"
    return float(record["coefficient"])
