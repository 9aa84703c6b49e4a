"""Files of measurements: CSV with a line of column names, read so that every row keeps its place."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rpeg.errors import DataError, Fault

__all__ = ["Measurements", "Record", "csv_files", "read_measurements"]


@dataclass(frozen=True, slots=True)
class Record:
    """A row of a file."""

    place: str
    """``training.csv:12``, or with its own name ``training.csv:12 T0011``."""
    values: Mapping[str, str]
    """By column, without surrounding blanks; a cell that is missing is empty."""
    fault: str = ""
    """Why the row cannot be read, or empty."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """A file of measurements."""

    name: str
    columns: frozenset[str]
    records: tuple[Record, ...]


def read_measurements(path: Path) -> Measurements:
    """Return the rows of a CSV file in UTF-8.

    Raises:
        DataError: if there is no such file, it is not UTF-8 or no CSV, names a column twice or has no rows.
    """
    try:
        text = path.read_text("utf-8-sig")
        columns, records = _table(path.name, text)
    except UnicodeDecodeError as error:
        raise _error(path, f"is not UTF-8 (byte {error.start})", "save it as UTF-8") from error
    except csv.Error as error:
        raise _error(path, f"is not CSV ({error})", "separate values by commas, quote those with commas") from error
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise _error(path, "is no file", "give the path of a CSV file") from error
    if twice := sorted({name for name in columns if name and columns.count(name) > 1}):
        raise _error(path, f"has {', '.join(twice)} more than once among its columns", "give every column its own name")
    if not records:
        raise _error(path, "has no rows", "its first line names the columns, every other is a measurement")
    return Measurements(path.name, frozenset(columns), tuple(records))


def csv_files(folder: Path) -> list[Path]:
    """Return the CSV files of a folder, sorted.

    Raises:
        DataError: if there is no such folder or no such file in it.
    """
    found = sorted(folder.glob("*.csv")) if folder.is_dir() else []
    if not found:
        raise _error(folder, "has no .csv files" if folder.is_dir() else "is no folder", "give a folder with CSV files")
    return found


def _table(name: str, text: str) -> tuple[list[str], list[Record]]:
    """Return the columns, and every row with the line it ends in."""
    reader = csv.reader(io.StringIO(text, newline=""))
    columns = [column.strip() for column in next(reader, list[str]())]
    rows = ((reader.line_num, [cell.strip() for cell in cells]) for cells in reader)
    return columns, [_record(f"{name}:{line}", columns, cells) for line, cells in rows if any(cells)]


def _record(place: str, columns: list[str], cells: list[str]) -> Record:
    values = dict(zip(columns, cells + [""] * (len(columns) - len(cells)), strict=False))
    fault = f"has {len(cells)} values for {len(columns)} columns" if len(cells) > len(columns) else ""
    return Record(f"{place} {values.get('row_id', '')}".rstrip(), values, fault)


def _error(path: Path, what: str, remedy: str) -> DataError:
    return DataError("measurements", [Fault(str(path), what, remedy)])
