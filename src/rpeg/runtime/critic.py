"""The role that learns to expect: a critic that is a model of its own."""

from __future__ import annotations

from pathlib import Path

from rpeg.numerics.aggregation import Counts
from rpeg.numerics.critic import load_critic, save_critic
from rpeg.numerics.precision import dtype
from rpeg.numerics.tokenizer import load_tokenizer
from rpeg.recipe.schema import Recipe
from rpeg.runtime.holders import Held, Holder
from rpeg.runtime.learner import Learner
from rpeg.runtime.origin import Origin
from rpeg.runtime.passes import Passes, counts, finished, num_trained, scored
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.task import Outcome, Task
from rpeg.runtime.value_objective import ValueObjective
from rpeg.runtime.world import ALONE, Ranks

__all__ = ["Critic"]

_MODEL, _MOMENTS = "critic", "critic_moments.safetensors"
_NOTHING = Counts(0, 0)


class Critic:
    """A critic with its optimizer."""

    def __init__(self, recipe: Recipe, origin: Origin, ranks: Ranks = ALONE, most_rows: int | None = None) -> None:
        """Load the weights of the checkpoint, or of the model that the recipe lets it start from."""
        assert recipe.critic is not None, "the graph has a critic, the recipe has none"
        self._recipe, self._passes, self._ranks = recipe, Passes(recipe, ranks, most_rows), ranks
        folder = origin.saved(_MODEL) or Path(recipe.critic.path or origin.model)
        self._tokenizer = load_tokenizer(origin.model)
        weights = dtype(recipe.model.weights)
        self.model, self._head = load_critic(folder, weights, self._passes.device, self._tokenizer)
        lr = recipe.critic.lr or recipe.optimizer.lr
        self.learner = Learner(
            self.model, recipe, lr, origin.version, origin.saved(_MOMENTS), self._head, peers=ranks.rows
        )
        self._objective, self._counts = ValueObjective(recipe.critic.value_clip), _NOTHING

    def score(self, rows: Rows) -> Ragged:
        """Return the value of the state before every trained token."""
        return self._passes.columns(
            rows, 1, lambda batches: [[self._passes.values(self.model, each, self._head)] for each in batches]
        )[0]

    def train(self, task: Task) -> Outcome:
        """Add the gradient of these rows to that of the update, as a sum."""
        rows = task.samples
        picks = scored(rows, "return")
        if self._recipe.algorithm.mask_truncated:
            picks = finished(rows, picks)
        self._counts += counts(rows, picks)
        for batch in self._passes.micro_batches(rows, picks):
            values_BT = self._passes.values(self.model, batch.padded, self._head)
            (self._objective.loss(batch, values_BT) if batch.picks else values_BT.sum() * 0).backward()
        return Outcome(num_rows=len(rows), num_tokens=num_trained(rows))

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
        weights = (*self.model.parameters(), *self.learner.parameters)
        return Held(holder.parts(weights, self.learner.moments))

    def save(self, folder: Path) -> None:
        """Write weights, head and the optimizer's state into the folder of a checkpoint."""
        save_critic(self.model, self._head, self._tokenizer, folder / _MODEL)
        self.learner.save(folder / _MOMENTS)
