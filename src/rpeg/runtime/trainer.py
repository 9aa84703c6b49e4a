"""The role that learns: scores rollouts, accumulates gradients, updates, publishes and saves weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from rpeg.graph.contract import Contract, Logprob
from rpeg.graph.stage import StageKind
from rpeg.numerics.logprobs import response_logprobs
from rpeg.numerics.losses import Counts, LossInputs, LossSettings, LossSums, policy_loss
from rpeg.numerics.micro_batches import split
from rpeg.numerics.model import load_model, save_model
from rpeg.numerics.optim import adamw, clip_gradients, schedule, set_learning_rate
from rpeg.numerics.precision import device, dtype
from rpeg.numerics.tokenizer import load_tokenizer
from rpeg.recipe.schema import Recipe
from rpeg.runtime.checkpoint import MODEL, MOMENTS
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.task import Outcome, Task

__all__ = ["Trainer"]

_REFERENCE = "ref"
"""Name of the frozen model in the graph."""
_NOTHING, _UNDIVIDED = Counts(0, 0), Counts(1, 1)


class Trainer:
    """A policy with its optimizer, and the frozen reference where the graph has one.

    Shapes: N rows of a firing, B rows of a micro-batch, T tokens of its longest row.
    """

    def __init__(
        self, recipe: Recipe, contract: Contract, model: Path, reference: Path, moments: Path | None, version: int
    ) -> None:
        """Load the weights of ``version``, and the optimizer's state to go on from."""
        self._recipe, self._contract = recipe, contract
        self._device = device(recipe.run.device)
        # Small updates would vanish in bfloat16 weights, so only the arithmetic of the passes is in that format.
        self._policy = load_model(model, torch.float32, self._device)
        self._passes = dtype(recipe.model.dtype)
        self._tokenizer = load_tokenizer(model)
        self._reference: PreTrainedModel | None = None
        if recipe.algorithm.kl_coefficient:
            self._reference = load_model(reference, dtype(recipe.model.dtype), self._device)
        settings = recipe.optimizer
        self._optimizer = adamw(self._policy, settings.lr, settings.betas, settings.eps, settings.weight_decay)
        if moments is not None:
            self._load_moments(load_file(moments))
        self._num_updates = version * recipe.algorithm.updates_per_step
        self._sums, self._counts = LossSums.zero(), _NOTHING

    def methods(self) -> Mapping[StageKind, Callable[[Task], Outcome]]:
        """Return what this role does, by stage kind."""
        return {
            StageKind.FORWARD: self.forward,
            StageKind.TRAIN: self.train,
            StageKind.UPDATE: self.update,
            StageKind.PUSH: self.push,
        }

    def forward(self, task: Task) -> Outcome:
        """Score the rollouts with the policy as it is, or with the reference, token by token."""
        model = self._reference if task.stage == _REFERENCE else self._policy
        assert model is not None, "the graph has a reference, the recipe has none"
        rows = task.samples
        logps: list[Tensor] = [torch.empty(0)] * len(rows)
        with torch.no_grad():
            for picks, tokens_BT, mask_BT in self._micro_batches(rows, range(len(rows))):
                logps_BT, _ = self._score(model, tokens_BT, mask_BT)
                for pick, logps_T in zip(picks, logps_BT.cpu(), strict=True):
                    logps[pick] = logps_T
        lengths = rows.ragged("tokens").lengths_N.tolist()
        column = Ragged.of([logps_T[:length] for logps_T, length in zip(logps, lengths, strict=True)], torch.float32)
        return Outcome(Rows({f"{task.stage}_logp": column}), num_rows=len(rows), num_tokens=_num_trained(rows))

    def train(self, task: Task) -> Outcome:
        """Add the gradient of these rows to that of the update, as a sum: what it is divided by is known only then."""
        rows = task.samples
        advantages_N = rows.tensor("advantage").nan_to_num(0.0)
        is_scored_N = rows.tensor("advantage").isfinite()
        is_cut_N = torch.zeros_like(is_scored_N)
        if self._recipe.algorithm.mask_truncated:
            is_cut_N = is_scored_N & ~rows.tensor("finished")
        is_scored_N &= ~is_cut_N
        settings = self._settings()
        lengths = [int(mask.sum()) for mask in rows.ragged("mask").rows()]
        scored = [n for n, ok in zip(lengths, is_scored_N.tolist(), strict=True) if ok and n]
        self._counts += Counts(tokens=sum(scored), samples=len(scored))
        # A row without advantage has no gradient unless the reference pulls on it, so it need not be computed.
        teaches_N = is_scored_N & ((advantages_N != 0) | bool(settings.kl_coefficient))
        for picks, tokens_BT, mask_BT in self._micro_batches(rows, teaches_N.nonzero().flatten().tolist()):
            logps_BT, entropies_BT = self._score(self._policy, tokens_BT, mask_BT)
            behaviour_BT = self._pad(rows, "logp", picks, tokens_BT)
            inputs = LossInputs(
                logps_BT=logps_BT,
                old_logps_BT=self._pad(rows, "old_logp", picks, tokens_BT, self._proximal(logps_BT, behaviour_BT)),
                behaviour_logps_BT=behaviour_BT,
                reference_logps_BT=self._pad(rows, "ref_logp", picks, tokens_BT) if self._reference else None,
                advantages_BT=advantages_N[picks].unsqueeze(1).to(self._device),
                mask_BT=mask_BT,
                entropies_BT=entropies_BT,
            )
            terms = policy_loss(inputs, settings, _UNDIVIDED)
            terms.loss.backward()
            self._sums += terms.sums
        metrics = {
            "rows/trained": float(teaches_N.sum()),
            "rows/without_advantage": float((is_scored_N & ~teaches_N).sum()),
            "rows/unscorable": float((~is_scored_N & ~is_cut_N).sum()),
            "rows/masked": float(is_cut_N.sum()),
            **_staleness(task),
        }
        return Outcome(metrics=metrics, num_rows=len(rows), num_tokens=_num_trained(rows))

    def _score(self, model: PreTrainedModel, tokens_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies of the trained tokens, at the temperature they were sampled at."""
        with torch.autocast(self._device.type, self._passes, enabled=self._passes != torch.float32):
            return response_logprobs(model, tokens_BT, mask_BT, self._recipe.sampling.temperature)

    def _proximal(self, logps_BT: Tensor, behaviour_BT: Tensor) -> Tensor:
        """Return the scores of the proximal policy where no pass has made them.

        They are the sampler's where the contract takes these. Otherwise the pass was fused into this one, which is only
        done for a step with one update: the current policy is then the proximal one.
        """
        return behaviour_BT if self._contract.behaviour_logprob is Logprob.RECORDED else logps_BT.detach()

    def update(self, task: Task) -> Outcome:
        """Make the next version of the weights; an update without any gradient leaves them and the moments alone."""
        algorithm, settings = self._recipe.algorithm, self._recipe.optimizer
        total = self._recipe.run.steps * algorithm.updates_per_step
        rate = settings.lr * schedule(self._num_updates, total, settings.warmup_updates, settings.schedule)
        set_learning_rate(self._optimizer, rate)
        norm = 0.0
        gradients = [p.grad for p in self._policy.parameters() if p.grad is not None]
        if gradients:
            for gradient in gradients:
                gradient.div_(self._counts.of(algorithm.normalise))
            norm = clip_gradients(self._policy.parameters(), settings.clip_norm)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        self._num_updates += 1
        self._counts = _NOTHING
        metrics = {"optim/grad_norm": norm, "optim/lr": rate}
        if task.firing == algorithm.updates_per_step - 1:
            metrics |= self._sums.metrics()
            self._sums = LossSums.zero()
        return Outcome(metrics=metrics, version=task.step + 1)

    def push(self, task: Task) -> Outcome:
        """Publish a copy of the weights, so that training may go on while it is installed."""
        weights = {name: p.detach().clone() for name, p in self._policy.named_parameters()}
        return Outcome(weights=weights, version=task.step + 1)

    def save(self, folder: Path) -> None:
        """Write ``model/`` and the moments into ``folder``."""
        save_model(self._policy, self._tokenizer, folder / MODEL)
        names: dict[Tensor, str] = {parameter: name for name, parameter in self._policy.named_parameters()}
        moments = {
            f"{names[parameter]}:{key}": value.contiguous()
            for parameter, state in self._optimizer.state.items()
            for key, value in state.items()
        }
        if moments:
            save_file(moments, folder / MOMENTS)

    def _load_moments(self, moments: Mapping[str, Tensor]) -> None:
        parameters = dict(self._policy.named_parameters())
        for key, value in moments.items():
            name, _, moment = key.rpartition(":")
            self._optimizer.state[parameters[name]][moment] = value.to(self._device)

    def _settings(self) -> LossSettings:
        algorithm = self._recipe.algorithm
        cap = algorithm.correction_cap if algorithm.correction == "truncated" else None
        return LossSettings(algorithm.clip_low, algorithm.clip_high, algorithm.kl_coefficient, cap, algorithm.normalise)

    def _micro_batches(self, rows: Rows, picks: range | list[int]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Yield row numbers, tokens and mask of each micro-batch; rows without trained tokens are left out."""
        tokens, masks = rows.ragged("tokens").rows(), rows.ragged("mask").rows()
        trained = [pick for pick in picks if masks[pick].any()]
        for batch in split([len(tokens[pick]) for pick in trained], self._recipe.optimizer.micro_batch_tokens):
            chosen = [trained[i] for i in batch]
            yield chosen, self._padded([tokens[i] for i in chosen]), self._padded([masks[i] for i in chosen])

    def _pad(
        self, rows: Rows, column: str, picks: list[int], like_BT: Tensor, default_BT: Tensor | None = None
    ) -> Tensor:
        """Return a per-token column of the picked rows, padded like the tokens; ``default_BT`` if it is not there."""
        if column not in rows.columns:
            assert default_BT is not None, f"the graph gives no {column}"
            return default_BT
        found = rows.ragged(column).rows()
        padded_BT = self._padded([found[pick] for pick in picks])
        assert padded_BT.shape == like_BT.shape, column
        return padded_BT

    def _padded(self, rows: list[Tensor]) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(self._device)


def _num_trained(rows: Rows) -> int:
    return int(rows.ragged("mask").values_S.sum())


def _staleness(task: Task) -> dict[str, float]:
    """Versions between the weights that sampled each trained token and the weights that it trains."""
    mask_S = task.samples.ragged("mask").values_S
    behind_S = task.step - task.samples.ragged("version").values_S[mask_S].long()
    if not len(behind_S):
        return {}
    return {"staleness/mean": float(behind_S.double().mean()), "staleness/max": float(behind_S.max())}
