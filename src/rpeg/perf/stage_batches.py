"""The micro-batches of one firing under every layout of a table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

import numpy as np
import numpy.typing as npt

from rpeg.perf.layouts import LayoutTable
from rpeg.perf.lengths import Lengths
from rpeg.perf.micro_batches import busiest_tokens, micro_batches, seen_tokens, sorted_batches
from rpeg.plan.plan import Balance

__all__ = ["Batches", "batches_of"]

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Batches:
    """The micro-batches of one firing, per layout."""

    count: _Floats
    """On each rank."""
    rows: _Floats
    """Of one, if all were of ``length_tokens``."""
    length_tokens: _Floats


def batches_of(
    lengths: Lengths,
    rows: float,
    table: LayoutTable,
    *,
    is_packed: bool,
    balance: Balance,
    budget_tokens: float | None = None,
) -> Batches:
    """Return the micro-batches of ``rows`` samples dealt to the ranks of each layout.

    Packed rows have the tokens of the busiest rank, evenly over its micro-batches, in sequences of the length that a
    token sees on average (`rpeg.perf.micro_batches.seen_tokens`). Others are padded to the longest of a micro-batch.
    With ``budget_tokens`` the software sorts and splits rows itself; a layout may say how many at most, 1 says nothing.
    """
    if budget_tokens is not None:
        found = [
            _budgeted(lengths, rows / int(dp), budget_tokens, float(micro) if micro > 1 else None)
            for dp, micro in zip(table.dp, table.micro_rows, strict=True)
        ]
        return Batches(*np.array(found).T)
    columns = [
        _batches(lengths, rows, int(dp), float(micro), is_packed, balance)
        for dp, micro in zip(table.dp, table.micro_rows, strict=True)
    ]
    return Batches(*np.array(columns).T)


@lru_cache(maxsize=1 << 14)
def _budgeted(
    lengths: Lengths, rows: float, budget_tokens: float, most_rows: float | None
) -> tuple[float, float, float]:
    found = sorted_batches(lengths, rows, budget_tokens, most_rows)
    return float(found.count), found.rows, found.length_tokens


@lru_cache(maxsize=1 << 14)
def _batches(
    lengths: Lengths, rows: float, dp: int, micro_rows: float, is_packed: bool, balance: Balance
) -> tuple[float, float, float]:
    each = rows / dp
    at_a_time = min(micro_rows, each)
    if not is_packed:
        padded = micro_batches(lengths, each, dp, micro_rows=at_a_time)
        return float(padded.count), padded.rows, padded.length_tokens
    count, length = max(1, ceil(each / at_a_time - 1e-9)), seen_tokens(lengths)
    return float(count), busiest_tokens(lengths, each, dp, balance) / count / length, length
