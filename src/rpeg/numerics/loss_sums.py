"""What the policy losses of micro-batches leave behind for the metrics of a step: sums, divided once, at the end."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["EXTREMES", "SUMS", "LossSums"]

SUMS = (
    "tokens",
    "samples",
    "units",
    "policy",
    "kl",
    "entropy",
    "clipped",
    "ratio",
    "kl_old",
    "correction",
    "kl_sampler",
    "capped",
    "masked",
    "rejected",
    "weight",
    "weight_squared",
    "sample_weight",
    "sample_weight_squared",
)
"""The order of ``sums_S``; ``units`` are what the loss is averaged over, tokens or samples."""
EXTREMES = ("ratio_max", "correction_max", "minus_ratio_min", "minus_correction_min")
"""The order of ``maxima_M``."""


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over trained tokens and samples, and maxima: adding those of all micro-batches gives the metrics of a step.

    Kept as two tensors on the device of the loss, so that adding never waits for the device and ranks need one exchange
    each.
    """

    sums_S: Tensor
    """Float64, in the order of `SUMS`."""
    maxima_M: Tensor
    """Float64, in the order of `EXTREMES`; minima are maxima of the negative."""

    @classmethod
    def zero(cls) -> LossSums:
        """Return the sums over nothing."""
        return cls(
            torch.zeros(len(SUMS), dtype=torch.float64),
            torch.full((len(EXTREMES),), -torch.inf, dtype=torch.float64),
        )

    def __add__(self, other: LossSums) -> LossSums:
        """Return the sums over the tokens of both, on the device of ``other``."""
        device = other.sums_S.device
        return LossSums(self.sums_S.to(device) + other.sums_S, torch.maximum(self.maxima_M.to(device), other.maxima_M))

    def ess_share(self) -> float:
        """Return the effective sample size of the samples' weights over their number, ESS / B, in [0, 1].

        A sample weighs the mean of the weights of its tokens, 0 if it was rejected. ``(sum w)^2 / (B sum w^2)`` is 1
        when all weigh the same, 1 / B when one of them does all the work, 0 when all were rejected; 1 without samples.
        """
        sums = dict(zip(SUMS, self.sums_S.tolist(), strict=True))
        if sums["samples"] == 0:
            return 1.0
        return _effective(sums["sample_weight"], sums["sample_weight_squared"], sums["samples"])

    def learning_rate_scale(self) -> float:
        """Return what the learning rate of the update can be multiplied with: the root of ESS / B.

        Where few samples carry an update, its gradient is as noisy as that of a batch of their number; AdamW's rate
        grows with the root of a batch. Source: VCPO, arXiv:2602.17616.
        """
        return math.sqrt(self.ess_share())

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the tokens seen; without any token there are none, rather than 0 / 0.

        Tokens seen are those given to the loss: rows left out because they have no gradient are in no mean.

        ``loss/policy``, ``loss/kl``: averaged as the loss is, the latter without its coefficient.
        ``policy/ratio_*``: current against proximal, per token (length-normalised per sample, if the loss has that).
        ``policy/kl_old``: KL(proximal | current), estimated by k3. ``policy/clip_fraction``: share of tokens whose
        ratio is clipped, which leaves them without gradient except in CISPO; entropy in nats per token.
        ``correction/ratio_*``: proximal against behaviour, uncapped. ``correction/kl``: KL(behaviour | proximal),
        sampler to trainer, by k3. ``correction/capped``, ``correction/masked``: shares of tokens above the cap, and of
        weight 0; ``correction/rejected``: share of samples. ``correction/ess``: effective sample size of the weights of
        tokens, ``(sum w)^2 / (n sum w^2)``, 1 if all are equal. ``correction/ess_samples``: see `ess_share`.
        """
        sums = dict(zip(SUMS, self.sums_S.tolist(), strict=True))
        if sums["tokens"] == 0:
            return {}
        extreme = dict(zip(EXTREMES, self.maxima_M.tolist(), strict=True))
        per_token = {name: total / sums["tokens"] for name, total in sums.items()}
        return {
            "loss/policy": sums["policy"] / sums["units"],
            "loss/kl": sums["kl"] / sums["units"],
            "policy/entropy": per_token["entropy"],
            "policy/clip_fraction": per_token["clipped"],
            "policy/ratio_mean": per_token["ratio"],
            "policy/ratio_min": -extreme["minus_ratio_min"],
            "policy/ratio_max": extreme["ratio_max"],
            "policy/kl_old": per_token["kl_old"],
            "correction/ratio_mean": per_token["correction"],
            "correction/ratio_min": -extreme["minus_correction_min"],
            "correction/ratio_max": extreme["correction_max"],
            "correction/kl": per_token["kl_sampler"],
            "correction/capped": per_token["capped"],
            "correction/masked": per_token["masked"],
            "correction/rejected": sums["rejected"] / sums["samples"],
            "correction/ess": _effective(sums["weight"], sums["weight_squared"], sums["tokens"]),
            "correction/ess_samples": self.ess_share(),
        }


def _effective(total: float, total_squared: float, num: float) -> float:
    """Return ``(sum w)^2 / (n sum w^2)``; all weights may be 0, and none is effective then."""
    return total**2 / max(num * total_squared, sys.float_info.min)
