"""Text for numbers with units; inside, everything is bytes and seconds."""

from __future__ import annotations

__all__ = ["bytes_text"]

_STEPS = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def bytes_text(num_bytes: float) -> str:
    """Return bytes with three digits in decimal units, as data sheets have them.

    >>> bytes_text(121_849_864_192)
    '122 GB'
    """
    for size, unit in _STEPS:
        if abs(num_bytes) >= size * 0.9995:
            return f"{_three_digits(num_bytes / size)} {unit}"
    return f"{num_bytes:g} B"


def _three_digits(number: float) -> str:
    return f"{number:.{2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0}f}"
