"""Spans as lines, as a Chrome trace, and summed up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rpeg.errors import RunFolderError
from rpeg.observe.trace import (
    Span,
    busy_shares,
    chrome_trace,
    read_spans,
    seconds_per_stage,
    write_spans,
    write_trace,
)

SPANS = [
    Span("generate", "generate", 0, 1, ("gpu:0",), 0.0, 2.0, 8, 400, 0),
    Span("train/0", "train", 0, 1, ("gpu:0", "gpu:1"), 2.0, 3.0, 8, 400, 0),
    Span("generate", "generate", 1, 2, ("gpu:0",), 3.0, 4.5, 8, 380, 1),
    Span("log", "log", 0, 1, (), 3.0, 3.5),
]


def test_spans_read_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    write_spans(path, SPANS[:2])
    write_spans(path, SPANS[2:])
    assert list(read_spans(path)) == SPANS
    assert list(read_spans(tmp_path / "none.jsonl")) == []


def test_schema_of_a_line() -> None:
    assert SPANS[1].as_row() == {
        "event": "train/0",
        "stage": "train",
        "firing": 0,
        "step": 1,
        "resources": ("gpu:0", "gpu:1"),
        "start_s": 2.0,
        "end_s": 3.0,
        "rows": 8,
        "tokens": 400,
        "version": 0,
        "bytes": 0,
    }


def test_a_line_that_is_no_span_is_named(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_text('{"event": "a", "stage": "b"}\n')
    with pytest.raises(RunFolderError, match=r"spans\.jsonl:1: not a span .*start_s"):
        list(read_spans(path))


def test_keys_of_a_later_version_are_ignored() -> None:
    assert Span.from_row({**SPANS[0].as_row(), "energy_j": 3}) == SPANS[0]


def test_chrome_trace_schema(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.json", SPANS, "toy")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert sorted(names.values()) == ["gpu:0", "gpu:1", "no resource"]
    assert [event["args"] for event in trace["traceEvents"] if event["name"] == "process_name"] == [{"name": "toy"}]
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == 5  # the training span is on two resources
    assert {event["pid"] for event in trace["traceEvents"]} == {1}
    first = next(event for event in slices if names[event["tid"]] == "gpu:1")
    assert (first["name"], first["cat"], first["ts"], first["dur"]) == ("train", "stage", 2e6, 1e6)
    assert first["args"] == {
        "event": "train/0",
        "firing": 0,
        "step": 1,
        "rows": 8,
        "tokens": 400,
        "version": 0,
        "bytes": 0,
    }


def test_overlapping_spans_of_a_resource_get_their_own_threads() -> None:
    spans = [
        Span("e", "s", i, 1, ("r",), start, end) for i, (start, end) in enumerate([(0, 2), (1, 3), (2, 4), (1.5, 1.8)])
    ]
    events = chrome_trace(spans, "toy")["traceEvents"]
    assert isinstance(events, list)
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    threads = {event["args"]["firing"]: names[event["tid"]] for event in events if event["ph"] == "X"}
    assert threads == {0: "r", 1: "r (2)", 3: "r (3)", 2: "r"}


def test_seconds_per_stage() -> None:
    assert seconds_per_stage(SPANS) == {"generate": 3.5, "train": 1.0, "log": 0.5}


def test_busy_shares_count_overlap_once() -> None:
    assert busy_shares(SPANS) == {"gpu:0": 4.5 / 4.5, "gpu:1": 1.0 / 4.5}
    overlapping = [
        Span("e", "s", 0, 1, ("r",), 0, 4),
        Span("e", "s", 1, 1, ("r",), 1, 2),
        Span("e", "s", 2, 1, ("q",), 0, 8),
    ]
    assert busy_shares(overlapping) == {"q": 1.0, "r": 0.5}
    assert busy_shares([]) == {}
    assert busy_shares([Span("e", "s", 0, 1, ("r",), 1, 1)]) == {"r": 0.0}
