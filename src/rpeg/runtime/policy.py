"""The role that learns to act: scores rollouts, accumulates gradients, updates, publishes and saves weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rpeg.graph.contract import Contract, Logprob
from rpeg.numerics.adapter import Adapter, add_adapter, load_adapter
from rpeg.numerics.aggregation import Counts
from rpeg.numerics.corrections import Correction
from rpeg.numerics.loss_sums import LossSums
from rpeg.numerics.losses import LossInputs, LossSettings, policy_loss
from rpeg.numerics.model import load_model, save_model
from rpeg.numerics.parallel.build import WHOLE, ModelLayout, is_split, parallel_model
from rpeg.numerics.parallel.gathered import Outline
from rpeg.numerics.parallel.parallel_model import Padded, ParallelModel
from rpeg.numerics.parallel.peers import Peers
from rpeg.numerics.parallel.whole import WholeModel
from rpeg.numerics.precision import dtype
from rpeg.numerics.ratios import interpolated_proximal
from rpeg.numerics.scores import Scores
from rpeg.numerics.tokenizer import load_tokenizer
from rpeg.numerics.value_head import ValueHead, save_value_head
from rpeg.recipe.schema import AlgorithmSection, Recipe
from rpeg.runtime.checkpoint import ADAPTER, MODEL, MOMENTS
from rpeg.runtime.holders import Held, Holder
from rpeg.runtime.learner import Learner, copied
from rpeg.runtime.origin import Origin
from rpeg.runtime.passes import MicroBatch, Passes, counts, finished, num_trained, scored, valued
from rpeg.runtime.probe import Probe
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.shared_head import shared_head
from rpeg.runtime.split_learner import SplitLearner
from rpeg.runtime.task import Outcome, Staged, Task
from rpeg.runtime.transport import Transport
from rpeg.runtime.value_objective import ValueObjective
from rpeg.runtime.world import ALONE, Ranks

__all__ = ["Policy"]

_ROWS = ("rows/trained", "rows/without_advantage", "rows/unscorable", "rows/masked")
_NOTHING, _UNDIVIDED = Counts(0, 0), Counts(1, 1)


class Policy:
    """A policy with its optimizer.

    Shapes: N rows of a firing, B rows of a micro-batch, T tokens of its longest row.
    """

    def __init__(
        self,
        recipe: Recipe,
        contract: Contract,
        origin: Origin,
        ranks: Ranks = ALONE,
        layout: ModelLayout = WHOLE,
        most_rows: int | None = None,
        transport: Transport | None = None,
    ) -> None:
        """Load the weights, and the optimizer's state to go on from.

        ``ranks`` train the same with other rows, or, as ``layout`` says, with other parts of the weights. Micro-batches
        have at most ``most_rows``. What is published goes by ``transport``; without one the controller carries it.
        """
        self._recipe, self._contract, self._ranks = recipe, contract, ranks
        self._passes = Passes(recipe, ranks, most_rows)
        # An adapter stands on the weights that the training began with; those of a checkpoint have it added.
        weights = origin.model if recipe.model.adapter is None else origin.reference
        self.model = load_model(weights, dtype(recipe.model.weights), self._passes.device)
        self._tokenizer = load_tokenizer(origin.model)
        self._head = shared_head(recipe, self.model, origin.model, origin.version)
        self.adapter = self._adapter(origin)  # after the head, whose own layers are copies that are trained whole
        self._probe = Probe(recipe, self._tokenizer, self.model)
        critic, lr = recipe.critic, recipe.optimizer.lr
        scale = critic.lr / lr if critic is not None and critic.lr is not None else 1.0
        moments = origin.saved(MOMENTS)
        self._outline = Outline.of(self.model) if is_split(layout, ranks.sizes) else None
        passing = partial(self._passes.passing, self.model, self._head)
        self.parallel = parallel_model(self.model, layout, ranks.mesh, passing, self._scores)
        self._transport = transport
        if transport is not None:
            transport.offer(self.parallel.tiles())
        if self._outline is None:
            self.learner = Learner(self.model, recipe, lr, origin.version, moments, self._head, scale, ranks.rows)
        else:
            self.learner = SplitLearner(self.parallel, recipe, lr, origin.version, moments, self._head, scale, ranks)
        self._objective = ValueObjective(critic.value_clip if critic is not None else None)
        self._sums, self._of_step, self._counts = LossSums.zero(), LossSums.zero(), _NOTHING

    def _scores(self, model: PreTrainedModel, batch: Padded) -> Scores:
        return self._passes.scores(model, batch, self._head)

    def _adapter(self, origin: Origin) -> Adapter | None:
        """Put the adapter of the recipe on the model, as the checkpoint has it or a new one."""
        settings = self._recipe.model.adapter
        if settings is None:
            return None
        if (saved := origin.saved(ADAPTER)) is not None:
            return load_adapter(self.model, saved)
        return add_adapter(self.model, settings.rank, settings.alpha, settings.target, self._recipe.run.seed)

    def score(self, rows: Rows) -> Ragged:
        """Return the log-probability of every trained token under the weights as they are."""
        return self._passes.logprob_column(rows, self.scorer)

    @property
    def scorer(self) -> ParallelModel:
        """The model as it scores: a whole one makes no values then."""
        if self._head is None or self._outline is not None:
            return self.parallel
        return WholeModel(self.model, self._passes.scores, self._ranks.rows)

    def value(self, rows: Rows) -> Ragged:
        """Return the value of the state before every trained token."""
        head = self._head
        assert head is not None, "the graph values with the policy's trunk, the recipe does not"
        if self._outline is not None:  # makes logits as well: a split trunk is passed through in one way
            return self.score_and_value(rows)[1]
        return self._passes.columns(
            rows, 1, lambda batches: [[self._passes.values(self.model, each, head)] for each in batches]
        )[0]

    def score_and_value(self, rows: Rows) -> tuple[Ragged, Ragged]:
        """Return both from one pass."""
        logps, values = self._passes.columns(
            rows, 2, lambda batches: [[each.logps_BT, valued(each)] for each in self.parallel.score(batches)]
        )
        return logps, values

    def train(self, task: Task) -> Outcome:
        """Add the gradient of these rows to that of the update, as a sum: what it is divided by is known only then."""
        rows = task.samples
        settings = self._settings()
        valid = scored(rows, "advantage")
        picks = finished(rows, valid) if self._recipe.algorithm.mask_truncated else valid
        teaching = self._teaching(rows, picks, settings)
        self._counts += counts(rows, picks)
        batches = self._passes.micro_batches(rows, teaching)
        self.parallel.backward(
            [batch.padded for batch in batches],
            lambda number, scores: self._loss(task.step, batches[number], scores, settings),
        )
        numbers = (len(teaching), len(picks) - len(teaching), len(rows) - len(valid), len(valid) - len(picks))
        metrics = dict(zip(_ROWS, self._ranks.rows.counts(*map(float, numbers)), strict=True))
        metrics |= _staleness(task, self._ranks.rows)
        return Outcome(metrics=metrics, num_rows=len(rows), num_tokens=num_trained(rows))

    def _loss(self, step: int, batch: MicroBatch, scores: Scores, settings: LossSettings) -> Tensor:
        """Return the loss of a micro-batch, and add to the sums of the update."""
        if not batch.picks:
            found = [each.sum() for each in (scores.logps_BT, scores.values_BT) if each is not None]
            return torch.stack(found).sum() * 0
        terms = policy_loss(self._inputs(step, batch, scores, settings), settings, _UNDIVIDED)
        self._sums += terms.sums
        if scores.values_BT is None or self._recipe.critic is None:
            return terms.loss
        return terms.loss + self._recipe.critic.value_coefficient * self._objective.loss(batch, scores.values_BT)

    def _teaching(self, rows: Rows, picks: list[int], settings: LossSettings) -> list[int]:
        """Return which of the rows with a score have a gradient.

        A row without advantage has none unless the reference or a critic learns from it, so it need not be computed.
        """
        if settings.kl_coefficient or self._head is not None:
            return picks
        column = rows.columns["advantage"]
        parts = column.rows() if isinstance(column, Ragged) else rows.tensor("advantage").unsqueeze(1)
        return [pick for pick in picks if bool((parts[pick] != 0).any())]

    def _inputs(self, step: int, batch: MicroBatch, scores: Scores, settings: LossSettings) -> LossInputs:
        logps_BT, behaviour_BT = scores.logps_BT, batch.column("logp")
        return LossInputs(
            logps_BT=logps_BT,
            old_logps_BT=self._proximal(step, batch, logps_BT, behaviour_BT),
            behaviour_logps_BT=behaviour_BT,
            reference_logps_BT=batch.column("ref_logp") if settings.kl_coefficient else None,
            advantages_BT=batch.advantages(),
            mask_BT=batch.mask_BT,
            entropies_BT=scores.entropies_BT,
        )

    def _proximal(self, step: int, batch: MicroBatch, logps_BT: Tensor, behaviour_BT: Tensor) -> Tensor:
        """Return the scores of the proximal policy: the sampler's where the contract takes these.

        Else they are those of the policy before the first update of the step. Until then that is the current one, whose
        own scores make the ratio exactly 1; a pass over rows in other micro-batches would be off by rounding.
        """
        if self._contract.behaviour_logprob is Logprob.RECORDED:
            return behaviour_BT
        updates = self._recipe.algorithm.all_updates
        done = self.learner.num_updates % updates
        if done == 0:
            return logps_BT.detach()
        if self._contract.behaviour_logprob is Logprob.INTERPOLATED:
            return interpolated_proximal(behaviour_BT, logps_BT, step - batch.column("version"), done / updates)
        return batch.column("old_logp")

    def update(self, task: Task) -> Outcome:
        """Make the next version of the weights."""
        algorithm = self._recipe.algorithm
        peers = self._ranks.losses
        sums = LossSums(peers.total(self._sums.sums_S), peers.most(self._sums.maxima_M))
        scale = sums.learning_rate_scale() if algorithm.ess_scaling else 1.0
        counts = self._counts.over(self._ranks.rows.counts)
        norm, rate = self.learner.update(counts.of(algorithm.normalise), scale)
        self._of_step += sums
        self._counts, self._sums = _NOTHING, LossSums.zero()
        metrics = {"optim/grad_norm": norm, "optim/lr": rate}
        if task.firing == algorithm.all_updates - 1:
            metrics |= self._of_step.metrics() | self._objective.metrics(peers)
            self._of_step = LossSums.zero()
        return Outcome(metrics=metrics, version=task.step + 1)

    def push(self, task: Task) -> Outcome:
        """Publish a copy of the weights, so that training may go on while it is installed.

        Every rank sends what it holds, or one of them all of it.
        """
        return self._pushed(task, None)

    def push_with_head(self, task: Task) -> Outcome:
        """Publish the value head as well, for a sampler that records values."""
        assert self._head is not None, "the graph samples with a value head, the recipe has none on the policy's trunk"
        return self._pushed(task, self._head)

    def _pushed(self, task: Task, head: ValueHead | None) -> Outcome:
        (scores,) = self.parallel.score([self._probe.rows])
        version, probe = task.step + 1, self._probe.scored(scores)
        if self._transport is not None:
            num_bytes = self._transport.push(version, self.parallel.tiles())
            return Outcome(weights=Staged(probe), num_bytes=num_bytes, version=version)
        if self._outline is None and not self._ranks.is_first:
            return Outcome(version=version)
        if (adapter := self._whole_adapter()) is not None:
            weights = adapter.merged_weights() if self._ranks.is_first else {}
        else:
            weights = self.parallel.weights()
        whole = {**weights, **copied(nn.Module(), head)}
        return Outcome(weights=Staged(probe, whole) if self._ranks.is_first else None, version=version)

    def held(self, holder: Holder) -> Held:
        """Return the weights with the head's, the moments, or both."""
        # Not the module's, which may show what was gathered for a pass.
        weights = (*self.parallel.parameters().values(), *self.learner.parameters)
        return Held(holder.parts(weights, self.learner.moments))

    def save(self, folder: Path) -> None:
        """Write ``model/`` and the moments into ``folder``, and the adapter beside ``model/``, which has it added."""
        if self._outline is None and not self._ranks.is_first:
            return
        adapter = self._whole_adapter()
        weights = self.parallel.weights() if self._outline is not None and adapter is None else {}
        if self._ranks.is_first:
            self._save_whole(folder, weights, adapter)
        self.learner.save(folder / MOMENTS)

    def _save_whole(self, folder: Path, weights: Mapping[str, Tensor], adapter: Adapter | None) -> None:
        """Write the whole model: that with an adapter, of a split one ``weights``, or the one there is."""
        if adapter is not None:
            whole = adapter.merged()
        else:
            whole = self.model if self._outline is None else self._outline.filled(weights)
        save_model(whole, self._tokenizer, folder / MODEL)
        if adapter is not None:
            adapter.save(folder / ADAPTER)
        if self._head is not None:
            save_value_head(self._head, folder / MODEL)

    def _whole_adapter(self) -> Adapter | None:
        """Return the adapter on all of its model; where that is split it is put together, by all ranks."""
        settings = self._recipe.model.adapter
        if self._outline is None or settings is None:
            return self.adapter
        weights, model = self.parallel.weights(), self._outline.empty()
        adapter = add_adapter(model, settings.rank, settings.alpha, settings.target, self._recipe.run.seed)
        self._outline.fill(model, weights)
        return adapter

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


def _staleness(task: Task, peers: Peers) -> dict[str, float]:
    """Versions between the weights that sampled each trained token and the weights that it trains.

    Shapes: S tokens of this rank, V numbers of versions behind, up to the most.
    """
    mask_S = task.samples.ragged("mask").values_S
    behind_S = task.step - task.samples.ragged("version").values_S[mask_S].long()
    most = peers.greatest(int(behind_S.max()) if len(behind_S) else -1)
    if most < 0:
        return {}
    tokens_V = peers.total(torch.bincount(behind_S, minlength=most + 1))
    num_tokens, up_to_V = int(tokens_V.sum()), tokens_V.cumsum(0)
    return {
        "staleness/mean": float((tokens_V * torch.arange(most + 1)).sum()) / num_tokens,
        "staleness/p99": float((up_to_V < math.ceil(0.99 * num_tokens)).sum()),
        "staleness/max": float(most),
    }
