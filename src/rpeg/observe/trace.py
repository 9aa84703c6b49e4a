"""Spans: one record per firing of an event, predicted or measured; as JSON lines and as a Chrome trace; summed up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rpeg.errors import Fault, RunFolderError
from rpeg.hardware.nodes import natural_order
from rpeg.observe.json_files import JsonLines, read_json_lines, write_text

__all__ = [
    "RankSpan",
    "Span",
    "busy_shares",
    "chrome_trace",
    "read_spans",
    "seconds_per_stage",
    "write_spans",
    "write_trace",
]

_UNBOUND = "no resource"
_Part = tuple[str, float, float]
"""A slice of a trace: the track it is on, start and end."""


@dataclass(frozen=True, slots=True)
class RankSpan:
    """What one rank of a mesh did of a firing."""

    worker: str
    """Name of the rank's worker: ``trn/1``."""
    start_s: float
    """Start, in seconds since the run began, on the clock of the controller."""
    end_s: float
    """End, likewise."""


@dataclass(frozen=True, slots=True)
class Span:
    """One firing of one event."""

    event: str
    """Name of the event, the same in the prediction and in the measurement."""
    stage: str
    """Stage of the graph that the event belongs to."""
    firing: int
    """Number of the firing of this event, from 0."""
    step: int
    """Step that the firing belongs to."""
    resources: tuple[str, ...]
    """Names of the devices or workers that it held; empty for none."""
    start_s: float
    """Start, in seconds since the run began."""
    end_s: float
    """End, in seconds since the run began; not before ``start_s``."""
    rows: int = 0
    """Rows that went through."""
    tokens: int = 0
    """Tokens that went through."""
    version: int | None = None
    """Version of the weights that it read or wrote; None where it uses none."""
    bytes: int = 0
    """Bytes that it moved to its devices or away from them, or sent to other ranks."""
    ranks: tuple[RankSpan, ...] = ()
    """When each rank worked on it, in their order; empty on a mesh of one rank. The firing begins with the first
    and ends with the last of them."""

    @property
    def duration_s(self) -> float:
        """Seconds from start to end."""
        return self.end_s - self.start_s

    def as_row(self) -> dict[str, object]:
        """Return the span as an object of ``spans.jsonl``."""
        return asdict(self)

    @classmethod
    def from_row(cls, row: Mapping[str, object]) -> Span:
        """Return the span of an object of ``spans.jsonl``; unknown keys are ignored.

        Raises:
            TypeError: if a required key is missing.
        """
        known = _known(cls, row)
        ranks = tuple(RankSpan(**_known(RankSpan, rank)) for rank in known.pop("ranks", ()))
        return cls(**{**known, "resources": tuple(known.get("resources", ())), "ranks": ranks})


def _known(cls: type[Span | RankSpan], row: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: row[field.name] for field in fields(cls) if field.name in row}


def write_spans(path: Path, spans: Iterable[Span]) -> None:
    """Append spans to a line file."""
    with JsonLines(path) as lines:
        lines.extend(span.as_row() for span in spans)


def read_spans(path: Path) -> Iterator[Span]:
    """Yield the spans of a line file; a missing file has none, a torn last line is skipped.

    Raises:
        RunFolderError: for a line that is not a span.
    """
    for number, row in enumerate(read_json_lines(path), 1):
        try:
            yield Span.from_row(row)
        except TypeError as error:
            raise RunFolderError(str(path.parent), [Fault(f"{path.name}:{number}", f"not a span ({error})")]) from error


def chrome_trace(spans: Iterable[Span], name: str) -> dict[str, object]:
    """Return spans in Chrome's trace event format, which Perfetto opens.

    One process called ``name``, one thread per resource, or per rank where a mesh has several; one whose spans overlap
    gets further threads, because viewers drop a slice that begins inside another one and ends after it. Times are
    microseconds.
    Source: "Trace Event Format", Google, complete events ("X") and metadata events ("M").
    """
    lanes: dict[tuple[str, int], float] = {}
    slices: list[tuple[tuple[str, int], _Part, Span]] = []
    parts = [(part, span) for span in spans for part in _parts(span)]
    for part, span in sorted(parts, key=lambda pair: pair[0][1:]):
        track, start_s, end_s = part
        lane = 1
        while lanes.get((track, lane), start_s) > start_s:
            lane += 1
        lanes[track, lane] = end_s
        slices.append(((track, lane), part, span))
    threads = {lane: number for number, lane in enumerate(sorted(lanes, key=_in_order), 1)}
    events: list[dict[str, object]] = [_metadata("process_name", 0, {"name": name})]
    for (track, lane), number in threads.items():
        events.append(_metadata("thread_name", number, {"name": track if lane == 1 else f"{track} ({lane})"}))
        events.append(_metadata("thread_sort_index", number, {"sort_index": number}))
    events.extend(_slice(span, part, threads[lane]) for lane, part, span in slices)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _parts(span: Span) -> list[_Part]:
    """Return where a span is shown: as what each rank did, else on all resources that it held."""
    if span.ranks:
        return [(rank.worker, rank.start_s, rank.end_s) for rank in span.ranks]
    return [(resource, span.start_s, span.end_s) for resource in span.resources or (_UNBOUND,)]


def _in_order(lane: tuple[str, int]) -> tuple[list[tuple[str, int]], int]:
    track, number = lane
    return natural_order(track), number


def _metadata(kind: str, thread: int, args: dict[str, object]) -> dict[str, object]:
    return {"ph": "M", "name": kind, "pid": 1, "tid": thread, "args": args}


def _slice(span: Span, part: _Part, thread: int) -> dict[str, object]:
    _, start_s, end_s = part
    args = {name: getattr(span, name) for name in ("event", "firing", "step", "rows", "tokens", "version", "bytes")}
    return {
        "ph": "X",
        "name": span.stage,
        "cat": "stage",
        "pid": 1,
        "tid": thread,
        "ts": start_s * 1e6,
        "dur": (end_s - start_s) * 1e6,
        "args": args,
    }


def write_trace(path: Path, spans: Iterable[Span], name: str) -> None:
    """Replace the Chrome trace at ``path``; ``name`` is the name of its process."""
    write_text(path, json.dumps(chrome_trace(spans, name), allow_nan=False))


def seconds_per_stage(spans: Iterable[Span]) -> dict[str, float]:
    """Return the seconds spent in each stage, summed over its firings, in order of first appearance."""
    seconds: dict[str, float] = {}
    for span in spans:
        seconds[span.stage] = seconds.get(span.stage, 0.0) + span.duration_s
    return seconds


def busy_shares(spans: Sequence[Span]) -> dict[str, float]:
    """Return, for each resource by name, the share of the time from first start to last end that it was in use.

    Overlapping spans count once.
    """
    if not spans:
        return {}
    window_s = max(span.end_s for span in spans) - min(span.start_s for span in spans)
    busy_s: dict[str, float] = {}
    free_from_s: dict[str, float] = {}
    for span in sorted(spans, key=lambda span: span.start_s):
        for resource in span.resources:
            start_s = max(span.start_s, free_from_s.get(resource, span.start_s))
            free_from_s[resource] = max(span.end_s, start_s)
            busy_s[resource] = busy_s.get(resource, 0.0) + max(0.0, span.end_s - start_s)
    return {resource: busy_s[resource] / window_s if window_s > 0 else 0.0 for resource in sorted(busy_s)}
