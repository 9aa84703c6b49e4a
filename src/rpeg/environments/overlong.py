"""The soft punishment of overlong answers of DAPO (Yu et al. 2025, arXiv:2503.14476, equation 13)."""

from __future__ import annotations

__all__ = ["overlong_penalty"]


def overlong_penalty(length: int, limit: int, buffer: int) -> float:
    """Return 0 up to ``limit - buffer`` tokens, from there a straight line down to -1 at ``limit``.

    Args:
        length: tokens of the answer, its end token included.
        limit: longest answer, in tokens.
        buffer: tokens before the limit over which the penalty grows; 0 = there is none.

    >>> [overlong_penalty(length, limit=20, buffer=8) for length in (12, 14, 20)]
    [0.0, -0.25, -1.0]
    """
    return 0.0 - min(1.0, max(0, length - (limit - buffer)) / buffer) if buffer else 0.0
