"""Spans as lines, as a Chrome trace, and summed up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rpeg.errors import RunFolderError
from rpeg.observe.trace import (
    RankSpan,
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
ON_RANKS = Span(
    "train.0",
    "train",
    0,
    1,
    ("trn",),
    2.0,
    3.5,
    8,
    400,
    0,
    0,
    (RankSpan("trn/0", 2.0, 3.0), RankSpan("trn/1", 2.25, 3.5)),
)
"""A firing on two ranks: it begins with the first and ends with the last."""


def test_spans_read_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    write_spans(path, SPANS[:2])
    write_spans(path, [*SPANS[2:], ON_RANKS])
    assert list(read_spans(path)) == [*SPANS, ON_RANKS]
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
        "ranks": (),
    }
    assert ON_RANKS.as_row()["ranks"] == (
        {"worker": "trn/0", "start_s": 2.0, "end_s": 3.0},
        {"worker": "trn/1", "start_s": 2.25, "end_s": 3.5},
    )


def test_a_line_from_before_there_were_ranks_is_read(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_text('{"event":"a.0","stage":"a","firing":0,"step":1,"resources":["all"],"start_s":0.0,"end_s":1.0}\n')
    assert list(read_spans(path)) == [Span("a.0", "a", 0, 1, ("all",), 0.0, 1.0)]


def test_a_line_that_is_no_span_is_named(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_text('{"event": "a", "stage": "b"}\n')
    with pytest.raises(RunFolderError, match=r"spans\.jsonl:1: not a span .*start_s"):
        list(read_spans(path))
    row = {**ON_RANKS.as_row(), "ranks": [{"worker": "trn/0", "start_s": 2.0}]}
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(RunFolderError, match=r"spans\.jsonl:1: not a span .*end_s"):
        list(read_spans(path))


def test_keys_of_a_later_version_are_ignored() -> None:
    assert Span.from_row({**SPANS[0].as_row(), "energy_j": 3}) == SPANS[0]
    ranks = [{"worker": "trn/0", "start_s": 2.0, "end_s": 3.0, "energy_j": 3}]
    assert Span.from_row({**ON_RANKS.as_row(), "ranks": ranks}).ranks == ON_RANKS.ranks[:1]


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


def test_ranks_have_tracks_of_their_own_and_a_firing_counts_once() -> None:
    """Two firings of 1.5 and 0.5 s: 2 s of training, though the ranks have worked for 2.25 and 0.75 s in all."""
    ranks = (RankSpan("trn/10", 3.75, 4.0), RankSpan("trn/2", 3.5, 4.0))
    spans = [ON_RANKS, Span("train.1", "train", 1, 1, ("trn",), 3.5, 4.0, ranks=ranks)]
    events = chrome_trace(spans, "toy")["traceEvents"]
    assert isinstance(events, list)
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert list(names.values()) == ["trn/0", "trn/1", "trn/2", "trn/10"]
    slices = {(names[e["tid"]], e["args"]["event"]): (e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    assert slices == {
        ("trn/0", "train.0"): (2_000_000, 1_000_000),
        ("trn/1", "train.0"): (2_250_000, 1_250_000),
        ("trn/2", "train.1"): (3_500_000, 500_000),
        ("trn/10", "train.1"): (3_750_000, 250_000),
    }
    assert {event["args"]["rows"] for event in events if event["ph"] == "X"} == {8, 0}
    assert seconds_per_stage(spans) == {"train": 2.0}
    assert busy_shares(spans) == {"trn": 1.0}


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
