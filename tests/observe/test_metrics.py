"""Metrics written and read back."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from rpeg.observe.metrics import METRICS, MetricsWriter, meaning, read_series
from rpeg.observe.run_folder import RunFolder

UNITS = {"", "share", "count", "tokens", "nats", "s", "tokens/s", "versions"}


def test_every_metric_is_documented() -> None:
    assert all(metric.unit in UNITS and metric.meaning.endswith(".") for metric in METRICS.values())
    assert all(
        key.startswith(("time/", "perf/")) == (metric.unit in ("s", "tokens/s")) for key, metric in METRICS.items()
    )


def test_meaning_of_stage_times_and_of_unknown_keys() -> None:
    assert meaning("reward/mean") is METRICS["reward/mean"]
    assert (meaning("time/generate_s").unit, meaning("time/generate_s").meaning) == ("s", "Time in the stage generate.")
    assert meaning("my/own").unit == ""


def test_writer_appends_lines(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with MetricsWriter(folder, tensorboard=False) as writer:
        assert not writer.has_tensorboard
        writer.write_step({"step": 0, "eval/accuracy": 0.5})
        writer.write_step({"step": 1, "reward/mean": math.nan, "loss/policy": -0.25})
        writer.write_warmup(1, 2.5, 3e-3, 0.05)
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert lines == [{"step": 0, "eval/accuracy": 0.5}, {"step": 1, "reward/mean": None, "loss/policy": -0.25}]
    assert json.loads(folder.warmup.read_text()) == {"update": 1, "loss": 2.5, "lr": 3e-3, "time/s": 0.05}


def test_writer_without_warmup_leaves_no_file_of_it(tmp_path: Path) -> None:
    with MetricsWriter(RunFolder(tmp_path), tensorboard=False) as writer:
        writer.write_step({"step": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_metrics_without_a_step_are_our_own_mistake(tmp_path: Path) -> None:
    with MetricsWriter(RunFolder(tmp_path), tensorboard=False) as writer, pytest.raises(AssertionError, match="step"):
        writer.write_step({"reward/mean": 1.0})


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    with MetricsWriter(RunFolder(tmp_path)) as writer:
        assert writer.has_tensorboard
        writer.write_step({"step": 3, "reward/mean": 0.5, "reward/std": None})
    (path,) = (tmp_path / "tensorboard").iterdir()
    data = path.read_bytes()
    scalars = []
    while data:  # a record: length (8 bytes), checksum (4), payload, checksum (4)
        size = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + size])
        scalars.extend((event.step, value.tag, value.simple_value) for value in event.summary.value)
        data = data[16 + size :]
    assert scalars == [(3, "reward/mean", 0.5)]


def test_without_tensorboardx_lines_are_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with MetricsWriter(RunFolder(tmp_path)) as writer:
        assert not writer.has_tensorboard
        writer.write_step({"step": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_series_by_column(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 0, "eval/accuracy": 0.25}\n{"step": 2, "reward/mean": 1}\n'
        '{"step": 1, "reward/mean": 0.5}\n{"step": 2, "reward/mean": 0.75, "note": "text"}\n'
        '{"reward/mean": 9}\n{"step": 3, "rew'
    )
    series = read_series(path)
    assert series.steps == (0, 1, 2)
    assert series.columns == {
        "step": (0, 1, 2),
        "eval/accuracy": (0.25, None, None),
        "reward/mean": (None, 0.5, 0.75),
        "note": (None, None, None),
    }
    assert series.points("reward/mean") == [(1, 0.5), (2, 0.75)]
    assert (series.first("reward/mean"), series.last("reward/mean"), series.total("reward/mean")) == (0.5, 0.75, 1.25)
    assert (series.points("none"), series.first("none"), series.last("none"), series.total("none")) == (
        [],
        None,
        None,
        0,
    )


def test_series_of_nothing(tmp_path: Path) -> None:
    assert read_series(tmp_path / "none.jsonl").steps == ()


def test_series_of_the_warmup(tmp_path: Path) -> None:
    path = tmp_path / "warmup.jsonl"
    path.write_text('{"update": 1, "loss": 2.0}\n{"update": 2, "loss": 1.0}\n')
    assert read_series(path, "update").points("loss") == [(1, 2.0), (2, 1.0)]
