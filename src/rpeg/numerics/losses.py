"""Policy losses: what a micro-batch adds to the gradient of an update and to the metrics of a step.

Shapes: B rows of the micro-batch, T tokens of its longest row. Slot t of a row is about its token t. Values outside the
mask are never read, so padding and tool output change nothing, whatever they hold.

A loss is put together from pure functions, each a term of one formula:

    importance_ratio     current against proximal policy        exp(logp - old_logp)
    correction_weight    proximal against behaviour policy      min(cap, exp(old_logp - behaviour_logp)), constant
    clipped_surrogate    what is maximised, per token
    k3                   distance from the reference, per token
    aggregate            tokens to one sum; the caller's `Counts` of the *whole update* are the denominator

Dividing by counts of the whole update, over all micro-batches and ranks, makes the gradient the same for every split:
micro-batches and ranks are added up, never averaged. Metrics are sums too (`LossSums`) and divided once, at the end.

Names: the behaviour policy sampled the tokens, the proximal ("old") policy is the one before the first update of a
step, the current policy is the one being updated. On-policy all three agree.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "Counts",
    "LossInputs",
    "LossSettings",
    "LossSums",
    "LossTerms",
    "Normalise",
    "aggregate",
    "clipped_surrogate",
    "correction_weight",
    "importance_ratio",
    "k3",
    "policy_loss",
]

Normalise = Literal["token", "sample"]
"""``token``: mean over all tokens of the update (DAPO, arXiv:2503.14476); ``sample``: mean over the tokens of each
sample, then over samples (GRPO, arXiv:2402.03300). Lengths 2 and 8 with token losses 1 and 0: 0.2 and 0.5."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a whole update is averaged over: all its micro-batches on all ranks."""

    tokens: int
    """Trained tokens."""
    samples: int
    """Samples with at least one trained token."""

    def __add__(self, other: Counts) -> Counts:
        """Return the counts over both."""
        return Counts(self.tokens + other.tokens, self.samples + other.samples)

    def of(self, normalise: Normalise) -> int:
        """Return the denominator of a way to normalise; 1 for an update without tokens, whose sums are 0."""
        return max(1, self.tokens if normalise == "token" else self.samples)


@dataclass(frozen=True, slots=True)
class LossInputs:
    """A micro-batch as the loss sees it; log-probabilities are float32, in nats, of the temperature sampled at."""

    logps_BT: Tensor
    """Of the current policy, with gradient."""
    old_logps_BT: Tensor
    """Of the proximal policy; frozen before the first update of the step. For the first update of a step these are
    ``logps_BT`` without gradient."""
    behaviour_logps_BT: Tensor
    """Of the policy that sampled, as recorded while sampling."""
    reference_logps_BT: Tensor | None
    """Of the reference policy; None without a KL term."""
    advantages_BT: Tensor
    """Per token, or [B, 1] where all tokens of a sample share one."""
    mask_BT: Tensor
    """True for trained tokens: response tokens that the policy chose, of scorable samples."""
    entropies_BT: Tensor
    """Of the current policy, without gradient; a metric only."""

    def __post_init__(self) -> None:
        """Refuse shapes that broadcasting would hide."""
        shape = self.mask_BT.shape
        scores = [self.logps_BT, self.old_logps_BT, self.behaviour_logps_BT, self.entropies_BT]
        if self.reference_logps_BT is not None:
            scores.append(self.reference_logps_BT)
        assert all(score.shape == shape for score in scores), f"{[tuple(s.shape) for s in scores]}, mask {tuple(shape)}"
        assert self.advantages_BT.shape in (shape, (shape[0], 1)), f"advantages {tuple(self.advantages_BT.shape)}"
        assert self.mask_BT.dtype == torch.bool, f"mask is {self.mask_BT.dtype}"


@dataclass(frozen=True, slots=True)
class LossSettings:
    """The constants of a policy loss."""

    clip_low: float
    """The ratio counts down to ``1 - clip_low``."""
    clip_high: float
    """The ratio counts up to ``1 + clip_high``."""
    kl_coefficient: float
    """Weight of the KL term; 0 without a reference."""
    correction_cap: float | None
    """Most that a token weighs for having been sampled by another policy; None: every token weighs 1."""
    normalise: Normalise
    """What is averaged over."""


@dataclass(frozen=True, slots=True)
class LossTerms:
    """The result of a loss over one micro-batch."""

    loss: Tensor
    """This micro-batch's share of the loss of the update, to be back-propagated as it is; the shares add up."""
    sums: LossSums
    """For the metrics of the step."""


_SUMS = (
    "tokens",
    "units",
    "policy",
    "kl",
    "entropy",
    "clipped",
    "ratio",
    "kl_old",
    "correction",
    "capped",
    "weight",
    "weight_squared",
)
_MAXIMA = ("ratio", "correction")


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over trained tokens, and maxima: adding those of all micro-batches gives the exact metrics of a step.

    Kept as two tensors on the device of the loss, so that adding never waits for the device and ranks need one exchange
    each. ``units`` are what the loss is averaged over, tokens or samples.
    """

    sums_S: Tensor
    """Float64, in the order of ``_SUMS``."""
    maxima_M: Tensor
    """Float64, in the order of ``_MAXIMA``."""

    @classmethod
    def zero(cls) -> LossSums:
        """Return the sums over nothing."""
        return cls(torch.zeros(len(_SUMS), dtype=torch.float64), torch.zeros(len(_MAXIMA), dtype=torch.float64))

    def __add__(self, other: LossSums) -> LossSums:
        """Return the sums over the tokens of both, on the device of ``other``."""
        device = other.sums_S.device
        return LossSums(self.sums_S.to(device) + other.sums_S, torch.maximum(self.maxima_M.to(device), other.maxima_M))

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the tokens seen; without any token there are none, rather than 0 / 0.

        Tokens seen are those given to the loss: rows left out because they have no gradient are in no mean.

        ``loss/policy``, ``loss/kl``: averaged as the loss is, the latter without its coefficient.
        ``policy/ratio_*``: current against proximal. ``policy/kl_old``: KL(proximal | current), estimated by k3.
        ``policy/clip_fraction``: share of tokens that clipping leaves without gradient; entropy in nats per token.
        ``correction/ratio_*``: proximal against behaviour, uncapped; ``correction/capped``: share of tokens above it.
        ``correction/ess``: effective sample size of the weights used, ``(sum w)^2 / (n sum w^2)``, 1 if all are equal.
        """
        sums = dict(zip(_SUMS, self.sums_S.tolist(), strict=True))
        if sums["tokens"] == 0:
            return {}
        largest = dict(zip(_MAXIMA, self.maxima_M.tolist(), strict=True))
        per_token = {name: total / sums["tokens"] for name, total in sums.items()}
        return {
            "loss/policy": sums["policy"] / sums["units"],
            "loss/kl": sums["kl"] / sums["units"],
            "policy/entropy": per_token["entropy"],
            "policy/clip_fraction": per_token["clipped"],
            "policy/ratio_mean": per_token["ratio"],
            "policy/ratio_max": largest["ratio"],
            "policy/kl_old": per_token["kl_old"],
            "correction/ratio_mean": per_token["correction"],
            "correction/ratio_max": largest["correction"],
            "correction/capped": per_token["capped"],
            # All weights may underflow to 0; no sample is effective then.
            "correction/ess": per_token["weight"] ** 2 / max(per_token["weight_squared"], sys.float_info.min),
        }


def policy_loss(inputs: LossInputs, settings: LossSettings, counts: Counts) -> LossTerms:
    """Return the clipped policy loss with truncated importance weights and a KL term.

    Per token, with r the importance ratio and w the correction weight, both 1 on-policy:
    ``-w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) + kl_coefficient w r k3``.

    Source: PPO, arXiv:1707.06347; GRPO, arXiv:2402.03300; clip-higher: DAPO, arXiv:2503.14476; behaviour, proximal and
    current policy: decoupled PPO, arXiv:2110.00641; truncated weights: arXiv:2505.24298.

    KL term: k3 estimates KL(current | reference). Put into a loss by itself it would follow the gradient of
    KL(reference | current), because the tokens' own probability is not differentiated; the factor ``w r`` is 1 in value
    on-policy and restores that part, so the gradient is the one of KL(current | reference), as in arXiv:2512.02556.
    It also pulls on tokens whose advantage is 0: groups without signal keep their KL term.

    Args:
        inputs: One micro-batch.
        settings: The constants.
        counts: Of the whole update this micro-batch belongs to.
    """
    mask_BT = inputs.mask_BT
    ratio_BT = importance_ratio(inputs.logps_BT, inputs.old_logps_BT, mask_BT)
    correction_BT = importance_ratio(inputs.old_logps_BT, inputs.behaviour_logps_BT, mask_BT)
    weight_BT = correction_weight(correction_BT, settings.correction_cap)
    surrogate_BT = clipped_surrogate(ratio_BT, inputs.advantages_BT, settings.clip_low, settings.clip_high)
    policy = -aggregate(weight_BT * surrogate_BT, mask_BT, settings.normalise)
    kl = torch.zeros_like(policy)
    if inputs.reference_logps_BT is not None:
        k3_BT = k3(inputs.logps_BT, inputs.reference_logps_BT, mask_BT)
        kl = aggregate(weight_BT * ratio_BT * k3_BT, mask_BT, settings.normalise)
    loss = (policy + settings.kl_coefficient * kl) / counts.of(settings.normalise)
    return LossTerms(loss, _loss_sums(inputs, settings, ratio_BT, correction_BT, policy, kl))


def importance_ratio(logps_BT: Tensor, base_logps_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return ``exp(logp - base_logp)`` per token, 1 outside the mask; gradient through ``logps_BT``."""
    return _difference(logps_BT, base_logps_BT, mask_BT).exp()


def correction_weight(correction_BT: Tensor, cap: float | None) -> Tensor:
    """Return what each token weighs: the ratio of proximal to behaviour policy, at most ``cap``; all 1 without a cap.

    A constant: it neither carries gradient nor moves during the updates of a step, since both policies are frozen.
    Behaviour -1.0 and proximal -0.9 give exp(0.1) = 1.1052, wherever the current policy has got to.
    """
    return torch.ones_like(correction_BT) if cap is None else correction_BT.detach().clamp(max=cap)


def clipped_surrogate(ratio_BT: Tensor, advantages_BT: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """Return ``min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)`` per token, to be maximised (arXiv:1707.06347)."""
    clipped_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    return torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)


def k3(logps_BT: Tensor, base_logps_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the estimate ``e^x - x - 1`` of KL(policy | base) per token, with ``x = base_logp - logp``.

    Never negative, unbiased for tokens drawn from the policy, and exact near 0, where ``e^x - 1`` would cancel.
    0 outside the mask. Source: J. Schulman, "Approximating KL divergence" (2020), estimator k3.
    """
    x_BT = _difference(base_logps_BT, logps_BT, mask_BT)
    return torch.expm1(x_BT) - x_BT


def aggregate(values_BT: Tensor, mask_BT: Tensor, normalise: Normalise) -> Tensor:
    """Return the sum over tokens, or over samples of the mean of their tokens; to be divided by `Counts.of`.

    Sums in float32 whatever the dtype of the values. Samples without trained tokens add 0.
    """
    values_BT = torch.where(mask_BT, values_BT.float(), 0.0)
    if normalise == "token":
        return values_BT.sum()
    return (values_BT.sum(1) / mask_BT.sum(1).clamp(min=1)).sum()


def _difference(logps_BT: Tensor, base_logps_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return ``logp - base_logp``, 0 outside the mask; before any exp, so that nothing out there can overflow."""
    return torch.where(mask_BT, logps_BT.float() - base_logps_BT.float(), 0.0)


@torch.no_grad()
def _loss_sums(
    inputs: LossInputs, settings: LossSettings, ratio_BT: Tensor, correction_BT: Tensor, policy: Tensor, kl: Tensor
) -> LossSums:
    """Sum up what the metrics need, in float64: the order of micro-batches must not show."""
    mask_BT = inputs.mask_BT
    weight_BT = correction_weight(correction_BT, settings.correction_cap)
    too_high_BT = (ratio_BT > 1 + settings.clip_high) & (inputs.advantages_BT > 0)
    too_low_BT = (ratio_BT < 1 - settings.clip_low) & (inputs.advantages_BT < 0)
    capped_BT = weight_BT < correction_BT if settings.correction_cap is not None else torch.zeros_like(mask_BT)
    # KL(proximal | current), the tokens being (nearly) the proximal policy's: k3 with the roles of the two exchanged.
    kl_old_BT = k3(inputs.old_logps_BT, inputs.logps_BT, mask_BT)
    num_tokens = mask_BT.sum()
    per_token = [
        inputs.entropies_BT,
        too_high_BT | too_low_BT,
        ratio_BT,
        kl_old_BT,
        correction_BT,
        capped_BT,
        weight_BT,
        weight_BT.square(),
    ]
    units = num_tokens if settings.normalise == "token" else mask_BT.any(1).sum()
    token_sums = [torch.where(mask_BT, values_BT, 0).sum(dtype=torch.float64) for values_BT in per_token]
    maxima = [torch.where(mask_BT, values_BT, 0.0).amax() for values_BT in (ratio_BT, correction_BT)]
    return LossSums(
        torch.stack([total.double() for total in (num_tokens, units, policy, kl, *token_sums)]),
        torch.stack(maxima).double(),
    )
