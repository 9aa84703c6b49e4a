"""The role that learns to expect: a critic that is a model of its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from rpeg.numerics.aggregation import Counts
from rpeg.numerics.critic import load_critic, save_critic
from rpeg.numerics.parallel.build import WHOLE, ModelLayout, is_split, parallel_model
from rpeg.numerics.parallel.gathered import Outline
from rpeg.numerics.parallel.parallel_model import Padded
from rpeg.numerics.precision import dtype
from rpeg.numerics.scores import Scores
from rpeg.numerics.tokenizer import load_tokenizer
from rpeg.recipe.schema import Recipe
from rpeg.runtime.holders import Held, Holder
from rpeg.runtime.learner import Learner
from rpeg.runtime.origin import Origin
from rpeg.runtime.passes import MicroBatch, Passes, counts, finished, num_trained, scored, valued
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.split_learner import SplitLearner
from rpeg.runtime.task import Outcome, Task
from rpeg.runtime.value_objective import ValueObjective
from rpeg.runtime.world import ALONE, Ranks

__all__ = ["Critic"]

_MODEL, _MOMENTS = "critic", "critic_moments.safetensors"
_NOTHING = Counts(0, 0)


class Critic:
    """A critic with its optimizer."""

    def __init__(
        self,
        recipe: Recipe,
        origin: Origin,
        ranks: Ranks = ALONE,
        layout: ModelLayout = WHOLE,
        most_rows: int | None = None,
    ) -> None:
        """Load the weights of the checkpoint, or of the model that the recipe lets it start from.

        Of these each of ``ranks`` keeps what ``layout`` gives it.
        """
        assert recipe.critic is not None, "the graph has a critic, the recipe has none"
        self._recipe, self._passes, self._ranks = recipe, Passes(recipe, ranks, most_rows), ranks
        folder = origin.saved(_MODEL) or Path(recipe.critic.path or origin.model)
        self._tokenizer = load_tokenizer(origin.model)
        weights = dtype(recipe.model.weights)
        self.model, self._head = load_critic(folder, weights, self._passes.device, self._tokenizer)
        self._outline = Outline.of(self.model) if is_split(layout, ranks.sizes) else None
        passing = partial(self._passes.passing, self.model, self._head, has_logits=False)
        self._parallel = parallel_model(self.model, layout, ranks.mesh, passing, self._values)
        lr, moments = recipe.critic.lr or recipe.optimizer.lr, origin.saved(_MOMENTS)
        if self._outline is None:
            self.learner = Learner(self.model, recipe, lr, origin.version, moments, self._head, peers=ranks.rows)
        else:
            self.learner = SplitLearner(self._parallel, recipe, lr, origin.version, moments, self._head, 1.0, ranks)
        self._objective, self._counts = ValueObjective(recipe.critic.value_clip), _NOTHING

    def _values(self, model: PreTrainedModel, batch: Padded) -> Scores:
        return Scores.of_values(self._passes.values(model, batch, self._head))

    def score(self, rows: Rows) -> Ragged:
        """Return the value of the state before every trained token."""
        return self._passes.columns(
            rows, 1, lambda batches: [[valued(scores)] for scores in self._parallel.score(batches)]
        )[0]

    def train(self, task: Task) -> Outcome:
        """Add the gradient of these rows to that of the update, as a sum."""
        rows = task.samples
        picks = scored(rows, "return")
        if self._recipe.algorithm.mask_truncated:
            picks = finished(rows, picks)
        self._counts += counts(rows, picks)
        batches = self._passes.micro_batches(rows, picks)
        self._parallel.backward(
            [batch.padded for batch in batches], lambda number, scores: self._loss(batches[number], valued(scores))
        )
        return Outcome(num_rows=len(rows), num_tokens=num_trained(rows))

    def _loss(self, batch: MicroBatch, values_BT: Tensor) -> Tensor:
        return self._objective.loss(batch, values_BT) if batch.picks else values_BT.sum() * 0

    def update(self, task: Task) -> Outcome:
        """Make the next version of the weights."""
        norm, rate = self.learner.update(self._counts.over(self._ranks.rows.counts).of("token"))
        self._counts = _NOTHING
        metrics = {"critic/grad_norm": norm, "critic/lr": rate}
        if task.firing == self._recipe.algorithm.all_updates - 1:
            metrics |= self._objective.metrics(self._ranks.losses)
        return Outcome(metrics=metrics, version=task.step + 1)

    def held(self, holder: Holder) -> Held:
        """Return the weights with the head's, the moments, or both."""
        weights = (*self._parallel.parameters().values(), *self.learner.parameters)
        return Held(holder.parts(weights, self.learner.moments))

    def save(self, folder: Path) -> None:
        """Write weights, head and the optimizer's state, all of them whole, into the folder of a checkpoint."""
        weights = self._parallel.weights() if self._outline is not None else {}
        if self._ranks.is_first:
            model = self.model if self._outline is None else self._outline.filled(weights)
            save_critic(model, self._head, self._tokenizer, folder / _MODEL)
        if self._ranks.is_first or self._outline is not None:
            self.learner.save(folder / _MOMENTS)
