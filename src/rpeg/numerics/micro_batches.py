"""Micro-batches: which rows go through the model together.

Two passes over the same rows (old and current scores) that split them with the same arguments get the same batches,
which is what makes their scores equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["FIXED_COST_TOKENS", "split"]

FIXED_COST_TOKENS = 128
"""What one more micro-batch costs beside its tokens, in tokens. Measured for two layers of 128 on one CPU thread: 85
tokens or 3.5 ms, forwards and backwards; lower for larger models, higher for an accelerator that is not filled."""


def split(
    lengths: Sequence[int],
    budget_tokens: int,
    fixed_cost_tokens: int = FIXED_COST_TOKENS,
    most_rows: int | None = None,
) -> list[list[int]]:
    """Group rows of similar length into micro-batches of at most ``budget_tokens`` tokens, padding counted.

    Rows are sorted by length, longest first (so that what does not fit into memory fails at once), and cut where the
    sum over micro-batches of ``rows * longest + fixed_cost_tokens`` is least. Equal arguments give equal answers.

    Args:
        lengths: Tokens of each row, prompt and response; at least 1.
        budget_tokens: Most tokens of one micro-batch. A row longer than that forms a micro-batch of its own.
        fixed_cost_tokens: What one more micro-batch costs beside its tokens, in tokens.
        most_rows: Most rows of one micro-batch, however short; None: as the budget allows.

    Returns:
        Row numbers of each micro-batch; every row is in exactly one.
    """
    assert all(length >= 1 for length in lengths), "a row without tokens"
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    ends = _cheapest_ends([lengths[row] for row in order], budget_tokens, fixed_cost_tokens, most_rows or len(order))
    batches: list[list[int]] = []
    first = 0
    while first < len(order):
        batches.append(order[first : ends[first]])
        first = ends[first]
    return batches


def _cheapest_ends(lengths: Sequence[int], budget_tokens: int, fixed_cost_tokens: int, most_rows: int) -> list[int]:
    """Return, per position in falling lengths, where a micro-batch that starts there ends in the cheapest split.

    Backwards recursion: ``cost[first] = min over end of lengths[first] * (end - first) + fixed + cost[end]``, since the
    first row of a micro-batch is its longest.
    """
    num_rows = len(lengths)
    cost = np.zeros(num_rows + 1)
    ends = [num_rows] * num_rows
    for first in range(num_rows - 1, -1, -1):
        most = min(max(1, budget_tokens // lengths[first]), num_rows - first, most_rows)
        costs = lengths[first] * np.arange(1, most + 1) + cost[first + 1 : first + 1 + most]
        best = int(costs.argmin())
        ends[first] = first + 1 + best
        cost[first] = costs[best] + fixed_cost_tokens
    return ends
