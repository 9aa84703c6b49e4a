"""Distributions of lengths in tokens: what a step of generation depends on, and a mean does not tell.

A distribution is a list of lengths with their shares, so that everything below is a finite sum and exact for the list:
one length is a constant, samples of a finished run are themselves, a lognormal is cut into slices of equal width in the
logarithm, each represented by its own mean (which keeps the mean of the whole exact).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from rpeg.errors import Fault, InvalidInput

__all__ = ["Lengths", "carried", "constant", "empirical", "lognormal"]

_Floats = npt.NDArray[np.float64]

_SLICES = 200
_REACH = 5.0
"""Slices of a lognormal reach so many standard deviations to both sides; beyond lies one part in two million."""
_MOST_SAMPLES = 1024
"""More samples than these are represented by as many means of their neighbours."""


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths."""

    tokens: tuple[float, ...]
    """Distinct lengths, ascending."""
    shares: tuple[float, ...]
    """Their probabilities; they sum to one."""

    def __post_init__(self) -> None:
        """Refuse what is no distribution."""
        faults = list[Fault]()
        if len(self.tokens) != len(self.shares) or not self.tokens:
            text = f"{len(self.tokens)} lengths have {len(self.shares)} shares"
            faults.append(Fault("lengths", text, "at least one length, each with a share"))
        elif min(self.tokens) < 0 or any(b <= a for a, b in zip(self.tokens, self.tokens[1:], strict=False)):
            faults.append(Fault("lengths.tokens", "are not ascending from 0", "sort them and join equal ones"))
        elif min(self.shares) < 0 or abs(sum(self.shares) - 1) > 1e-6:
            faults.append(Fault("lengths.shares", f"sum to {sum(self.shares):g}", "shares are positive and sum to 1"))
        if faults:
            raise InvalidInput("lengths", faults)

    @cached_property
    def _tokens(self) -> _Floats:
        return np.array(self.tokens)

    @cached_property
    def _shares(self) -> _Floats:
        return np.array(self.shares)

    @cached_property
    def _below(self) -> _Floats:
        """Share and tokens of all shorter ones, before each length and after the last."""
        both = np.stack([self._shares, self._shares * self._tokens])
        return np.concatenate([np.zeros((2, 1)), np.cumsum(both, axis=1)], axis=1)

    @cached_property
    def mean_tokens(self) -> float:
        """Mean, in tokens."""
        return float(self._shares @ self._tokens)

    @property
    def max_tokens(self) -> float:
        """Longest length that occurs, in tokens."""
        return self.tokens[-1]

    def moment(self, order: int) -> float:
        """Return the mean of ``tokens ** order``.

        >>> constant(3.0).moment(2)
        9.0
        """
        return float(self._shares @ self._tokens**order)

    def sum_tokens(self, draws: float) -> tuple[float, float]:
        """Return mean and standard deviation of the sum of independent draws, in tokens.

        >>> empirical([2, 6]).sum_tokens(4)
        (16.0, 4.0)
        """
        variance = max(0.0, self.moment(2) - self.mean_tokens**2)
        return draws * self.mean_tokens, math.sqrt(draws * variance)

    def survival(self, tokens: float | _Floats) -> _Floats:
        """Return the share of lengths longer than ``tokens``.

        >>> empirical([2, 6]).survival(np.array([0.0, 2.0, 6.0])).tolist()
        [1.0, 0.5, 0.0]
        """
        return np.maximum(0.0, 1.0 - self._below[0][np.searchsorted(self._tokens, tokens, side="right")])

    def mean_within(self, tokens: float | _Floats) -> _Floats:
        """Return the mean of what lies within the first ``tokens``: ``E[min(L, tokens)]``.

        It is the integral of the survival, so its difference between two places is the survival between them.

        >>> empirical([2, 6]).mean_within(np.array([2.0, 4.0, 9.0])).tolist()
        [2.0, 3.0, 4.0]
        """
        at = np.searchsorted(self._tokens, tokens, side="right")
        return self._below[1][at] + np.asarray(tokens) * np.maximum(0.0, 1.0 - self._below[0][at])

    def quantile(self, share: float) -> float:
        """Return the length that ``share`` of all do not exceed, in tokens.

        >>> empirical([2, 6]).quantile(0.9)
        6.0
        """
        at = int(np.searchsorted(self._below[0][1:], share - 1e-12))
        return self.tokens[min(at, len(self.tokens) - 1)]

    def expected_max(self, draws: float) -> float:
        """Return the expected longest of independent draws: ``sum of L · (F(L)^n - F(before L)^n)``, in tokens.

        >>> empirical([2, 6]).expected_max(2)
        5.0
        """
        return float(np.diff(np.minimum(1.0, self._below[0]) ** draws) @ self._tokens)

    def capped(self, cap_tokens: float) -> Lengths:
        """Return the lengths when whatever is longer ends at ``cap_tokens``.

        >>> empirical([2, 6]).capped(4)
        Lengths(tokens=(2.0, 4.0), shares=(0.5, 0.5))
        """
        return _joined(zip(np.minimum(self._tokens, cap_tokens), self._shares, strict=True))

    def beyond(self, tokens: float) -> Lengths:
        """Return what is left of the lengths that are longer than ``tokens``, after as many.

        >>> empirical([2, 6, 9]).beyond(4)
        Lengths(tokens=(2.0, 5.0), shares=(0.5, 0.5))
        """
        longer = self._tokens > tokens
        if not longer.any():
            text = f"nothing is longer than {tokens:g} tokens"
            raise InvalidInput("lengths", [Fault("lengths", text, f"fewer than {self.max_tokens:g} tokens")])
        shares = self._shares[longer] / self._shares[longer].sum()
        return _joined(zip(self._tokens[longer] - tokens, shares, strict=True))

    def scaled(self, factor: float) -> Lengths:
        """Return the lengths times ``factor``.

        >>> constant(8.0).scaled(0.25).mean_tokens
        2.0
        """
        return Lengths(tuple(factor * each for each in self.tokens), self.shares)

    def mixed(self, other: Lengths, share: float) -> Lengths:
        """Return a mixture in which ``other`` has ``share``.

        >>> constant(2.0).mixed(constant(6.0), 0.25).mean_tokens
        3.0
        """
        own = ((tokens, part * (1 - share)) for tokens, part in zip(self.tokens, self.shares, strict=True))
        others = ((tokens, part * share) for tokens, part in zip(other.tokens, other.shares, strict=True))
        return _joined([*own, *others])


def constant(tokens: float) -> Lengths:
    """Return a length that is always the same.

    >>> constant(128.0).mean_tokens
    128.0
    """
    return Lengths((float(tokens),), (1.0,))


def empirical(samples: Iterable[float]) -> Lengths:
    """Return the lengths of a finished run.

    >>> empirical([1, 1, 4]).shares
    (0.6666666666666666, 0.3333333333333333)
    """
    values = np.sort(np.fromiter(samples, np.float64))
    if not len(values):
        raise InvalidInput("lengths", [Fault("samples", "there are none", "give at least one length")])
    if len(values) > _MOST_SAMPLES:
        groups = np.array_split(values, _MOST_SAMPLES)
        return _joined((float(group.mean()), len(group) / len(values)) for group in groups)
    distinct, counts = np.unique(values, return_counts=True)
    return _joined(zip(distinct, counts / len(values), strict=True))


@lru_cache(maxsize=256)
def lognormal(mean_tokens: float, variation: float, cap_tokens: float = math.inf) -> Lengths:
    """Return lognormal lengths, all that are longer than the cap ending there.

    With ``s² = ln(1 + variation²)`` the slice between ``z`` and ``z'`` has the share ``Φ(z') - Φ(z)`` and the mean
    ``mean · (Φ(z' - s) - Φ(z - s)) / share``.

    Args:
        mean_tokens: mean of what would be written without a cap.
        variation: standard deviation over the mean, without a cap; 0 is a constant.
        cap_tokens: most tokens that are written.

    >>> round(lognormal(1000.0, 1.0).mean_tokens, 6)
    1000.0
    >>> round(lognormal(1000.0, 1.0, 4096.0).mean_tokens)
    971
    """
    if not (mean_tokens > 0 and variation >= 0 and cap_tokens > 0):
        text = f"mean {mean_tokens:g}, variation {variation:g}, cap {cap_tokens:g}"
        raise InvalidInput("lengths", [Fault("lognormal", text, "mean and cap above 0, variation from 0")])
    if variation == 0:
        return constant(min(mean_tokens, cap_tokens))
    spread, normal = math.sqrt(math.log1p(variation**2)), NormalDist()
    edges = [-math.inf, *np.linspace(-_REACH, _REACH + spread, _SLICES - 1).tolist(), math.inf]
    below = np.array([normal.cdf(z) if math.isfinite(z) else float(z > 0) for z in edges])
    tokens_below = np.array([normal.cdf(z - spread) if math.isfinite(z) else float(z > 0) for z in edges])
    shares = np.diff(below)
    kept = shares > 0
    tokens = mean_tokens * np.diff(tokens_below)[kept] / shares[kept]
    return _joined(zip(tokens, shares[kept] / shares[kept].sum(), strict=True)).capped(cap_tokens)


def carried(lengths: Lengths, budget_tokens: float, max_carry: int) -> tuple[Lengths, Lengths]:
    """Return what rows of one step write, and what they bring along, when a step gives each at most a budget.

    Of the rows of a step, those carried over ``j`` times are as many as are longer than ``j`` budgets. In its last step
    a row is finished whatever it takes.

    >>> new, brought = carried(empirical([2, 6]), 4.0, 1)  # two thirds begin, one third brings four tokens along
    >>> new.tokens, brought.mean_tokens
    ((2.0, 4.0), 1.3333333333333333)
    """
    before = [j * budget_tokens for j in range(max_carry + 1) if j * budget_tokens < lengths.max_tokens]
    weights = [float(lengths.survival(tokens)) for tokens in before]
    total, pairs = sum(weights), list[tuple[float, float]]()
    for j, (tokens, weight) in enumerate(zip(before, weights, strict=True)):
        rest = lengths if tokens == 0 else lengths.beyond(tokens)
        piece = rest if j == max_carry else rest.capped(budget_tokens)
        pairs += [(each, share * weight / total) for each, share in zip(piece.tokens, piece.shares, strict=True)]
    return _joined(pairs), _joined((tokens, weight / total) for tokens, weight in zip(before, weights, strict=True))


def _joined(pairs: Iterable[tuple[float, float]]) -> Lengths:
    """Return a distribution of pairs of length and share; equal lengths are joined."""
    found: dict[float, float] = {}
    for tokens, share in pairs:
        found[float(tokens)] = found.get(float(tokens), 0.0) + float(share)
    ordered = sorted(found.items())
    return Lengths(tuple(tokens for tokens, _ in ordered), tuple(share for _, share in ordered))
