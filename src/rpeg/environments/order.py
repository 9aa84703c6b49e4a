"""Which rows belong to which step: a pure function, so the step number is the whole state of the data loader."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rpeg.errors import DataError, Fault

__all__ = ["MAX_ROUNDS", "check_size", "further_rows", "rows_of_step", "shuffled"]

MAX_ROUNDS = 32
"""Rounds of sampling in one step at most."""
_ROUND_STRIDE = 2**32
"""Distance of the rounds' rows in an endless source."""
_FURTHER_EPOCHS = 2**32
"""Number of the first order of rows that rounds use; a run's own orders never get this far."""


def shuffled(size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the order of ``size`` rows in ``epoch`` (counted from 0).

    Rows are sorted by one raw 64-bit draw each. The raw stream of Philox is fixed by its definition (Salmon et al.,
    SC 2011), whereas numpy may change how ``permutation`` uses a stream between versions: a run resumed with a newer
    numpy still sees its rows in the same order.

    Returns:
        int64 array of shape [size] with every row number exactly once.
    """
    key = np.array([seed % 2**64, epoch], dtype=np.uint64)
    draws = np.random.Philox(key=key).random_raw(size)
    return np.argsort(draws, kind="stable")


# A step touches at most the end of one epoch and the start of the next.
_epoch = lru_cache(maxsize=4)(shuffled)


def rows_of_step(step: int, prompts: int, size: int | None, seed: int) -> list[int]:
    """Return the ``prompts`` row numbers of ``step`` (counted from 0).

    An endless source (``size`` None) is read straight through. A finite one is read epoch after epoch, each in an order
    of its own and with every row exactly once; a step that crosses the end of an epoch takes the rest of its rows from
    the next, so no row is ever dropped.

    Raises:
        DataError: a step needs more rows than there are.
    """
    first = step * prompts
    if size is None:
        return list(range(first, first + prompts))
    check_size(size, prompts)
    positions = range(first, first + prompts)
    return [int(_epoch(size, seed, position // size)[position % size]) for position in positions]


def further_rows(step: int, number: int, prompts: int, size: int | None, seed: int) -> list[int]:
    """Return the row numbers of round ``number`` of ``step``, where round 0 are those of `rows_of_step`.

    No round repeats a row of the step. Of a finite source every step has an order of its own for these rounds;
    they end, with fewer rows than ``prompts`` and then with none, when the step has tried every row there is.
    """
    assert 0 < number < MAX_ROUNDS, number
    first = rows_of_step(step, prompts, size, seed)
    if size is None:
        return [row + number * _ROUND_STRIDE for row in first]
    had = set(first)
    left = [row for row in shuffled(size, seed, _FURTHER_EPOCHS + step).tolist() if row not in had]
    return left[(number - 1) * prompts : number * prompts]


def check_size(size: int, prompts: int, before: int | None = None) -> None:
    """Refuse a source with fewer rows than one step takes.

    Args:
        size: rows that can be trained on.
        prompts: rows one step takes.
        before: rows there were before over-long prompts were dropped, when that is worth saying.

    Raises:
        DataError: ``size`` is less than ``prompts``.
    """
    if size >= prompts:
        return
    history = "" if before is None or before == size else f" (after over-long prompts were dropped; before: {before})"
    what = f"{size} < {prompts}: a step takes {prompts} rows and the data has {size}{history}"
    remedy = f"set algorithm.prompts to at most {size}" if size else "give data with at least one usable row"
    raise DataError("data", [Fault("algorithm.prompts", what, remedy)])
