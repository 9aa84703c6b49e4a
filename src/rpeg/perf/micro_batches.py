"""From the lengths of samples to the micro-batches of one update: how many, how full, and how uneven over ranks.

=================  =============================================================================
symbol             meaning
=================  =============================================================================
mean, deviation    mean and standard deviation of the tokens of a sample
n                  rows of a mini-batch on one data parallel rank
R                  data parallel ranks
b                  token budget of a micro-batch
=================  =============================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from rpeg.errors import Fault, InvalidInput
from rpeg.perf.lengths import Lengths, lognormal
from rpeg.plan.plan import Balance

__all__ = [
    "FIXED_TOKENS",
    "MicroBatches",
    "busiest_tokens",
    "micro_batches",
    "packed_share",
    "padded_share",
    "seen_tokens",
    "sorted_batches",
]

FIXED_TOKENS = 128.0
"""What one more micro-batch costs beside its tokens, in tokens, as `rpeg.numerics.micro_batches` reckons."""


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """The micro-batches of one mini-batch on the busiest rank; they are taken as alike."""

    count: int
    """Every rank runs as many, because ranks wait for each other at each of them."""
    rows: float
    """Of one micro-batch, if all rows were of ``length_tokens``."""
    length_tokens: float
    """Rows of this length have the tokens of the real ones, and compare as many pairs of tokens."""
    useful_share: float
    """Of the tokens that the busiest rank works on, how many are there on average: not padding, not imbalance."""

    @property
    def total_rows(self) -> float:
        """Rows of all micro-batches of one rank."""
        return self.count * self.rows


def seen_tokens(lengths: Lengths) -> float:
    """Return the length of the sample that a token belongs to on average: ``E[L²] / E[L]``; attention costs so much.

    >>> from rpeg.perf.lengths import empirical
    >>> seen_tokens(empirical([100, 300]))
    250.0
    """
    return lengths.moment(2) / lengths.mean_tokens


def busiest_tokens(lengths: Lengths, rows: float, ranks: float, balance: Balance = Balance.ROWS) -> float:
    """Return the expected tokens on the rank that has most, with ``rows`` samples on each of ``ranks``.

    Dealt by rows: the largest of ``R`` sums of ``n``, which are taken as lognormal with the mean ``n mean`` and the
    deviation ``√n deviation`` of a sum, and no longer than ``n`` times the longest. Dealt by tokens: the even share, or
    the longest single sample.

    Example:
        >>> from rpeg.perf.lengths import lognormal
        >>> [round(busiest_tokens(lognormal(2000.0, 1.0), 8, 16, how) / 16000, 2) for how in Balance]
        [1.76, 1.0]
    """
    mean, deviation = lengths.sum_tokens(rows)
    if balance is Balance.TOKENS:
        return max(mean, lengths.expected_max(rows * ranks))
    if deviation == 0.0 or ranks <= 1:
        return mean
    if rows <= 1:
        return lengths.expected_max(ranks)
    return lognormal(mean, deviation / mean, rows * lengths.max_tokens).expected_max(ranks)


def packed_share(lengths: Lengths, budget_tokens: float) -> float:
    """Return how full micro-batches are that whole samples are packed into: the last one that is tried rarely fits.

    ``1 / (1 + mean / 2b)``, half a sample lost in each; samples of one length fill ``⌊b / mean⌋ mean / b``.

    >>> from rpeg.perf.lengths import constant, lognormal
    >>> round(packed_share(lognormal(2000.0, 1.0), 16000.0), 3), packed_share(constant(3000.0), 16000.0)
    (0.941, 0.9375)
    """
    mean = lengths.mean_tokens
    if lengths.max_tokens <= lengths.tokens[0]:
        return max(1.0, budget_tokens // mean) * mean / max(budget_tokens, mean)
    return 1.0 / (1.0 + mean / (2.0 * budget_tokens))


def padded_share(lengths: Lengths, micro_rows: float) -> float:
    """Return the share of tokens that are real where ``micro_rows`` samples are padded to their longest.

    >>> from rpeg.perf.lengths import lognormal
    >>> round(padded_share(lognormal(2000.0, 1.0), 8), 2)
    0.38
    """
    return lengths.mean_tokens / lengths.expected_max(micro_rows)


def micro_batches(
    lengths: Lengths,
    rows: float,
    ranks: float,
    *,
    micro_rows: float | None = None,
    budget_tokens: float | None = None,
    balance: Balance = Balance.ROWS,
) -> MicroBatches:
    """Return the micro-batches of ``rows`` samples on each of ``ranks``.

    With a token budget, samples are packed without padding until it is full, and the busiest rank sets their number;
    otherwise ``micro_rows`` at a time are padded to their longest, all of them where that is not given either.

    Raises:
        InvalidInput: when there are no rows, or less than one at a time.

    Example:
        >>> from rpeg.perf.lengths import constant, lognormal
        >>> micro_batches(constant(1000.0), 32, 4, micro_rows=8)
        MicroBatches(count=4, rows=8.0, length_tokens=1000.0, useful_share=1.0)
        >>> micro_batches(lognormal(1000.0, 0.5), 32, 4, budget_tokens=16000, balance=Balance.TOKENS).count
        3
    """
    _check(rows, ranks, micro_rows, budget_tokens)
    if budget_tokens is None:
        at_a_time = min(rows, micro_rows or rows)
        count, longest = ceil(rows / at_a_time - 1e-9), lengths.expected_max(at_a_time)
        return MicroBatches(count, rows / count, longest, lengths.mean_tokens / longest)
    busiest, mean = busiest_tokens(lengths, rows, ranks, balance), rows * lengths.mean_tokens
    length = seen_tokens(lengths)
    # A sample is not cut: one that is longer than the budget has a micro-batch of its own.
    budget = max(budget_tokens, length)
    count = max(1, ceil(busiest / (budget * packed_share(lengths, budget)) - 1e-9))
    return MicroBatches(count, busiest / count / length, length, mean / busiest)


def sorted_batches(lengths: Lengths, rows: float, budget_tokens: float, most_rows: float | None = None) -> MicroBatches:
    """Return the micro-batches of a trainer that sorts its rows by length and pads each batch to its longest.

    The rows are those in the middle of equal shares of the lengths. They are cut where the padded tokens of all batches
    and `FIXED_TOKENS` for each are fewest, none over the budget or of more than ``most_rows``: ``cost[i] = min over j
    of L[i] (j - i) + fixed + cost[j]``, as `rpeg.numerics.micro_batches.split` does it.

    >>> from rpeg.perf.lengths import constant, empirical
    >>> sorted_batches(constant(100.0), 64, 1600.0).count
    4
    >>> found = sorted_batches(empirical([100, 500]), 64, 1e9)  # 32 rows of 400 tokens less to pad, for 128
    >>> found.count, found.total_rows * found.length_tokens
    (2, 19200.0)
    """
    _check(rows, 1.0, None, budget_tokens)
    num_rows = max(1, round(rows))
    longest = [lengths.quantile(1.0 - (i + 0.5) / num_rows) for i in range(num_rows)]
    cost, counts = [0.0] * (num_rows + 1), [0] * (num_rows + 1)
    for first in range(num_rows - 1, -1, -1):
        most = min(max(1, int(budget_tokens // longest[first])), num_rows - first, int(most_rows or num_rows))
        each = longest[first] * np.arange(1, most + 1) + cost[first + 1 : first + 1 + most]
        best = int(np.argmin(each))
        cost[first], counts[first] = float(each[best]) + FIXED_TOKENS, counts[first + 1 + best] + 1
    padded = cost[0] - FIXED_TOKENS * counts[0]
    return MicroBatches(counts[0], rows / counts[0], padded / num_rows, lengths.mean_tokens * num_rows / padded)


def _check(rows: float, ranks: float, micro_rows: float | None, budget_tokens: float | None) -> None:
    named = {"rows": rows, "ranks": ranks, "micro_rows": micro_rows, "budget_tokens": budget_tokens}
    faults = [
        Fault(name, f"is {value:g}", "give a number above 0")
        for name, value in named.items()
        if value is not None and not value > 0
    ]
    if faults:
        raise InvalidInput("micro-batches", faults)
