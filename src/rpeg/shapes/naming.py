"""Names of models as people write them: ``LLAMA3_70B``, ``LLaMA v3.1 8B``, ``Qwen/Qwen3-32B-FP8``, ``gpt3-175B``.

A name is cut into words, versions and sizes. Of the names known, the one that has most of them in common is meant, if
nothing speaks against it: a size or a version that it lacks does, further words (``instruct``, ``SFT``, somebody's own)
do not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

__all__ = ["best_match", "nearest_names", "size_b", "words"]

_NOISE = re.compile(
    r"\(.*?\)|\[.*?\]|(?<![a-z0-9])(?:nvfp|mxfp|fp|bf|int|uint|q)\d+(?![a-z0-9])|w\d+a\d+(?:kv\d+)?|\d+-?bit"
    r"|(?<![a-z0-9])e\dm\d|(?<![a-z0-9.])1m(?![a-z0-9])|(?<![\d.])\d{4,}(?![\d.]*[bmk])"
)
"""Remarks in brackets, dtypes, context lengths, dates."""
_WORD = re.compile(
    r"\d+x\d+(?:\.\d+)?b|(?<![a-z])a\d+(?:\.\d+)?b(?![a-z])|\d+(?:\.\d+)?[bmt](?![a-z])|\d+k(?![a-z])"
    r"|\d+(?:\.\d+)*|[a-z]+"
)
_SIZE = re.compile(r"\d+(?:\.\d+)?[bmt]")
_NUMBER = re.compile(r"(?!0\.|1\.0$)\d+(?:\.\d+)*|\d+x\d.*|a\d.*b")
"""Versions, and sizes of mixtures; but not versions of the weights (``v0.3``, ``v1.0``)."""
_TOLERANCE = 0.06
"""Sizes nearer than this are one size: 69B and 70B, 6.74B and 7B."""
_UNIT_B = {"m": 1e-3, "b": 1.0, "t": 1e3}


def words(text: str) -> Counter[str]:
    """Return the words, versions and sizes of a name.

    >>> sorted(words("meta-llama/Llama-3.1-70B-Instruct").elements())
    ['3.1', '70b', 'instruct', 'llama']
    >>> sorted(words("Qwen3_30B_a3B (tokendrop)").elements())
    ['3', '30b', 'a3b', 'qwen']
    """
    name = re.sub(r"^[\w.-]+/(?=\w)", "", text.strip()).rstrip("/").rpartition("/")[2].lower()
    name = re.sub(r"v(?=\d)", " ", _NOISE.sub(" ", name.replace("_", "-")).replace("+", " plus "))
    return Counter(word for word in _WORD.findall(name) if not re.fullmatch(r"\d+k", word))


def size_b(text: str) -> float | None:
    """Return the size that a name states, in billions of parameters: 0.6 for ``Qwen3-0.6B``, None without one.

    >>> size_b("MPT-760m"), size_b("Qwen3-30B-A3B"), size_b("Kimi K2")
    (0.76, 30.0, None)
    """
    sizes = [word for word in words(text) if _SIZE.fullmatch(word)]
    return round(max(float(word[:-1]) * _UNIT_B[word[-1]] for word in sizes), 6) if sizes else None


def best_match(text: str, known: Mapping[str, Counter[str]]) -> str | None:
    """Return which of the known names (with their `words`) is meant, None if none is."""
    wanted = words(text)
    scored = [(score, name) for name, own in known.items() if (score := _score(wanted, own)) is not None]
    return max(scored)[1] if scored else None


def nearest_names(text: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the names that look most alike, the most alike first."""
    spelled = {name.lower(): name for name in known}
    return [spelled[name] for name in get_close_matches(text.lower(), spelled, n=count, cutoff=0.5)]


def _score(wanted: Counter[str], own: Counter[str]) -> tuple[int, int, int] | None:
    """Return how well a known name fits, None if something speaks against it."""
    left, lacking = wanted - own, own - wanted
    sizes, numbers = _those(left, _SIZE), _those(left, _NUMBER)
    if (sizes or lacking) and not _are_near(sizes, list(lacking.elements())):
        return None
    if numbers and not _those(own, _NUMBER):
        return None
    return own.total() - 2 * len(numbers), -lacking.total(), -left.total()


def _those(found: Counter[str], kind: re.Pattern[str]) -> list[str]:
    return [word for word in found if kind.fullmatch(word)]


def _are_near(sizes: list[str], others: list[str]) -> bool:
    """Return whether there is one size on either side, and they mean the same."""
    if len(sizes) != 1 or len(others) != 1 or not _SIZE.fullmatch(others[0]):
        return False
    first, second = (float(size[:-1]) * _UNIT_B[size[-1]] for size in (sizes[0], others[0]))
    return abs(first / second - 1) <= _TOLERANCE
