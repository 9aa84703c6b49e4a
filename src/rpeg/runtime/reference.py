"""The reference policy: what the trained one is held close to."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_file, save_file

from rpeg.numerics.adapter import Adapter
from rpeg.numerics.ema import moved_average
from rpeg.numerics.model import load_model
from rpeg.numerics.parallel.build import WHOLE, ModelLayout, parallel_model
from rpeg.numerics.parallel.parallel_model import ParallelModel
from rpeg.numerics.precision import dtype
from rpeg.recipe.schema import Recipe
from rpeg.runtime.holders import Held, Holder
from rpeg.runtime.origin import Origin
from rpeg.runtime.passes import Passes
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.task import Outcome, Task
from rpeg.runtime.world import ALONE, Ranks

__all__ = ["AdapterOff", "AverageReference", "FrozenReference", "Reference"]

_AVERAGE = "average.safetensors"


class Reference(Protocol):
    """Something that scores rows as the reference does."""

    def score(self, rows: Rows) -> Ragged:
        """Return the log-probability of every trained token."""
        ...


class FrozenReference:
    """The weights that the training began with, in the number format of the passes."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        ranks: Ranks = ALONE,
        layout: ModelLayout = WHOLE,
        most_rows: int | None = None,
    ) -> None:
        """Load the weights, of which each of ``ranks`` keeps what ``layout`` gives it."""
        self._passes = Passes(recipe, ranks, most_rows)
        model = load_model(folder, dtype(recipe.model.dtype), self._passes.device)
        passing = partial(self._passes.passing, model)
        self._model = parallel_model(model, layout, ranks.mesh, passing, self._passes.scores)

    def score(self, rows: Rows) -> Ragged:
        """Return the log-probability of every trained token."""
        return self._passes.logprob_column(rows, self._model)

    def held(self, holder: Holder) -> Held:
        """Return the weights, or this rank's part of them."""
        return Held(tuple(self._model.parameters().values()))


class AdapterOff:
    """The policy with its adapter switched off: no second model."""

    def __init__(self, recipe: Recipe, policy: ParallelModel, adapter: Adapter, ranks: Ranks = ALONE) -> None:
        """Share the model of the policy."""
        self._passes, self._policy, self._adapter = Passes(recipe, ranks), policy, adapter

    def score(self, rows: Rows) -> Ragged:
        """Return the log-probability of every trained token."""
        with self._adapter.off():
            return self._passes.logprob_column(rows, self._policy)


class AverageReference:
    """A moving average of the policy, in float32: a step is a small share of a small difference.

    It lies on the ranks as the policy does, so that each moves its own part.
    """

    def __init__(
        self,
        recipe: Recipe,
        origin: Origin,
        policy: ParallelModel,
        ranks: Ranks = ALONE,
        layout: ModelLayout = WHOLE,
        most_rows: int | None = None,
    ) -> None:
        """Go on with the average of the checkpoint, or begin with the policy; ``layout`` is the policy's."""
        self._passes, self._policy, self._ranks = Passes(recipe, ranks, most_rows), policy, ranks
        self._keep = recipe.algorithm.reference_decay
        model = load_model(origin.model, torch.float32, self._passes.device)
        passing = partial(self._passes.passing, model)
        self._model = parallel_model(model, layout, ranks.mesh, passing, self._passes.scores)
        if (saved := origin.saved(_AVERAGE)) is not None:
            self._model.load(load_file(saved))

    def score(self, rows: Rows) -> Ragged:
        """Return the log-probability of every trained token."""
        return self._passes.logprob_column(rows, self._model)

    @torch.no_grad()
    def update(self, task: Task) -> Outcome:
        """Move the average towards the policy."""
        average = self._model.parameters()
        moved = moved_average(average, self._policy.parameters(), self._keep)
        for name, parameter in average.items():
            parameter.copy_(moved[name])
        return Outcome(version=task.step + 1)

    def held(self, holder: Holder) -> Held:
        """Return the weights of the average."""
        return Held(tuple(self._model.parameters().values()))

    def save(self, folder: Path) -> None:
        """Write the whole average into the folder of a checkpoint; collective, one of all ranks writes."""
        weights = self._model.weights()
        if self._ranks.is_first:
            save_file({name: each.contiguous() for name, each in weights.items()}, folder / _AVERAGE)
