"""The reference policy: what the trained one is held close to."""

from __future__ import annotations

from pathlib import Path

from rpeg.numerics.model import load_model
from rpeg.numerics.precision import dtype
from rpeg.recipe.schema import Recipe
from rpeg.runtime.passes import Passes
from rpeg.runtime.rows import Ragged, Rows

__all__ = ["FrozenReference"]


class FrozenReference:
    """The weights that the training began with, in the number format of the passes."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        """Load the weights."""
        self._passes = Passes(recipe)
        self._model = load_model(folder, dtype(recipe.model.dtype), self._passes.device)

    def score(self, rows: Rows) -> Ragged:
        """Return the log-probability of every trained token."""
        return self._passes.column(rows, lambda batch: self._passes.logprobs(self._model, batch)[0])
