"""The role that learns to act: scores rollouts, accumulates gradients, updates, publishes and saves weights."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from rpeg.graph.contract import Contract, Logprob
from rpeg.numerics.aggregation import Counts
from rpeg.numerics.corrections import Correction
from rpeg.numerics.loss_sums import LossSums
from rpeg.numerics.losses import LossInputs, LossSettings, policy_loss
from rpeg.numerics.model import load_model, save_model
from rpeg.numerics.tokenizer import load_tokenizer
from rpeg.recipe.schema import AlgorithmSection, Recipe
from rpeg.runtime.checkpoint import MODEL, MOMENTS
from rpeg.runtime.learner import Learner, copied
from rpeg.runtime.origin import Origin
from rpeg.runtime.passes import MicroBatch, Passes, num_trained
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.task import Outcome, Task

__all__ = ["Policy"]

_NOTHING, _UNDIVIDED = Counts(0, 0), Counts(1, 1)


class Policy:
    """A policy with its optimizer.

    Shapes: N rows of a firing, B rows of a micro-batch, T tokens of its longest row.
    """

    def __init__(self, recipe: Recipe, contract: Contract, origin: Origin) -> None:
        """Load the weights, and the optimizer's state to go on from."""
        self._recipe, self._contract = recipe, contract
        self._passes = Passes(recipe)
        self.model = load_model(origin.model, torch.float32, self._passes.device)
        self._tokenizer = load_tokenizer(origin.model)
        self.learner = Learner(self.model, recipe, recipe.optimizer.lr, origin.version, origin.saved(MOMENTS))
        self._sums, self._of_step, self._counts = LossSums.zero(), LossSums.zero(), _NOTHING

    def score(self, rows: Rows) -> Ragged:
        """Return the log-probability of every trained token under the weights as they are."""
        return self._passes.column(rows, lambda batch: self._passes.logprobs(self.model, batch)[0])

    def train(self, task: Task) -> Outcome:
        """Add the gradient of these rows to that of the update, as a sum: what it is divided by is known only then."""
        rows = task.samples
        settings = self._settings()
        scored, cut, teaching = self._sorted(rows, settings)
        self._counts += _counts(rows, scored)
        for batch in self._passes.micro_batches(rows, teaching):
            terms = policy_loss(self._inputs(batch, settings), settings, _UNDIVIDED)
            terms.loss.backward()
            self._sums += terms.sums
        metrics = {
            "rows/trained": float(len(teaching)),
            "rows/without_advantage": float(len(scored) - len(teaching)),
            "rows/unscorable": float(len(rows) - len(scored) - len(cut)),
            "rows/masked": float(len(cut)),
            **_staleness(task),
        }
        return Outcome(metrics=metrics, num_rows=len(rows), num_tokens=num_trained(rows))

    def _sorted(self, rows: Rows, settings: LossSettings) -> tuple[list[int], list[int], list[int]]:
        """Return the rows with a score that count, those that were cut off and do not, and those with a gradient.

        A row without advantage has none unless the reference pulls on it, so it need not be computed.
        """
        column = rows.columns["advantage"]
        parts = column.rows() if isinstance(column, Ragged) else rows.tensor("advantage").unsqueeze(1)
        scored_N = torch.tensor([bool(part.isfinite().all()) for part in parts])
        cut_N = scored_N & ~rows.tensor("finished") & self._recipe.algorithm.mask_truncated
        scored_N &= ~cut_N
        differs_N = torch.tensor([bool((part != 0).any()) for part in parts])
        teaches_N = scored_N & (differs_N | bool(settings.kl_coefficient))
        scored, cut, teaching = (each_N.nonzero().flatten().tolist() for each_N in (scored_N, cut_N, teaches_N))
        return scored, cut, teaching

    def _inputs(self, batch: MicroBatch, settings: LossSettings) -> LossInputs:
        logps_BT, entropies_BT = self._passes.logprobs(self.model, batch)
        behaviour_BT = batch.column("logp")
        return LossInputs(
            logps_BT=logps_BT,
            old_logps_BT=self._proximal(batch, logps_BT, behaviour_BT),
            behaviour_logps_BT=behaviour_BT,
            reference_logps_BT=batch.column("ref_logp") if settings.kl_coefficient else None,
            advantages_BT=batch.advantages(),
            mask_BT=batch.mask_BT,
            entropies_BT=entropies_BT,
        )

    def _proximal(self, batch: MicroBatch, logps_BT: Tensor, behaviour_BT: Tensor) -> Tensor:
        """Return the scores of the proximal policy: the sampler's where the contract takes these.

        Else they are those of the policy before the first update of the step. Until then that is the current one, whose
        own scores make the ratio exactly 1; a pass over rows in other micro-batches would be off by rounding.
        """
        if self._contract.behaviour_logprob is Logprob.RECORDED:
            return behaviour_BT
        is_first = self.learner.num_updates % self._recipe.algorithm.updates_per_step == 0
        return logps_BT.detach() if is_first else batch.column("old_logp")

    def update(self, task: Task) -> Outcome:
        """Make the next version of the weights."""
        algorithm = self._recipe.algorithm
        scale = self._sums.ess_share() if algorithm.ess_scaling else 1.0
        norm, rate = self.learner.update(self._counts.of(algorithm.normalise), scale)
        self._of_step += self._sums
        self._counts, self._sums = _NOTHING, LossSums.zero()
        metrics = {"optim/grad_norm": norm, "optim/lr": rate}
        if task.firing == algorithm.updates_per_step - 1:
            metrics |= self._of_step.metrics()
            self._of_step = LossSums.zero()
        return Outcome(metrics=metrics, version=task.step + 1)

    def push(self, task: Task) -> Outcome:
        """Publish a copy of the weights, so that training may go on while it is installed."""
        return Outcome(weights=copied(self.model), version=task.step + 1)

    def save(self, folder: Path) -> None:
        """Write ``model/`` and the moments into ``folder``."""
        save_model(self.model, self._tokenizer, folder / MODEL)
        self.learner.save(folder / MOMENTS)

    def _settings(self) -> LossSettings:
        algorithm = self._recipe.algorithm
        return LossSettings(
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            kl_coefficient=algorithm.kl_coefficient if algorithm.kl_place == "loss" else 0.0,
            normalise=algorithm.normalise,
            correction=_correction(algorithm),
            objective=algorithm.defaults.objective,
            dual_clip=algorithm.dual_clip,
            kl_estimator=algorithm.kl_estimator,
            constant_length=self._recipe.sampling.max_new_tokens if algorithm.normalise == "constant" else None,
        )


def _correction(algorithm: AlgorithmSection) -> Correction:
    """Return how tokens of another policy are weighed."""
    bounds = (algorithm.correction_low, algorithm.correction_high)
    match algorithm.correction:
        case "truncated":
            return Correction("token", algorithm.correction_cap)
        case "truncated_sequence":
            return Correction("sequence", algorithm.correction_cap)
        case "masked":
            return Correction("token", token_bounds=bounds)
        case "decoupled":
            return Correction("token")
        case "rejection":
            return Correction(sequence_bounds=bounds)
        case _:
            return Correction()


def _counts(rows: Rows, scored: list[int]) -> Counts:
    """Return what the loss of these rows is averaged over; a row without trained tokens is no sample."""
    masks = rows.ragged("mask").rows()
    lengths = [length for length in (int(masks[pick].sum()) for pick in scored) if length]
    return Counts(tokens=sum(lengths), samples=len(lengths))


def _staleness(task: Task) -> dict[str, float]:
    """Versions between the weights that sampled each trained token and the weights that it trains."""
    mask_S = task.samples.ragged("mask").values_S
    behind_S = task.step - task.samples.ragged("version").values_S[mask_S].long()
    if not len(behind_S):
        return {}
    return {"staleness/mean": float(behind_S.double().mean()), "staleness/max": float(behind_S.max())}
