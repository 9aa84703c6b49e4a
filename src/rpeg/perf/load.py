"""What one pass through a layer is about: how much work arrives, and how it is split over devices."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from rpeg.perf.dtype import dtype_of, item_bytes
from rpeg.shapes.operations import Real

__all__ = ["Load", "Phase", "Precision", "Split"]


class Phase(StrEnum):
    """What kind of pass it is."""

    PREFILL = "prefill"
    """Whole pieces of sequences at once: prompts, and every pass of training."""
    DECODE = "decode"
    """One new token of every sequence."""


@dataclass(frozen=True, slots=True)
class Load:
    """The sequences of one pass, as one data-parallel rank sees them: before TP and CP divide the work."""

    tokens: Real
    """New tokens of all sequences together."""
    rows: Real
    """Sequences."""
    context_tokens: Real
    """Tokens that one sequence has at the end of the pass, the new ones included; in DECODE the mean over sequences."""
    phase: Phase = Phase.PREFILL

    @staticmethod
    def prefill(rows: Real, length_tokens: Real, prefix_tokens: Real = 0.0) -> Load:
        """Return the pass over ``rows`` sequences of ``length_tokens``, behind a prefix that is already cached.

        >>> Load.prefill(2.0, 100.0).tokens
        200.0
        """
        return Load(rows * length_tokens, rows, length_tokens + prefix_tokens, Phase.PREFILL)

    @staticmethod
    def packed(tokens: Real, square_tokens: Real) -> Load:
        """Return the pass over sequences of different lengths: the sum of the lengths, and of their squares.

        They compare as many pairs of tokens as ``tokens**2 / square_tokens`` sequences of equal length would.

        >>> Load.packed(100.0 + 300.0, 100.0**2 + 300.0**2).rows
        1.6
        """
        rows = tokens * tokens / square_tokens
        return Load(tokens, rows, tokens / rows, Phase.PREFILL)

    @staticmethod
    def decode(rows: Real, context_tokens: Real) -> Load:
        """Return the pass that adds a token to each of ``rows`` sequences of ``context_tokens`` on average."""
        return Load(rows, rows, context_tokens, Phase.DECODE)


@dataclass(frozen=True, slots=True)
class Split:
    """How a layer is divided."""

    tp: Real = 1.0
    cp: Real = 1.0
    ep: Real = 1.0
    """Ranks that the experts are spread over."""
    expert_tp: Real | None = None
    """Ranks that one expert is divided over; None: as everything else where ``ep`` is 1, whole otherwise."""
    is_sequence_parallel: bool = False
    """Whether norms and residuals are divided over TP as well."""
    imbalance: Real = 1.0
    """Tokens of the busiest expert rank over the mean; with one rank there is nothing to balance."""

    @property
    def experts_tp(self) -> Real:
        """Ranks that one expert is divided over."""
        if self.expert_tp is not None:
            return self.expert_tp
        return np.where(np.asarray(self.ep) > 1, 1.0, self.tp)[()]


@dataclass(frozen=True, slots=True)
class Precision:
    """Which numbers are used where."""

    products: str = "bfloat16"
    """Weights and inputs of the products of a layer."""
    experts: str | None = None
    """Of the routed experts; None: as ``products``."""
    cache: str = "bfloat16"
    """Keys and values."""
    head: str = "bfloat16"
    """The product that makes logits."""

    @property
    def hidden(self) -> str:
        """Of hidden states, and of queries in attention: narrower products read and write 16 bits."""
        return self.products if self.products in ("float32", "float16") else "bfloat16"

    @property
    def hidden_bytes(self) -> float:
        """Bytes of one value of a hidden state."""
        return item_bytes(self.hidden)

    @staticmethod
    def of(dtype: str, cache: str | None = None) -> Precision:
        """Return the precision in which all products of the layers have one dtype.

        Caches are in bfloat16 and so is the head, but for models in float32, which are in it throughout.

        >>> Precision.of("float8").cache, Precision.of("float32").cache
        ('bfloat16', 'float32')
        """
        products = dtype_of(dtype)
        usual = "float32" if products == "float32" else "bfloat16"
        return Precision(products=products, cache=cache or usual, head=usual)
