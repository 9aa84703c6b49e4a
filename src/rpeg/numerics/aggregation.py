"""Aggregation: how the losses of tokens become the loss of an update.

Shapes: B rows of the micro-batch, T tokens of its longest row.

`aggregate` sums up a micro-batch, `Counts` of the *whole update* (all its micro-batches on all ranks) are what the sum
is divided by, so micro-batches and ranks are added up, never averaged, and no split changes the gradient:

==========  =============================================================  ============================
normalise   sum over a micro-batch                                         divided by
==========  =============================================================  ============================
token       the tokens                                                     tokens of the update
sample      the samples' means over their tokens                           samples of the update
constant    the tokens / ``constant_length``                               samples of the update
==========  =============================================================  ============================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Counts", "Normalise", "aggregate"]

Normalise = Literal["token", "sample", "constant"]
"""``token``: mean over all tokens of the update (DAPO, arXiv:2503.14476); ``sample``: mean over the tokens of each
sample, then over samples (GRPO, arXiv:2402.03300); ``constant``: sum over the tokens of each sample, divided by one
length for all, then mean over samples (Dr. GRPO, arXiv:2503.20783). Lengths 2 and 8 with token losses 1 and 0: 0.2,
0.5, and with the constant 10: 0.1."""


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

    def over(self, total: Callable[[float, float], Sequence[float]]) -> Counts:
        """Return the counts over all ranks; ``total`` returns the sums of what each of them gives."""
        tokens, samples = total(self.tokens, self.samples)
        return Counts(int(tokens), int(samples))

    def of(self, normalise: Normalise) -> int:
        """Return the denominator of a way to normalise; 1 for an update without tokens, whose sums are 0."""
        return max(1, self.tokens if normalise == "token" else self.samples)


def aggregate(values_BT: Tensor, mask_BT: Tensor, normalise: Normalise, constant_length: int | None = None) -> Tensor:
    """Return the sum over the micro-batch, to be divided by `Counts.of`.

    Sums in float32 whatever the dtype of the values. Samples without trained tokens add 0.

    Args:
        values_BT: One number per token, never read outside the mask.
        mask_BT: True for trained tokens.
        normalise: What is averaged over.
        constant_length: Tokens; with ``constant`` only.
    """
    assert (constant_length is not None) == (normalise == "constant"), f"{normalise}, constant {constant_length}"
    values_BT = torch.where(mask_BT, values_BT.float(), 0.0)
    if normalise == "sample":
        return (values_BT.sum(1) / mask_BT.sum(1).clamp(min=1)).sum()
    return values_BT.sum() / (constant_length or 1)
