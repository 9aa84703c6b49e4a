"""Tables of the evaluation as plain text cells, each with what stands above it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rpeg.search.evaluation.assumptions import assumptions
from rpeg.search.evaluation.ladder import ASYNCHRONY
from rpeg.search.evaluation.line import Line
from rpeg.search.evaluation.scenarios import Scenario
from rpeg.search.evaluation.solve import Order, Solved

__all__ = ["NONE", "Sheet", "seconds_text", "sheets_of"]

NONE = "does not fit"
"""What stands where a system has no plan."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table."""

    title: str
    notes: tuple[str, ...]
    """What it assumes, to be printed above it."""
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    values: tuple[tuple[float | None, ...], ...] = ()
    """What bars are drawn of: per row, a number per column; empty where there are none."""
    unit: str = ""
    """Of the values."""


def sheets_of(scenario: Scenario, solved: Sequence[Solved], order: Order) -> Iterator[Sheet]:
    """Yield the tables of a scenario: seconds, this system against each other one, utilisation, what does not fit."""
    notes = tuple(assumptions(scenario, solved, order))
    heads = [each.column.label for each in solved]
    names = list(dict.fromkeys(line.name for each in solved for line in each.lines))
    lines = {name: [each.line(name) for each in solved] for name in names}
    seconds = [[None if line is None else line.step_s for line in lines[name]] for name in names]
    yield Sheet(
        f"{scenario.name}: seconds per step (staleness)",
        notes,
        (scenario.title, *heads),
        tuple((_called(lines[name], name), *map(_seconds, lines[name])) for name in names),
        tuple(tuple(row) for row in seconds),
        "s",
    )
    if not scenario.sweep:
        yield _against(scenario, solved, notes, names)
    yield Sheet(
        f"{scenario.name}: utilisation: busy share / model FLOPs utilisation / fullest memory",
        notes,
        (scenario.title, *heads),
        tuple((_called(lines[name], name), *map(_use, lines[name])) for name in names),
    )
    if reasons := list(_reasons(solved)):
        yield Sheet(f"{scenario.name}: what does not fit, and why", notes, ("system", "where", "why"), tuple(reasons))


def _against(scenario: Scenario, solved: Sequence[Solved], notes: tuple[str, ...], names: Sequence[str]) -> Sheet:
    others = [name for name in names if name != ASYNCHRONY]
    values = [[_ratio(each.line(name), each.line(ASYNCHRONY)) for each in solved] for name in others]
    rows = [
        (_called([each.line(name) for each in solved], name), *("-" if v is None else f"{v:.2f}x" for v in row))
        for name, row in zip(others, values, strict=True)
    ]
    title = f"{scenario.name}: step of each over the step of this system with all freedom ({ASYNCHRONY})"
    heads = (scenario.title, *(each.column.label for each in solved))
    return Sheet(title, notes, heads, tuple(rows), tuple(tuple(row) for row in values), "x")


def _ratio(other: Line | None, mine: Line | None) -> float | None:
    if other is None or mine is None or other.step_s is None or mine.step_s is None:
        return None
    return other.step_s / mine.step_s


def _called(lines: Sequence[Line | None], name: str) -> str:
    """Return the name of a row: a baseline is modelled, which has to be seen."""
    return f"{name} (modelled)" if any(line is not None and line.is_baseline for line in lines) else name


def _seconds(line: Line | None) -> str:
    if line is None:
        return "-"
    return NONE if line.step_s is None else f"{seconds_text(line.step_s)} ({line.staleness})"


def seconds_text(seconds: float) -> str:
    """Return seconds with three digits that matter.

    >>> seconds_text(18.771), seconds_text(3.456), seconds_text(312.43)
    ('18.8', '3.46', '312')
    """
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:.1f}" if seconds < 100 else f"{seconds:,.0f}"


def _use(line: Line | None) -> str:
    if line is None or line.step_s is None:
        return "-"
    return f"{line.busy:.0%} / {line.mfu:.1%} / {line.peak:.0%}"


def _reasons(solved: Sequence[Solved]) -> Iterator[tuple[str, str, str]]:
    for each in solved:
        for line in each.lines:
            if line.step_s is None:
                yield (f"{line.name} (modelled)" if line.is_baseline else line.name), each.column.label, line.reason
