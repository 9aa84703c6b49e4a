"""Files that a kill can cut off anywhere."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.errors import RunFolderError
from rpeg.observe.json_files import (
    JsonLines,
    json_line,
    keep_lines,
    plain,
    read_json,
    read_json_lines,
    write_json,
    write_text,
)


def test_plain_makes_strict_json() -> None:
    value = {
        "nan": math.nan,
        "inf": [math.inf, 1.5],
        3: (np.float32(0.5), np.int64(7), np.bool_(True)),
        "path": Path("a/b"),
    }
    assert plain(value) == {"nan": None, "inf": [None, 1.5], "3": [0.5, 7, True], "path": "a/b"}


def test_plain_refuses_what_it_does_not_know() -> None:
    with pytest.raises(TypeError, match="set cannot be written as JSON"):
        plain({"a": {1}})


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)))
def test_a_line_is_one_line_and_reads_back_equal(row: dict[str, object]) -> None:
    line = json_line(row)
    assert "\n" not in line
    assert json.loads(line.encode()) == row


def test_half_a_surrogate_pair_is_escaped() -> None:
    assert json_line({"a": "\ud800"}) == '{"a": "\\ud800"}'


def test_written_text_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old, and longer")
    write_text(path, "new")
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_json(path) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_read_json_names_the_broken_file(tmp_path: Path) -> None:
    assert read_json(tmp_path / "none.json") is None
    (tmp_path / "run.json").write_text('{"a": ')
    with pytest.raises(RunFolderError, match=r"run\.json: not JSON"):
        read_json(tmp_path / "run.json")


def test_rows_are_on_disk_before_the_file_is_closed(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "a.jsonl")
    assert not (tmp_path / "a.jsonl").exists()
    lines.append({"step": 1})
    assert list(read_json_lines(tmp_path / "a.jsonl")) == [{"step": 1}]
    lines.close()
    lines.close()


@given(st.integers(min_value=0, max_value=60))
def test_a_file_cut_anywhere_gives_the_whole_lines_and_goes_on(cut: int) -> None:
    import tempfile

    rows: list[dict[str, object]] = [{"step": 1, "text": "äö"}, {"step": 2, "text": "b"}]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        with JsonLines(path) as lines:
            lines.extend(rows)
        whole = path.read_bytes()
        path.write_bytes(whole[: max(0, len(whole) - cut)])
        kept = list(read_json_lines(path))
        assert kept == rows[: len(kept)]
        with JsonLines(path) as lines:
            lines.append({"step": 9})
        assert list(read_json_lines(path)) == [*kept, {"step": 9}]


def test_a_torn_line_longer_than_a_block_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step": 1}\n{"text": "' + b"x" * 200_000)
    with JsonLines(path) as lines:
        lines.append({"step": 2})
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


@pytest.mark.parametrize("broken", ["not json", "[1]", "3"])
def test_a_broken_line_before_the_last_is_named(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{broken}\n{{"step": 2}}\n')
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl:2: not a JSON object; delete or repair that line"):
        list(read_json_lines(path))


def test_keep_lines_keeps_bytes_and_completes_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step":  1}\n{"step": 2}\n{"step": 1, "a": 0}')
    keep_lines(path, lambda row: row["step"] == 1)
    assert path.read_bytes() == b'{"step":  1}\n{"step": 1, "a": 0}\n'
    keep_lines(tmp_path / "none.jsonl", lambda row: True)
    assert not (tmp_path / "none.jsonl").exists()
