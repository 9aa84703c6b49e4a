"""Reading a run folder for the report."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rpeg.errors import RunFolderError
from rpeg.observe.json_files import write_json
from rpeg.observe.run_folder import RunFolder
from rpeg.view.record import read_record


def test_a_whole_run_has_no_notes(run: RunFolder) -> None:
    record = read_record(run)
    assert record.notes == ()
    assert (record.status, record.duration_s, record.command) == (
        "finished",
        75.2,
        "rpeg train examples/arithmetic.yaml",
    )
    assert record.model == "qwen3, 2 layers of 128, from scratch"
    assert (record.setting("run.steps"), record.setting("run.none.deeper")) == (60, None)
    assert record.series.steps == tuple(range(61))
    assert record.warmup.steps == tuple(range(1, 201))
    assert (len(record.spans), len(record.predicted), record.samples.total) == (300, 15, 480)


def test_an_empty_folder_is_all_notes(tmp_path: Path) -> None:
    record = read_record(RunFolder(tmp_path))
    missing = ["recipe.yaml", "run.json", "graph.txt", "metrics.jsonl", "samples.jsonl", "spans.jsonl", "model"]
    assert [note.partition(" is missing: ")[0] for note in record.notes] == missing
    assert (record.status, record.duration_s, record.model, record.command) == ("unknown", 0.0, "unknown", "")


def test_broken_files_become_notes(tmp_path: Path, make_run: Callable[..., RunFolder]) -> None:
    folder = make_run(tmp_path, steps=3)
    folder.recipe.write_text("a: [")
    folder.run.write_text("{")
    folder.samples.write_text("x\n{}\n")
    folder.spans.write_text('{"event": "e"}\n')
    folder.graph_text.write_bytes(b"\xff")
    folder.metrics.write_bytes(folder.metrics.read_bytes()[:-9])
    record = read_record(folder)
    assert [note[:28] for note in record.notes] == [
        "recipe.yaml: cannot be read ",
        "run.json: not JSON (Expectin",
        "samples.jsonl:1: not a JSON ",
        "spans.jsonl:1: not a span (S",
        "graph.txt: cannot be read ('",
    ]
    assert record.series.steps == (0, 1, 2)


def test_without_a_stated_duration_it_is_summed(tmp_path: Path, make_run: Callable[..., RunFolder]) -> None:
    folder = make_run(tmp_path, steps=2)
    write_json(folder.run, {})
    record = read_record(folder)
    assert record.duration_s == pytest.approx(200 * 0.05 + record.series.total("time/step_s"))


def test_model_with_a_path(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("model: {path: models/smol}\n")
    assert read_record(RunFolder(tmp_path)).model == "models/smol"
    (tmp_path / "recipe.yaml").write_text("model: {scratch: {architecture: qwen3}}\n")
    assert read_record(RunFolder(tmp_path)).model == "qwen3, ? layers of ?, from scratch"


def test_no_folder_is_an_error(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "none", ignore_errors=True)
    with pytest.raises(RunFolderError, match="none: does not exist"):
        read_record(RunFolder(tmp_path / "none"))
