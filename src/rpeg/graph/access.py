"""Accesses: the only way a stage touches data. Delay, freshness and columns live here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Access", "Bound", "Edge", "Mode", "Refresh"]


class Mode(StrEnum):
    """What an access does to its data."""

    READ = "read"
    WRITE = "write"
    UPDATE = "update"
    """A new version of a STATE from the old one."""


class Bound(StrEnum):
    """Which version a delayed read may see."""

    EXACT = "exact"
    """Exactly version ``t - delay``."""
    AT_LEAST = "at_least"
    """The newest version that is at least that new."""


class Refresh(StrEnum):
    """When a running reader may switch to a newer version."""

    STEP = "step"
    REQUEST = "request"
    TOKEN = "token"


@dataclass(frozen=True, slots=True)
class Access:
    """One edge between a stage and data."""

    stage: str
    data: str
    mode: Mode
    columns: tuple[str, ...] = ()
    """Empty means all columns."""
    delay: int = 0
    """READ only: steps back, which is the number of initial tokens."""
    bound: Bound = Bound.EXACT
    refresh: Refresh = Refresh.STEP
    merge: str | None = None
    """UPDATE by several writers, or a soft update: ``sum``, ``mean``, ``ema(0.99)``."""

    @property
    def writes(self) -> bool:
        """Whether this access makes a new value."""
        return self.mode is not Mode.READ

    def shares_columns(self, other: Access) -> bool:
        """Whether this access and ``other``, of the same data, touch a column in common."""
        return not self.columns or not other.columns or bool(set(self.columns) & set(other.columns))


@dataclass(frozen=True, slots=True)
class Edge:
    """A dependence derived from a writer's and a reader's access; never stored."""

    writer: str
    reader: str
    data: str
    delay: int
