"""Finds the word somebody meant, for messages about a misspelt key, column, task or function."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean", "listed", "nearest"]


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Return the one of ``words`` that is spelt most like ``word``, or None when none comes close."""
    known = {candidate.lower(): candidate for candidate in words}
    found = get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    return known[found[0]] if found else None


def listed(words: Iterable[str], limit: int = 12) -> str:
    """Return ``a, b, c`` or, past ``limit`` words, the first of them and how many are left out."""
    every = list(words)
    left_out = len(every) - limit
    return ", ".join(every[:limit]) + (f" and {left_out} more" if left_out > 0 else "")


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return ``did you mean X?`` when one of ``words`` comes close, else the list of what there is."""
    every = list(words)
    match = nearest(word, every)
    return f"did you mean {match}?" if match else f"there is {listed(every) or 'nothing'}"
