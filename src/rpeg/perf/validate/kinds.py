"""The kinds of measurements: which one a file holds is told by its columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rpeg.errors import Fault
from rpeg.perf.validate import (
    collectives,
    inference,
    inference_silicon,
    kernels,
    memory,
    real_steps,
    rl_steps,
    training,
)
from rpeg.perf.validate.row import Priced

__all__ = ["KINDS", "Kind", "column_fault", "column_lines", "kind_of", "untimed"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of measurements, and who prices it."""

    name: str
    columns: frozenset[str]
    """The columns that tell it from the others."""
    price: Callable[[Mapping[str, str]], list[Priced]]


KINDS = (
    Kind("kernels", kernels.COLUMNS, kernels.price),
    Kind("collectives", collectives.COLUMNS, collectives.price),
    Kind("training", training.COLUMNS, training.price),
    Kind("inference", inference.COLUMNS, inference.price),
    Kind("inference_silicon", inference_silicon.COLUMNS, inference_silicon.price),
    Kind("memory", memory.COLUMNS, memory.price),
    Kind("rl_steps", rl_steps.COLUMNS, rl_steps.price),
    Kind("real_steps", real_steps.COLUMNS, real_steps.price),
)
_UNTIMED = {
    "staleness_def": "what staleness costs in learning: no measurement of time or memory",
    "peak_bf16_dense_tflops": "figures of devices: they belong into the catalogue, see rpeg.hardware",
}
"""Columns of the files that measure neither time nor bytes, and what such a file holds."""
_BYTES = re.compile(r"(bytes|[KMGTP]i?B|B)(?!\w|/s)", re.IGNORECASE)
_RESIDENT = re.compile(r"memory|activation|buffer|_[kmgt]i?b\b|bytes_per_param")


def kind_of(columns: frozenset[str], values: Mapping[str, str]) -> Kind | None:
    """Return the kind of a row: of those whose columns are all there the one with the most; None where there is none.

    Rows of training and of memory share their columns; what is measured in bytes is memory.
    """
    fitting = {kind.name: kind for kind in KINDS if kind.columns <= columns}
    if {"training", "memory"} <= set(fitting):
        return fitting["memory" if _is_memory(values) else "training"]
    return max(fitting.values(), key=lambda kind: len(kind.columns), default=None)


def _is_memory(values: Mapping[str, str]) -> bool:
    """Tell by unit and metric; ``GiB``, ``GB/GPU`` and ``B/param`` are bytes, ``GB/s`` is not."""
    is_bytes = _BYTES.match(values.get("unit", "")) is not None
    return is_bytes or _RESIDENT.search(values.get("metric", "").lower()) is not None


def untimed(columns: frozenset[str]) -> str:
    """Return what a file holds that has no measurement of time or bytes, or nothing for any other file."""
    return next((text for column, text in _UNTIMED.items() if column in columns), "")


def column_fault(name: str, columns: frozenset[str]) -> Fault | None:
    """Return what is wrong with a file whose kind its columns do not tell."""
    if text := untimed(columns):
        return Fault(name, f"has {text}", "leave it out")
    if any(kind.columns <= columns for kind in KINDS):
        return None
    closest = max(KINDS, key=lambda kind: len(kind.columns & columns) / len(kind.columns))
    lacks = ", ".join(sorted(closest.columns - columns))
    what = f"has columns of no kind of measurement: {', '.join(sorted(columns - {''})) or 'none'}"
    return Fault(
        name, what, f"{closest.name} also needs {lacks}; the kinds are {', '.join(kind.name for kind in KINDS)}"
    )


def column_lines() -> list[str]:
    """Return one line per kind with the columns it needs."""
    return [f"{kind.name}: {', '.join(sorted(kind.columns))}" for kind in KINDS]
