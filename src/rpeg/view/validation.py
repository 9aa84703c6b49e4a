"""The comparison of predictions with measurements, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table

from rpeg.perf.profile import Profile
from rpeg.perf.validate.as_json import ORDER_SET
from rpeg.perf.validate.bars import BARS, ORDER
from rpeg.perf.validate.ranking import Ranking
from rpeg.perf.validate.report import Report
from rpeg.perf.validate.table import Extreme, SetErrors

__all__ = ["print_report"]

_MOST_REASONS = 5
_By = Literal["", "source", "model"]


def print_report(
    report: Report,
    profiles: Sequence[Profile],
    *,
    with_rows: bool = False,
    by: _By = "",
    console: Console | None = None,
) -> None:
    """Print the errors per set, the order of plans, what was skipped, and the profiles; errors are in percent."""
    console = console or Console(highlight=False)
    tables = (_errors(report.sets), _extremes(report.sets), _order(report), *_broken_down(report.sets, by))
    for table in (table for table in tables if table.row_count):
        title, table.title = str(table.title), None  # rich would fold it to the width of the table
        console.print(title, style="bold", markup=False, soft_wrap=True)
        console.print(table)
        console.print()
    rows = _rows(report) if with_rows else ()
    about = f"profiles: {', '.join(map(str, profiles))}; --json says what each was fitted on"
    for line in (*_skipped(report), *rows, about):
        console.print(line, markup=False, soft_wrap=True)


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, box=None, padding=(0, 1, 0, 0))
    table.add_column(first, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    return table


def _errors(sets: Sequence[SetErrors]) -> Table:
    columns = ("rows", "skipped", "mean", "median", "p90", "constant", "to reach")
    table = _table("errors in percent; constant: the mean error of the best constant efficiency", "set", *columns)
    for each in sets:
        found = each.errors
        numbers = (found.mape_pct, found.median_ape_pct, found.p90_ape_pct) if found else (None, None, None)
        cells = [*map(_pct, numbers), _pct(each.baseline_mape_pct), _to_reach(each)]
        table.add_row(each.name, str(each.rows), str(each.skipped), *cells)
    return table


def _to_reach(found: SetErrors) -> str:
    bar = BARS.get(found.name)
    return "" if bar is None else f"{bar} {_mark(bar.reached(found))}"


def _mark(is_reached: bool) -> str:
    return "yes" if is_reached else "no"


def _extremes(sets: Sequence[SetErrors]) -> Table:
    table = _table(
        "bias, the most extreme rows, and the share that lies outside of what was fitted on", "set", *_EXTREMES
    )
    for each in sets:
        if each.errors:
            extremes = (*_extreme(each.lowest), *_extreme(each.highest))
            table.add_row(each.name, _signed(each.errors.bias_pct), *extremes, _pct(each.extrapolated_pct))
    return table


_EXTREMES = ("bias", "lowest", "row", "highest", "row", "outside")


def _extreme(found: Extreme | None) -> tuple[str, str]:
    return (_signed(found.error_pct), found.place.rpartition(" ")[2]) if found else ("", "")


def _order(report: Report) -> Table:
    table = _table("order of alternatives", "set", "groups", "rows", "Kendall tau", "top-1 regret", "to reach")
    for each in report.sets:
        if each.ranking:
            table.add_row(each.name, *_ranking(each.ranking))
    if report.ranking:
        table.add_row(ORDER_SET, *_ranking(report.ranking), f"{ORDER} {_mark(ORDER.reached(report.ranking))}")
    return table


def _ranking(found: Ranking) -> list[str]:
    return [str(found.groups), str(found.rows), f"{found.kendall_tau:.2f}", _pct(found.top1_regret_pct)]


def _broken_down(sets: Sequence[SetErrors], by: _By) -> Iterator[Table]:
    if not by:
        return
    for each in sets:
        table = _table(f"{each.name}, by {by}", by, "rows", "mean", "median", "p90", "bias")
        for part in each.sources if by == "source" else each.models:
            numbers = (part.errors.mape_pct, part.errors.median_ape_pct, part.errors.p90_ape_pct)
            table.add_row(part.name, str(part.errors.rows), *map(_pct, numbers), _signed(part.errors.bias_pct))
        yield table


def _skipped(report: Report) -> Iterator[str]:
    for file in report.files:
        yield f"{file.name} ({', '.join(file.kinds)}): {file.rows} rows, {file.skipped} skipped"
        shown = list(file.reasons.items())[:_MOST_REASONS]
        yield from (f"  {count} x {reason}" for reason, count in shown)
        if rest := len(file.reasons) - len(shown):
            yield f"  and {rest} reasons more: --json has them all"
    yield from report.notes


def _rows(report: Report) -> Iterator[str]:
    for outcome in report.outcomes:
        if outcome.reason:
            yield f"{outcome.place}  {outcome.set}  skipped: {outcome.reason}"
        for row in outcome.priced:
            error = _signed(100.0 * (row.predicted / row.measured - 1.0))
            numbers = f"predicted {row.predicted:.6g}, measured {row.measured:.6g} {row.unit}, error {error} %"
            outside = f", outside: {row.extrapolates}" if row.extrapolates else ""
            yield f"{outcome.place}  {row.set}  {row.model}  {numbers}{outside}"


def _pct(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f}"
