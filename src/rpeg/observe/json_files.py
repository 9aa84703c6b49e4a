"""Text, JSON and JSON-lines files that may be cut off at any byte without losing what was there before.

Whole files are replaced (written beside, synced, renamed). Line files grow by whole lines; a killed writer can leave at
most one torn last line, which readers skip and the next writer removes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from types import TracebackType
from typing import BinaryIO, Self

from rpeg.errors import Fault, RunFolderError

__all__ = [
    "JsonLines",
    "json_line",
    "keep_lines",
    "plain",
    "read_json",
    "read_json_lines",
    "write_json",
    "write_text",
]

_BLOCK_BYTES = 65536


def plain(value: object) -> object:
    """Return ``value`` as strict JSON can hold it.

    NaN and infinities become null, tuples lists, paths text, NumPy and torch scalars or arrays plain numbers or lists.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    if callable(to_list := getattr(value, "tolist", None)):
        return plain(to_list())
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def json_line(value: object) -> str:
    """Return ``value`` as JSON on one line, without the newline."""
    strict = plain(value)
    text = json.dumps(strict, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which a model can produce, has no UTF-8 form: escape it
        return json.dumps(strict, allow_nan=False)
    return text


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of ``path`` in one atomic step if the block succeeds."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace the file at ``path`` by ``text`` (UTF-8) in one atomic step."""
    with _replacing(path) as file:
        file.write(text.encode(errors="replace"))


def write_json(path: Path, value: object) -> None:
    """Replace the file at ``path`` by ``value`` as indented JSON (see `plain`) in one atomic step."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> object | None:
    """Return the content of a JSON file, or None where there is no such file.

    Raises:
        RunFolderError: if the file is not JSON.
    """
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise RunFolderError(str(path.parent), [Fault(path.name, f"not JSON ({error})")]) from error


def read_json_lines(path: Path) -> Iterator[dict[str, object]]:
    """Yield the objects of a line file; no file means no objects, a torn last line is skipped.

    Raises:
        RunFolderError: for a line before the last that is not a JSON object; names the file and the line.
    """
    for _, row in _lines(path):
        yield row


def keep_lines(path: Path, keep: Callable[[Mapping[str, object]], bool]) -> None:
    """Rewrite a line file with only the lines whose object satisfies ``keep``, in one atomic step."""
    if not path.is_file():
        return
    with _replacing(path) as file:
        for line, row in _lines(path):
            if keep(row):
                file.write(line if line.endswith(b"\n") else line + b"\n")


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, object]]]:
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            row = _parsed(line)
            if row is not None:
                yield line, row
            elif line.endswith(b"\n"):
                fault = Fault(f"{path.name}:{number}", "not a JSON object", "delete or repair that line")
                raise RunFolderError(str(path.parent), [fault])


def _parsed(line: bytes) -> dict[str, object] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


class JsonLines:
    """A line file that grows: rows are appended and flushed, so that a killed process loses at most one line.

    The file is opened with the first row, after removing a torn last line that a killed process left.
    """

    def __init__(self, path: Path) -> None:
        """Append to ``path``; nothing is touched before the first row."""
        self._path = path
        self._file: BinaryIO | None = None

    def append(self, row: Mapping[str, object]) -> None:
        """Write one object as one line (see `plain` for what it may hold)."""
        self.extend([row])

    def extend(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Write several objects, one a line, and flush once."""
        lines = b"".join(json_line(row).encode() + b"\n" for row in rows)
        if self._file is None:
            _mend_tail(self._path)
            self._file = self._path.open("ab")
        self._file.write(lines)
        self._file.flush()

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        """Return the open file."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the file."""
        self.close()


def _mend_tail(path: Path) -> None:
    """Complete or cut off a last line without a newline, which the next line would otherwise be glued to."""
    if not path.is_file():
        return
    with path.open("r+b") as file:
        size_bytes = start = file.seek(0, os.SEEK_END)
        tail = b""
        while start > 0 and b"\n" not in tail:
            start = max(0, start - _BLOCK_BYTES)
            file.seek(start)
            tail = file.read(size_bytes - start)
        torn = tail.rpartition(b"\n")[2]
        if torn and _parsed(torn) is not None:
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
        elif torn:
            file.truncate(size_bytes - len(torn))
