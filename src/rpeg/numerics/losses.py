"""Policy losses: what a micro-batch adds to the gradient of an update and to the metrics of a step.

Shapes: B rows of the micro-batch, T tokens of its longest row. Slot t of a row is about its token t. Values outside the
mask are never read, so padding and tool output change nothing, whatever they hold.

A loss is put together from pure functions, each a term of one formula:

    ratios         current against proximal policy, per token or of the whole sample
    surrogates     what is maximised, per token
    corrections    what a token weighs for having been sampled by another policy; constant
    kl             distance from the reference, per token
    aggregation    tokens to one sum; the caller's `Counts` of the *whole update* are the denominator

Dividing by counts of the whole update, over all micro-batches and ranks, makes the gradient the same for every split:
micro-batches and ranks are added up, never averaged. Metrics are sums too (`LossSums`) and divided once, at the end.

Names: the behaviour policy sampled the tokens, the proximal ("old") policy is the one before the first update of a
step, the current policy is the one being updated. On-policy all three agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from rpeg.numerics.aggregation import Counts, Normalise, aggregate
from rpeg.numerics.corrections import Correction, Weights, correction_weights
from rpeg.numerics.kl import Estimator, kl_estimate, kl_term
from rpeg.numerics.loss_sums import LossSums
from rpeg.numerics.ratios import importance_ratio, sequence_ratio
from rpeg.numerics.surrogates import cispo_surrogate, clipped_surrogate, is_clipped, reinforce_surrogate

__all__ = ["LossInputs", "LossSettings", "LossTerms", "Objective", "policy_loss"]

Objective = Literal["token", "sequence", "cispo", "reinforce"]
"""What is maximised: the clipped ratio of each token (PPO, GRPO, DAPO) or of each sequence, length-normalised (GSPO),
the log-probability weighted by a clipped constant ratio (CISPO), or the log-probability alone (REINFORCE: RLOO, ReMax).
"""


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
    normalise: Normalise
    """What is averaged over."""
    correction: Correction = field(default_factory=Correction)
    """What tokens of another policy weigh."""
    objective: Objective = "token"
    """What is maximised."""
    dual_clip: float | None = None
    """Tokens with a negative advantage count up to this ratio at most; above 1, None: without end."""
    kl_estimator: Estimator = "k3"
    """How the KL term is estimated."""
    constant_length: int | None = None
    """Tokens that the sum over a sample is divided by; with ``normalise="constant"`` only."""


@dataclass(frozen=True, slots=True)
class LossTerms:
    """The result of a loss over one micro-batch."""

    loss: Tensor
    """This micro-batch's share of the loss of the update, to be back-propagated as it is; the shares add up."""
    sums: LossSums
    """For the metrics of the step."""


def policy_loss(inputs: LossInputs, settings: LossSettings, counts: Counts) -> LossTerms:
    """Return a policy loss with off-policy correction and KL term.

    Per token, with r the ratio of current to proximal policy and w the correction weight, both 1 on-policy:
    ``-w surrogate(r, A, logp) + kl_coefficient w r estimate``.

    Source: PPO, arXiv:1707.06347; GRPO, arXiv:2402.03300; behaviour, proximal and current policy: decoupled PPO,
    arXiv:2110.00641; the others are named with the terms.

    KL term: its expected gradient is that of KL(current | reference) with every estimator, see `rpeg.numerics.kl`. It
    also pulls on tokens whose advantage is 0: groups without signal keep their KL term.

    Args:
        inputs: One micro-batch.
        settings: The constants.
        counts: Of the whole update this micro-batch belongs to.
    """
    mask_BT = inputs.mask_BT
    ratio_BT = _ratio(inputs, settings.objective)
    weights = correction_weights(inputs.old_logps_BT, inputs.behaviour_logps_BT, mask_BT, settings.correction)
    policy = -_aggregate(weights.weight_BT * _surrogate(inputs, settings, ratio_BT), mask_BT, settings)
    kl = torch.zeros_like(policy)
    if inputs.reference_logps_BT is not None:
        token_ratio_BT = importance_ratio(inputs.logps_BT, inputs.old_logps_BT, mask_BT)
        kl_BT = kl_term(inputs.logps_BT, inputs.reference_logps_BT, token_ratio_BT, mask_BT, settings.kl_estimator)
        kl = _aggregate(weights.weight_BT * kl_BT, mask_BT, settings)
    loss = (policy + settings.kl_coefficient * kl) / counts.of(settings.normalise)
    return LossTerms(loss, _loss_sums(inputs, settings, ratio_BT, weights, policy, kl))


def _ratio(inputs: LossInputs, objective: Objective) -> Tensor:
    ratio = sequence_ratio if objective == "sequence" else importance_ratio
    return ratio(inputs.logps_BT, inputs.old_logps_BT, inputs.mask_BT)


def _surrogate(inputs: LossInputs, settings: LossSettings, ratio_BT: Tensor) -> Tensor:
    """Return what is maximised, per token; meaningless outside the mask, where it is finite."""
    logps_BT = torch.where(inputs.mask_BT, inputs.logps_BT.float(), 0.0)
    low, high = settings.clip_low, settings.clip_high
    match settings.objective:
        case "token" | "sequence":
            return clipped_surrogate(ratio_BT, inputs.advantages_BT, low, high, settings.dual_clip)
        case "cispo":
            return cispo_surrogate(logps_BT, ratio_BT, inputs.advantages_BT, low, high)
        case "reinforce":
            return reinforce_surrogate(logps_BT, inputs.advantages_BT)


def _aggregate(values_BT: Tensor, mask_BT: Tensor, settings: LossSettings) -> Tensor:
    return aggregate(values_BT, mask_BT, settings.normalise, settings.constant_length)


@torch.no_grad()
def _loss_sums(
    inputs: LossInputs, settings: LossSettings, ratio_BT: Tensor, weights: Weights, policy: Tensor, kl: Tensor
) -> LossSums:
    """Sum up what the metrics need, in float64: the order of micro-batches must not show."""
    mask_BT = inputs.mask_BT
    weight_BT = torch.where(mask_BT, weights.weight_BT, 0.0).double()
    num_B = mask_BT.sum(1)
    sample_weight_B = weight_BT.sum(1) / num_B.clamp(min=1)
    num_tokens, num_samples = num_B.sum(), mask_BT.any(1).sum()
    per_token = [
        inputs.entropies_BT,
        _clipped(inputs, settings, ratio_BT),
        ratio_BT,
        # KL(proximal | current), the tokens being (nearly) the proximal policy's.
        kl_estimate(inputs.old_logps_BT, inputs.logps_BT, mask_BT, "k3"),
        weights.ratio_BT,
        kl_estimate(inputs.behaviour_logps_BT, inputs.old_logps_BT, mask_BT, "k3"),
        weights.capped_BT,
        weights.masked_BT,
    ]
    units = num_tokens if settings.normalise == "token" else num_samples
    token_sums = [torch.where(mask_BT, values_BT, 0).sum(dtype=torch.float64) for values_BT in per_token]
    weight_sums = [weight_BT.sum(), weight_BT.square().sum(), sample_weight_B.sum(), sample_weight_B.square().sum()]
    sums = [num_tokens, num_samples, units, policy, kl, *token_sums, weights.rejected_B.sum(), *weight_sums]
    extremes = [ratio_BT, weights.ratio_BT, -ratio_BT, -weights.ratio_BT]
    maxima = [torch.where(mask_BT, values_BT, -torch.inf).amax() for values_BT in extremes]
    return LossSums(torch.stack([total.double() for total in sums]), torch.stack(maxima).double())


def _clipped(inputs: LossInputs, settings: LossSettings, ratio_BT: Tensor) -> Tensor:
    """Return the tokens whose ratio the objective clips; boolean."""
    low, high = settings.clip_low, settings.clip_high
    match settings.objective:
        case "token" | "sequence":
            return is_clipped(ratio_BT, inputs.advantages_BT, low, high, settings.dual_clip)
        case "cispo":
            return (ratio_BT > 1 + high) | (ratio_BT < 1 - low)
        case "reinforce":
            return torch.zeros_like(inputs.mask_BT)
