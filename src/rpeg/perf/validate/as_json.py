"""A report as JSON, for other programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from rpeg.perf.profile import Profile
from rpeg.perf.validate.bars import BARS, ORDER
from rpeg.perf.validate.outcome import Outcome
from rpeg.perf.validate.ranking import ranked_rows
from rpeg.perf.validate.report import FileReport, Report
from rpeg.perf.validate.row import Priced
from rpeg.perf.validate.table import Errors, Part, SetErrors, errors

__all__ = ["ORDER_SET", "report_record"]

ORDER_SET = "ranking of plans"
"""The name of the set with the order over all groups."""


def report_record(report: Report, profiles: Sequence[Profile], *, with_rows: bool = False) -> dict[str, Any]:
    """Return a report as plain values; errors are percentages, what is not known is null.

    ``rows`` of a set counts priced measurements, and a row of a file may hold several; ``skipped`` counts rows.
    """
    order = [_order_record(report)] if report.ranking else []
    record: dict[str, Any] = {
        "sets": [*map(_set_record, report.sets), *order],
        "files": [_file_record(file) for file in report.files],
        "profiles": [_profile_record(profile) for profile in profiles],
        "notes": list(report.notes),
    }
    return {**record, "rows": [row for each in report.outcomes for row in _rows(each)]} if with_rows else record


def _set_record(found: SetErrors) -> dict[str, Any]:
    bar = BARS.get(found.name)
    numbers = asdict(found.errors) if found.errors else dict.fromkeys(field.name for field in fields(Errors))
    return {
        "name": found.name,
        **numbers,
        "rows": found.rows,
        "skipped": found.skipped,
        "highest": asdict(found.highest) if found.highest else None,
        "lowest": asdict(found.lowest) if found.lowest else None,
        "baseline_mape_pct": found.baseline_mape_pct,
        "baseline_median_ape_pct": found.baseline_median_ape_pct,
        "extrapolated_pct": found.extrapolated_pct,
        "reasons": dict(found.reasons),
        "to_reach": asdict(bar) if bar else None,
        "is_reached": bar.reached(found) if bar else None,
        "ranking": asdict(found.ranking) if found.ranking else None,
        "by_source": _parts(found.sources),
        "by_model": _parts(found.models),
    }


def _order_record(report: Report) -> dict[str, Any]:
    """Return the order over all groups as a set: its errors are those of the rows whose order is judged."""
    assert report.ranking
    judged = [row for group in ranked_rows(_every_priced(report)) for row in group]
    reached = {"to_reach": asdict(ORDER), "is_reached": ORDER.reached(report.ranking)}
    return {"name": ORDER_SET, "skipped": 0, **asdict(errors(judged)), **asdict(report.ranking), **reached}


def _every_priced(report: Report) -> Iterator[Priced]:
    return (priced for outcome in report.outcomes for priced in outcome.priced)


def _parts(parts: Sequence[Part]) -> dict[str, Mapping[str, float]]:
    return {part.name: asdict(part.errors) for part in parts}


def _file_record(file: FileReport) -> dict[str, Any]:
    return {**asdict(file), "is_failure": file.is_failure}


def _profile_record(profile: Profile) -> dict[str, Any]:
    return {key: getattr(profile, key) for key in ("kind", "name", "version", "fitted_on", "error_pct")}


def _rows(outcome: Outcome) -> Iterator[dict[str, Any]]:
    if outcome.reason:
        yield {"place": outcome.place, "set": outcome.set, "skipped": outcome.reason}
    for priced in outcome.priced:
        error_pct = 100.0 * (priced.predicted / priced.measured - 1.0)
        yield {"place": outcome.place, **asdict(priced), "error_pct": error_pct}
