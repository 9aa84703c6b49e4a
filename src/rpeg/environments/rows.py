"""Reads the rows of a data file as dictionaries, each with the place it came from.

Three forms: ``.jsonl`` (one JSON object a line), ``.parquet``, and a folder written by ``datasets.save_to_disk``. A
fault names the file and, for JSONL, the physical line; the text of a row is never printed: it can be long and private.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rpeg.environments.suggest import listed
from rpeg.errors import DataError, Fault

__all__ = ["SUFFIXES", "Row", "limited", "path_faults", "read_rows"]

SUFFIXES = (".jsonl", ".parquet")
"""Endings of the data files that can be read; a folder is the third form."""

_FAULTS_SHOWN = 10
_FOLDER_MARKS = ("state.json", "dataset_dict.json")
"""Files that ``datasets.save_to_disk`` writes for a data set and for several splits."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row with its place."""

    where: str
    """Path and line (``data/train.jsonl:3``) or path and row number, as a fault shows it."""
    row_id: str
    """The same with the file's name only: what logs and samples carry."""
    columns: Mapping[str, Any]
    """Values by column."""


def limited(faults: Iterable[Fault], where: str) -> list[Fault]:
    """Return the first ten faults and, if there are more, one that says how many are not shown."""
    every = list(faults)
    left_out = len(every) - _FAULTS_SHOWN
    shown = every[:_FAULTS_SHOWN]
    return [*shown, Fault(where, f"{left_out} more faults like these are not shown")] if left_out > 0 else shown


def path_faults(path: Path, key: str) -> list[Fault]:
    """Return what is wrong with a data path that was given under ``key``, without reading rows."""
    if not path.exists():
        near = sorted(p.name for p in path.parent.glob("*") if p.suffix in SUFFIXES) if path.parent.is_dir() else []
        remedy = f"in {path.parent} there is {listed(near)}" if near else f"give a {' or '.join(SUFFIXES)} file"
        return [Fault(key, f"{path} does not exist", remedy)]
    if path.is_dir():
        if any((path / mark).is_file() for mark in _FOLDER_MARKS):
            return []
        return [Fault(key, f"{path} is a folder but not one written by datasets.save_to_disk", "name a file in it")]
    if path.suffix in SUFFIXES:
        return []
    remedy = f"convert it to {' or '.join(SUFFIXES)} (JSONL is one JSON object a line)"
    return [Fault(key, f"{path.name} is not a form of data that can be read", remedy)]


def read_rows(path: Path, splits: tuple[str, ...] = ("train",)) -> list[Row]:
    """Return every row of ``path``.

    Args:
        path: a file or folder of the three forms.
        splits: for a folder with several splits, the names to look for; the first one found is read.

    Raises:
        DataError: with up to ten faults, when anything in the file cannot be used, or when it has no row.
    """
    faults = path_faults(path, str(path))
    if faults:
        raise DataError(path.name, faults)
    rows = list(_read(path, splits))
    if not rows:
        raise DataError(path.name, [Fault(str(path), "the file holds no row", "give at least one")])
    return rows


def _read(path: Path, splits: tuple[str, ...]) -> Iterator[Row]:
    """Yield the rows of one file or folder."""
    if path.is_dir():
        return _numbered(path, _saved_columns(path, splits))
    if path.suffix == ".parquet":
        return _numbered(path, _parquet_columns(path))
    return iter(_read_jsonl(path))


def _numbered(path: Path, rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """Yield rows whose place is their number, counted from 1 like the lines of a file."""
    for number, columns in enumerate(rows, 1):
        yield Row(f"{path}, row {number}", f"{path.name}:{number}", columns)


def _read_jsonl(path: Path) -> list[Row]:
    """Return the rows of a JSONL file; blank lines are skipped but counted, so that numbers are those of an editor."""
    rows: list[Row] = []
    faults: list[Fault] = []
    cause: Exception | None = None
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            rows.append(Row(where, f"{path.name}:{number}", _object_of(line)))
        except ValueError as error:
            cause = cause or error
            faults.append(Fault(where, _reason(error), "each line must be one JSON object"))
    if faults:
        raise DataError(path.name, limited(faults, str(path))) from cause
    return rows


def _object_of(line: bytes) -> dict[str, Any]:
    """Return the JSON object on one line.

    Raises:
        ValueError: the line is not UTF-8, not JSON or not an object.
    """
    value = json.loads(line.decode("utf-8-sig"))
    if not isinstance(value, dict):
        noun = {list: "a list", str: "a text", type(None): "null", bool: "true or false"}.get(type(value), "a number")
        raise ValueError(f"the row is {noun}, not an object with columns")
    return value


def _reason(error: ValueError) -> str:
    """Return the fault of a line in one sentence without the line's text."""
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg[:1].lower()}{error.msg[1:]} at column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 text: byte {error.object[error.start]:#04x} at position {error.start + 1}"
    return str(error)


def _parquet_columns(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file."""
    _require("pyarrow", path)
    import pyarrow.parquet as parquet
    from pyarrow import ArrowException

    try:
        return parquet.read_table(path).to_pylist()
    except (ArrowException, OSError) as error:
        what = f"not a Parquet file: {str(error).splitlines()[0]}"
        raise DataError(path.name, [Fault(str(path), what, "write it again, or use JSONL")]) from error


def _saved_columns(path: Path, splits: tuple[str, ...]) -> Iterable[Any]:
    """Return the rows of a folder written by ``datasets.save_to_disk``."""
    _require("datasets", path)
    from datasets import DatasetDict, load_from_disk

    saved = load_from_disk(str(path))
    if not isinstance(saved, DatasetDict):
        return saved
    for split in splits:
        if split in saved:
            return saved[split]
    what = f"the folder has the splits {listed(map(str, saved))}, none of them {' or '.join(splits)}"
    raise DataError(path.name, [Fault(str(path), what, f"save the wanted split on its own, or name it {splits[0]}")])


def _require(library: str, path: Path) -> None:
    """Refuse to read ``path`` without ``library``.

    Raises:
        DataError: with the command that installs it.
    """
    if find_spec(library) is None:
        what = f"reading it needs {library}, which is not installed"
        raise DataError(path.name, [Fault(str(path), what, "pip install 'rpeg[train]', or use JSONL")])
