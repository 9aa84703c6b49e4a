"""Cells of a row as text and as numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["number", "text_of"]


def text_of(record: Mapping[str, str], *keys: str) -> str:
    """Return some columns as one text in lower case."""
    return " | ".join((record.get(key) or "").lower() for key in keys)


def number(record: Mapping[str, str], key: str) -> float:
    """Return the number in a column, 0 where there is none."""
    found = re.search(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?", (record.get(key) or "").lower())
    return float(found[0].replace(",", "")) if found else 0.0
