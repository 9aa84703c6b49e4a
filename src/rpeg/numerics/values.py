"""The loss of a critic: how far its values are from the returns, and the sums for its metrics.

Shapes: B rows of the micro-batch, T tokens of its longest row. Values outside the mask are never read. As for the
policy, the denominator is a count over the whole update, so no split changes the gradient.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from rpeg.numerics.aggregation import Counts, Normalise, aggregate

__all__ = ["ValueInputs", "ValueSums", "ValueTerms", "value_loss"]

_SUMS = ("tokens", "units", "loss", "value", "clipped", "return", "return_squared", "error", "error_squared")


@dataclass(frozen=True, slots=True)
class ValueInputs:
    """A micro-batch as the loss of a critic sees it."""

    values_BT: Tensor
    """Of the critic that is updated, with gradient."""
    old_values_BT: Tensor
    """Of the critic before the first update of the step, that the advantages were made with."""
    returns_BT: Tensor
    """What the values should have been, see `rpeg.numerics.gae.gae`."""
    mask_BT: Tensor
    """True for trained tokens."""

    def __post_init__(self) -> None:
        """Refuse shapes that broadcasting would hide."""
        shapes = [tuple(each.shape) for each in (self.values_BT, self.old_values_BT, self.returns_BT, self.mask_BT)]
        assert len(set(shapes)) == 1, f"values, old values, returns and mask are {shapes}"
        assert self.mask_BT.dtype == torch.bool, f"mask is {self.mask_BT.dtype}"


@dataclass(frozen=True, slots=True)
class ValueSums:
    """Sums over trained tokens: adding those of all micro-batches gives the exact metrics of a step."""

    sums_S: Tensor
    """Float64, on the device of the loss."""

    @classmethod
    def zero(cls) -> ValueSums:
        """Return the sums over nothing."""
        return cls(torch.zeros(len(_SUMS), dtype=torch.float64))

    def __add__(self, other: ValueSums) -> ValueSums:
        """Return the sums over the tokens of both, on the device of ``other``."""
        return ValueSums(self.sums_S.to(other.sums_S.device) + other.sums_S)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the tokens seen; none without any token.

        ``loss/value``: averaged as the loss is. ``value/mean``, ``value/return``: means per token.
        ``value/clip_fraction``: share of tokens whose clipped error counts. ``value/explained``: share of the returns'
        variance that the values explain, ``1 - var(return - value) / var(return)``; 0 if the returns do not vary.
        """
        sums = dict(zip(_SUMS, self.sums_S.tolist(), strict=True))
        if sums["tokens"] == 0:
            return {}
        mean = {name: total / sums["tokens"] for name, total in sums.items()}
        variance = mean["return_squared"] - mean["return"] ** 2
        unexplained = mean["error_squared"] - mean["error"] ** 2
        varies = variance > 64 * sys.float_info.epsilon * mean["return_squared"]
        return {
            "loss/value": sums["loss"] / sums["units"],
            "value/mean": mean["value"],
            "value/return": mean["return"],
            "value/clip_fraction": mean["clipped"],
            "value/explained": 1 - unexplained / variance if varies else 0.0,
        }


@dataclass(frozen=True, slots=True)
class ValueTerms:
    """The result of a critic's loss over one micro-batch."""

    loss: Tensor
    """This micro-batch's share of the loss of the update; the shares add up."""
    sums: ValueSums
    """For the metrics of the step."""


def value_loss(
    inputs: ValueInputs,
    clip: float | None,
    counts: Counts,
    normalise: Normalise = "token",
    constant_length: int | None = None,
) -> ValueTerms:
    """Return half the squared error of the values; with ``clip`` the larger of that and the clipped value's.

    ``max((V - R)^2, (V_old + clip(V - V_old, -clip, clip) - R)^2) / 2`` per token. The larger one is the pessimistic
    bound: a value that has moved by more than ``clip`` *towards* the return has no gradient left, one that has moved
    away from it keeps its own. V 1, V_old 5, R 10 and clip 0.2: max(81, 27.04) / 2.

    Source: PPO as in arXiv:2005.12729, section 3.

    Args:
        inputs: One micro-batch.
        clip: Most that a value moves in a step without losing its gradient, in units of reward; None: no clipping.
        counts: Of the whole update this micro-batch belongs to.
        normalise: What is averaged over.
        constant_length: See `aggregate`.
    """
    mask_BT = inputs.mask_BT
    values_BT, old_BT, returns_BT = (
        torch.where(mask_BT, each.float(), 0.0) for each in (inputs.values_BT, inputs.old_values_BT, inputs.returns_BT)
    )
    squared_BT = (values_BT - returns_BT).square()
    is_clipped_BT = torch.zeros_like(mask_BT)
    if clip is not None:
        assert clip > 0, f"value clip {clip} is not above 0"
        clipped_BT = (old_BT + (values_BT - old_BT).clamp(-clip, clip) - returns_BT).square()
        is_clipped_BT = clipped_BT > squared_BT
        squared_BT = torch.maximum(squared_BT, clipped_BT)
    total = aggregate(squared_BT / 2, mask_BT, normalise, constant_length)
    sums = _value_sums(values_BT, returns_BT, is_clipped_BT, mask_BT, total, normalise)
    return ValueTerms(total / counts.of(normalise), sums)


@torch.no_grad()
def _value_sums(
    values_BT: Tensor, returns_BT: Tensor, is_clipped_BT: Tensor, mask_BT: Tensor, total: Tensor, normalise: Normalise
) -> ValueSums:
    """Sum up what the metrics need, in float64; values and returns are 0 outside the mask."""
    errors_BT = returns_BT.double() - values_BT
    numbers = [values_BT, is_clipped_BT, returns_BT, returns_BT.double().square(), errors_BT, errors_BT.square()]
    num_tokens = mask_BT.sum()
    units = num_tokens if normalise == "token" else mask_BT.any(1).sum()
    sums = [num_tokens, units, total, *(each.sum(dtype=torch.float64) for each in numbers)]
    return ValueSums(torch.stack([each.double() for each in sums]))
