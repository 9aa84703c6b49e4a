"""Data nodes: rows that flow through a step, states that survive it, and what comes from outside."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rpeg.graph.dim import Dim

__all__ = ["Column", "Data", "DataKind", "Lifetime", "ModelRef", "Per", "Symbol", "SymbolKind"]


class SymbolKind(StrEnum):
    """Who decides the value of a symbol."""

    CONST = "const"
    """Given by the recipe."""
    CHOICE = "choice"
    """The search may set it."""
    RANDOM = "random"
    """Has a distribution, such as the response length."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name that sizes may use; declared once per graph."""

    name: str
    unit: str
    """``samples``, ``tokens``, ``bytes`` or ``1``."""
    kind: SymbolKind
    doc: str
    value: int | None = None
    """The number of a CONST symbol, or the present choice."""


class DataKind(StrEnum):
    """How data relates to steps."""

    STREAM = "stream"
    """Rows of one step, consumed in order."""
    STATE = "state"
    """Versioned; survives the step."""
    EXTERNAL = "external"
    """Datasets and frozen weights: never written."""


class Lifetime(StrEnum):
    """How long a value is needed."""

    FIRING = "firing"
    STEP = "step"
    RUN = "run"
    SAVED = "saved"
    """Part of a checkpoint."""


class Per(StrEnum):
    """What one row of the data stands for."""

    SAMPLE = "sample"
    GROUP = "group"
    STEP = "step"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Column:
    """One named field of the rows."""

    name: str
    dtype: str
    shape: tuple[Dim, ...] = ()
    """Per row; ``()`` is a scalar."""
    doc: str = ""


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model the graph talks about; weights that are never updated are ``frozen``."""

    name: str
    frozen: bool = False
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Data:
    """A data node."""

    name: str
    kind: DataKind
    columns: tuple[Column, ...]
    per: Per
    model: str | None = None
    """Whose weights, gradients or moments these are."""
    versions: int = 1
    """STATE: versions kept, at least 1. STREAM: batches in flight, 0 = unbounded."""
    max_carry: int = 0
    """STATE of unfinished samples: steps a sample may be carried over."""
    lifetime: Lifetime = Lifetime.STEP
