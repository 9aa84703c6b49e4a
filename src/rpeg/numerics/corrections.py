"""Off-policy corrections: what a token weighs for having been sampled by another policy than the one that is updated.

Shapes: B rows, T tokens of the longest row. Values outside the mask are never read.

The ratio is that of the proximal ("old") to the behaviour policy, both frozen during the updates of a step, so all
weights are constants. Three questions are answered independently of each other:

    weight              what a token is multiplied with: nothing, its own ratio, or the product over its sample
    token_bounds        tokens whose own ratio is outside weigh 0
    sequence_bounds     samples whose product of ratios is outside weigh 0, with all their tokens

What weighs 0 stays in the denominators: these are counts of the update, known before any ratio is.

======================================================  =================================================
truncated importance sampling, per token                ``Correction("token", cap=2.0)``
truncated importance sampling, per sequence             ``Correction("sequence", cap=2.0)``
masked importance sampling (IcePop)                     ``Correction("token", token_bounds=(0.5, 5.0))``
decoupled PPO, arXiv:2110.00641                         ``Correction("token")``
rejection of samples only                               ``Correction(sequence_bounds=(0.5, 2.0))``
======================================================  =================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rpeg.numerics.ratios import log_ratio

__all__ = ["Correction", "Weights", "correction_weights"]

_LARGEST_EXPONENT = 700.0
"""Of a float64 number, nearly."""


@dataclass(frozen=True, slots=True)
class Correction:
    """How tokens of another policy are weighed; by default not at all."""

    weight: Literal["none", "token", "sequence"] = "none"
    """What a token is multiplied with. ``token``: its ratio, of low variance but biased, since what came before it is
    not weighed (the decoupled loss of arXiv:2110.00641 and arXiv:2505.24298); ``sequence``: the product over the
    sample, unbiased until it is capped."""
    cap: float = math.inf
    """Most that a token weighs; finite for ``sequence``, whose products overflow."""
    token_bounds: tuple[float, float] | None = None
    """Least and largest ratio of a token that counts (masked importance sampling, IcePop, arXiv:2510.18855)."""
    sequence_bounds: tuple[float, float] | None = None
    """Least and largest product of ratios of a sample that counts. The product grows with length: a mean difference of
    0.012 nats over 100 tokens makes exp(1.2) = 3.3."""

    def __post_init__(self) -> None:
        """Refuse constants that mean nothing."""
        assert self.cap >= 1, f"cap {self.cap} is below 1"
        assert self.weight != "sequence" or self.cap < math.inf, "a product over a sample needs a finite cap"
        for bounds in (self.token_bounds, self.sequence_bounds):
            assert bounds is None or 0 <= bounds[0] <= 1 <= bounds[1], f"bounds {bounds} do not hold 1"


@dataclass(frozen=True, slots=True)
class Weights:
    """What the tokens of a micro-batch weigh and why."""

    ratio_BT: Tensor
    """Proximal over behaviour policy, per token, 1 outside the mask."""
    weight_BT: Tensor
    """What each token is multiplied with; constant, 1 outside the mask."""
    capped_BT: Tensor
    """Where the cap made the weight smaller; boolean."""
    masked_BT: Tensor
    """Where a bound made the weight 0, of the token or of its sample; boolean."""
    rejected_B: Tensor
    """Samples outside the bounds of their product; boolean."""


@torch.no_grad()
def correction_weights(
    old_logps_BT: Tensor, behaviour_logps_BT: Tensor, mask_BT: Tensor, correction: Correction
) -> Weights:
    """Return the weights of a micro-batch; a sample's depend on nothing but the sample.

    Behaviour -1.0 and proximal -0.9 give exp(0.1) = 1.1052, wherever the current policy has got to. The product of a
    sample is made of a float64 sum of logarithms.
    """
    difference_BT = log_ratio(old_logps_BT, behaviour_logps_BT, mask_BT)
    ratio_BT = difference_BT.exp()
    product_B1 = difference_BT.sum(1, keepdim=True, dtype=torch.float64).clamp(max=_LARGEST_EXPONENT).exp()
    uncapped = {"none": torch.ones_like(ratio_BT), "token": ratio_BT, "sequence": product_B1}[correction.weight]
    capped_BT = (uncapped > correction.cap) & mask_BT
    rejected_B = ~_within(product_B1, correction.sequence_bounds).squeeze(1) & mask_BT.any(1)
    masked_BT = ~_within(ratio_BT, correction.token_bounds) | rejected_B.unsqueeze(1)
    weight_BT = torch.where(masked_BT, 0.0, uncapped.clamp(max=correction.cap).float())
    return Weights(ratio_BT, torch.where(mask_BT, weight_BT, 1.0), capped_BT, masked_BT & mask_BT, rejected_B)


def _within(ratios: Tensor, bounds: tuple[float, float] | None) -> Tensor:
    """Return where ratios are within the bounds, ends included."""
    if bounds is None:
        return torch.ones_like(ratios, dtype=torch.bool)
    return (ratios >= bounds[0]) & (ratios <= bounds[1])
