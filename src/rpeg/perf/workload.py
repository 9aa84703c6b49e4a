"""What a plan is made for, as far as its costs go: the shape of every model, and how long prompts and answers are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rpeg.errors import Fault, InvalidInput
from rpeg.perf.lengths import Lengths, constant, empirical, lognormal
from rpeg.shapes.model import ModelShape

__all__ = ["ASSUMED", "Workload", "added", "capped_mean"]

ASSUMED: Mapping[str, float] = {"keep": 0.5}
"""Expected values of random sizes of a graph that a workload does not give; whoever uses one says so."""

_Floats = npt.NDArray[np.float64]
_QUANTILES = 32
"""Prompts and responses are cut into so many parts of equal share before they are added."""


@dataclass(frozen=True, eq=False)
class Workload:
    """Models and lengths; equal only to itself, so that tables of prices can be kept for it."""

    shapes: Mapping[str, ModelShape]
    """By role."""
    prompts: Lengths
    """Tokens of a prompt."""
    responses: Lengths
    """Tokens of a response, of all turns together."""
    dtype: str = "bfloat16"
    """Of arithmetic."""
    symbols: Mapping[str, float] = field(default_factory=dict[str, float])
    """Expected values of random sizes of the graph: ``keep``, the share of groups that a filter keeps."""
    environment_s: float | None = None
    """Seconds of an environment after each turn; None: the software's usual."""
    observation_tokens: float = 0.0
    """Tokens that an environment answers with, each turn."""
    micro_batch_tokens: float | None = None
    """Of one micro-batch at most, where the trainer sorts and splits its rows itself; None: as layouts say."""
    slots: float | None = None
    """Samples that decode at once at most, on a replica; None: as many as the engine takes."""

    def shape(self, role: str) -> ModelShape:
        """Return the shape of a role; a trunk that roles share (``actor+critic``) is that of the first.

        Raises:
            InvalidInput: when no model is given for it.
        """
        for name in (role, *role.split("+")):
            if name in self.shapes:
                return self.shapes[name]
        known = ", ".join(self.shapes) or "none"
        raise InvalidInput("workload", [Fault(f"models.{role}", "is missing", f"models are given for {known}")])

    @cached_property
    def samples(self) -> Lengths:
        """Tokens of a prompt and its response together, as if the one said nothing about the other."""
        return added(self.prompts, self.responses)

    @cached_property
    def item_bytes(self) -> float:
        """Bytes of a number of arithmetic."""
        return 4.0 if self.dtype == "float32" else 2.0


def added(a: Lengths, b: Lengths) -> Lengths:
    """Return the sum of two independent lengths.

    >>> from rpeg.perf.lengths import constant, empirical
    >>> added(constant(100.0), empirical([10, 30])).tokens
    (110.0, 130.0)
    """
    return empirical(np.add.outer(_parts(a), _parts(b)).ravel())


def capped_mean(mean_tokens: float, variation: float, cap_tokens: float) -> Lengths:
    """Return lognormal lengths that end at a cap and then have this mean; all at the cap where it is no less than that.

    >>> found = capped_mean(3000.0, 1.0, 4096.0)
    >>> round(found.mean_tokens), round(float(found.survival(4095.0)), 2)
    (3000, 0.42)
    """
    if mean_tokens >= 0.99 * cap_tokens or variation == 0.0:
        return constant(min(mean_tokens, cap_tokens))
    low, high = mean_tokens, 100.0 * cap_tokens if cap_tokens < float("inf") else mean_tokens
    for _ in range(40):
        middle = (low * high) ** 0.5
        is_short = lognormal(middle, variation, cap_tokens).mean_tokens < mean_tokens
        low, high = (middle, high) if is_short else (low, middle)
    return lognormal(high, variation, cap_tokens)


def _parts(lengths: Lengths) -> list[float]:
    """Return lengths of equal shares: the means between neighbouring quantiles, which keep the mean of all."""
    if len(lengths.tokens) == 1:
        return list(lengths.tokens)
    tokens, shares = np.array(lengths.tokens), np.array(lengths.shares)
    places = np.concatenate([[0.0], np.cumsum(shares)])
    sums = np.concatenate([[0.0], np.cumsum(shares * tokens)])
    edges = np.arange(_QUANTILES + 1) * (float(places[-1]) / _QUANTILES)
    below: _Floats = np.interp(edges, places, sums)
    return [float(below[i + 1] - below[i]) * _QUANTILES / float(places[-1]) for i in range(_QUANTILES)]
