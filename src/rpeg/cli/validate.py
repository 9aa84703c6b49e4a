"""``rpeg validate``: predictions beside measurements."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rpeg.errors import DataError, Fault

if TYPE_CHECKING:
    from rpeg.perf.validate.report import Report

__all__ = ["By", "validate"]


class By(StrEnum):
    """What errors are broken down by."""

    SOURCE = "source"
    MODEL = "model"


def validate(
    csv: Annotated[
        list[Path] | None, typer.Option("--csv", help="Measurements; columns tell the kind. Repeat it.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder: all CSV files in it.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    rows: Annotated[bool, typer.Option("--rows", help="Print every row as well.")] = False,
    by: Annotated[By | None, typer.Option(help="Print the errors of every source or model as well.")] = None,
) -> None:
    """Print how far predictions are from measurements; status 1 when over a tenth of a file has no price."""
    from rpeg.observe.json_files import json_line
    from rpeg.perf.profile import profiles
    from rpeg.perf.validate.as_json import report_record
    from rpeg.perf.validate.report import validate as compare

    if not csv and data is None:
        raise DataError("rpeg validate", [_nothing_given()])
    report = compare(csv or [], [] if data is None else [data])
    if json:
        typer.echo(json_line(report_record(report, profiles(), with_rows=rows)))
    else:
        from rpeg.view.validation import print_report

        print_report(report, profiles(), with_rows=rows, by=by.value if by else "")
    _end(report)


def _nothing_given() -> Fault:
    from rpeg.perf.validate.kinds import column_lines

    remedy = "give --csv FILE or --data FOLDER with columns of these kinds"
    return Fault("--csv", "is missing: no measurements are shipped", "\n       ".join([remedy, *column_lines()]))


def _end(report: Report) -> None:
    """End with status 1, and say of which file, when too much is skipped."""
    for file in report.files:
        if file.is_failure:
            skipped = f"{file.skipped} of {file.rows} rows"
            typer.echo(f"error: {file.name}: {skipped} have no price, over a tenth; the reasons are above", err=True)
    if report.is_failure:
        raise typer.Exit(1)
