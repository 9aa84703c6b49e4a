"""Lists of nodes as Slurm writes them: ``nid[001000-001003,001010],login1``.

====================  ============================================================
text                  nodes
====================  ============================================================
``n1,n2``             these two; spaces and new lines part names as commas do
``n[1-3,7]``          n1 n2 n3 n7
``n[08-10]``          n08 n09 n10: numbers are as wide as the first of their range
``n[0-8/4]``          n0 n4 n8: every fourth
``r[1-2]n[1-2]``      r1n1 r1n2 r2n1 r2n2
``n[1,3[0-1]]``       n1 n30 n31
====================  ============================================================
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from rpeg.errors import Fault, HardwareError

__all__ = ["natural_order", "node_names"]

_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})(?:[/:](\d{1,9}))?")
_NAME = re.compile(r"[\w.-]*")
_IN_BRACKETS = re.compile(r"[\w.]*")
_MOST = 100_000
"""Nodes of one list; a typing error should not fill the memory."""


def natural_order(name: str) -> list[tuple[str, int]]:
    """Return a key that sorts ``n2`` before ``n10``."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def node_names(text: str) -> tuple[str, ...]:
    """Return the names that a list of nodes stands for, in its order.

    >>> node_names("nid[0998-1001,1010]")
    ('nid0998', 'nid0999', 'nid1000', 'nid1001', 'nid1010')

    Raises:
        HardwareError: when the text is outside the grammar, with the position, or names a node twice.
    """
    reader = _Reader(text)
    names = reader.items("")
    if reader.at < len(text):
        raise reader.refuse(f"has {text[reader.at]!r} at position {reader.at}")
    if not names:
        raise reader.refuse("names no node")
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise HardwareError("nodes", [Fault(name, "is there twice", "name every node once") for name in twice])
    return tuple(names)


class _Reader:
    """Reads a text from left to right; ``at`` is the position of what comes next."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def items(self, end: str) -> list[str]:
        """Read names until ``end``, which is not taken."""
        found = list[str]()
        while True:
            self._skip(" \t\n,")
            if self._next() in {"", end, "]"}:
                return found
            found += self._item(in_brackets=bool(end))
            if len(found) > _MOST:
                raise self.refuse(f"names more than {_MOST:,} nodes")

    def _item(self, in_brackets: bool) -> list[str]:
        start, names = self.at, [""]
        while (char := self._next()) not in {"", ",", "]", " ", "\t", "\n"}:
            parts = self._brackets() if char == "[" else self._plain(in_brackets)
            if len(names) * len(parts) > _MOST:
                raise self.refuse(f"names more than {_MOST:,} nodes at position {start}")
            names = [name + part for name in names for part in parts]
        return names

    def _brackets(self) -> list[str]:
        opened = self.at
        self.at += 1
        found = self.items("]")
        if self._next() != "]":
            raise self.refuse(f"opens a bracket at position {opened} and does not close it")
        if not found:
            raise self.refuse(f"has empty brackets at position {opened}")
        self.at += 1
        return found

    def _plain(self, in_brackets: bool) -> list[str]:
        start = self.at
        if in_brackets and (match := _RANGE.match(self.text, start)):
            self.at = match.end()
            return list(self._range(match))
        match = (_IN_BRACKETS if in_brackets else _NAME).match(self.text, start)
        assert match is not None
        self.at = match.end()
        if not match[0]:
            raise self.refuse(f"has {self.text[start]!r} at position {start}")
        return [match[0]]

    def _range(self, match: re.Match[str]) -> Iterator[str]:
        first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
        if last < first or not step:
            raise self.refuse(f"has the empty range {match[0]} at position {match.start()}")
        if (last - first) // step >= _MOST:
            raise self.refuse(f"names more than {_MOST:,} nodes at position {match.start()}")
        return (f"{number:0{len(match[1])}d}" for number in range(first, last + 1, step))

    def _next(self) -> str:
        return self.text[self.at : self.at + 1]

    def _skip(self, chars: str) -> None:
        while self.at < len(self.text) and self.text[self.at] in chars:
            self.at += 1

    def refuse(self, what: str) -> HardwareError:
        """Return the error of this list."""
        return HardwareError("nodes", [Fault(repr(self.text), what, "write nid[001000-001003,001010],n7")])
