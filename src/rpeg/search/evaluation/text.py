"""The evaluation as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from rpeg.search.evaluation.line import Line
from rpeg.search.evaluation.sheet import Sheet
from rpeg.search.evaluation.solve import Solved

__all__ = ["COLUMNS", "as_csv", "as_markdown"]

COLUMNS = (
    *("scenario", "column", "gpus", "system", "modelled", "step_s", "drawn_step_s", "busy_share", "mfu"),
    *("peak_memory_share", "staleness", "parts", "tokens_per_s", "bound_s", "rewrites", "layout", "outside", "reason"),
)
"""Of the CSV: one row per system and column; ``bound_s`` is what no synchronous plan beats."""


def as_markdown(sheets: Sequence[Sheet]) -> str:
    """Return tables in Markdown, each below its assumptions."""
    return "\n".join(line for sheet in sheets for line in _sheet(sheet)).rstrip() + "\n"


def _sheet(sheet: Sheet) -> Iterator[str]:
    yield f"## {sheet.title}"
    yield ""
    yield from (f"- {note}" for note in sheet.notes)
    yield ""
    yield _row(sheet.head)
    yield _row(["---", *("---:" for _ in sheet.head[1:])])
    yield from map(_row, sheet.rows)
    yield ""


def _row(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def as_csv(solved: Sequence[Solved]) -> str:
    """Return every number as CSV; seconds and shares as they are, cells of what is not known are empty."""
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows(_cells(each, line) for each in solved for line in each.lines)
    return written.getvalue()


def _cells(solved: Solved, line: Line) -> list[object]:
    fits = line.step_s is not None
    numbers = (line.step_s, line.drawn_s, line.busy, line.mfu, line.peak, line.staleness, line.parts, line.tokens_per_s)
    return [
        *(solved.scenario, solved.column.label, solved.column.machine.gpus, line.name, int(line.is_baseline)),
        *(numbers if fits else [None] * len(numbers)),
        *(solved.bound_s, "; ".join(line.rewrites), "; ".join(line.layout), line.outside, line.reason),
    ]
