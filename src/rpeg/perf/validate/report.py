"""Everything that `rpeg validate` says about files of measurements, as one value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rpeg.errors import DataError, Fault
from rpeg.perf.validate.kinds import column_fault, untimed
from rpeg.perf.validate.measurements import Measurements, csv_files, read_measurements
from rpeg.perf.validate.outcome import Outcome, outcomes
from rpeg.perf.validate.ranking import Ranking, rank
from rpeg.perf.validate.table import SetErrors, set_errors

__all__ = ["MOST_SKIPPED", "FileReport", "Report", "validate"]

MOST_SKIPPED = 0.1
"""The share of a file's rows that may be skipped."""


@dataclass(frozen=True, slots=True)
class FileReport:
    """What became of the rows of one file."""

    name: str
    kinds: tuple[str, ...]
    """One, or where rows tell it as well several."""
    rows: int
    skipped: int
    reasons: Mapping[str, int]
    """Why rows were skipped, the most frequent first."""

    @property
    def is_failure(self) -> bool:
        """Whether so much is skipped that the errors of the rest say little."""
        return self.skipped > MOST_SKIPPED * self.rows


@dataclass(frozen=True, slots=True)
class Report:
    """The comparison of predictions with measurements."""

    files: tuple[FileReport, ...]
    outcomes: tuple[Outcome, ...]
    sets: tuple[SetErrors, ...]
    ranking: Ranking | None
    """Over the groups of all sets."""
    notes: tuple[str, ...]
    """Files of a folder that were left out."""

    @property
    def is_failure(self) -> bool:
        """Whether too much of any file is skipped."""
        return any(file.is_failure for file in self.files)


def validate(files: Sequence[Path], folders: Sequence[Path] = ()) -> Report:
    """Price every row of CSV files, and of those in folders, and compare with what was measured.

    A file of a folder that measures neither time nor bytes is left out with a note; given by itself it is a fault.

    Raises:
        DataError: with what is wrong with each file that cannot be read or is of no known kind.
    """
    measurements, notes = _read(files, folders)
    found = [outcomes(each) for each in measurements]
    reports = tuple(_file_report(each.name, rows) for each, rows in zip(measurements, found, strict=True))
    every = tuple(outcome for rows in found for outcome in rows)
    ranking = rank(priced for outcome in every for priced in outcome.priced)
    return Report(reports, every, tuple(set_errors(every)), ranking, tuple(notes))


def _read(files: Sequence[Path], folders: Sequence[Path]) -> tuple[list[Measurements], list[str]]:
    """Return what the files hold and notes on those that are left out, or raise with all faults of all files."""
    faults: list[Fault] = []
    read = [each for path in files if (each := _tried(path, faults))]
    notes: list[str] = []
    for path in (path for folder in folders for path in _tried_folder(folder, faults)):
        each = _tried(path, faults)
        if each and (what := untimed(each.columns)):
            notes.append(f"{each.name} is left out: it has {what}")
        elif each:
            read.append(each)
    faults += [fault for each in read if (fault := column_fault(each.name, each.columns))]
    if faults:
        raise DataError("measurements", faults)
    return read, notes


def _tried(path: Path, faults: list[Fault]) -> Measurements | None:
    try:
        return read_measurements(path)
    except DataError as error:
        faults.extend(error.faults)
    return None


def _tried_folder(folder: Path, faults: list[Fault]) -> list[Path]:
    try:
        return csv_files(folder)
    except DataError as error:
        faults.extend(error.faults)
    return []


def _file_report(name: str, rows: Sequence[Outcome]) -> FileReport:
    reasons = Counter(outcome.reason for outcome in rows if outcome.reason)
    kinds = tuple(dict.fromkeys(outcome.kind for outcome in rows))
    return FileReport(name, kinds, len(rows), reasons.total(), dict(reasons.most_common()))
