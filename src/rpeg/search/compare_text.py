"""A comparison as text and as plain data for JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rpeg.perf.step import GroupLine, Prediction
from rpeg.perf.step_text import as_json as prediction_json
from rpeg.search.compare import Comparison, Side
from rpeg.search.explain_text import difference_lines
from rpeg.search.sentence import seconds_text
from rpeg.units import bytes_text

__all__ = ["as_json", "as_text"]

_NOTHING_S = 5e-4


def as_json(found: Comparison) -> dict[str, Any]:
    """Return a comparison as plain data."""
    differing = [{"part": each.part, "a": each.a, "b": each.b} for each in found.differences]
    return {"a": _side(found.a), "b": _side(found.b), "ratio": found.ratio, "differences": differing}


def _side(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "rewrites": list(side.rewrites),
        "limit": side.limit,
        "prediction": prediction_json(side.prediction),
    }


def as_text(found: Comparison) -> str:
    """Return a comparison as text for a terminal."""
    a, b = found.a, found.b
    rows = [
        ("", f"a: {a.name}", f"b: {b.name}", "b / a"),
        *_totals(a.prediction, b.prediction),
        ("", "", "", ""),
        *_stages(a.prediction, b.prediction),
        ("", "", "", ""),
        *_groups(a.prediction, b.prediction),
    ]
    limits = [f"a is limited: {a.limit}", f"b is limited: {b.limit}"]
    shown = list(difference_lines(found.differences, ("a", "b"))) or ["the plans are the same"]
    return "\n".join([*_table(rows), "", *limits, "", *shown])


_Row = tuple[str, str, str, str]


def _table(rows: Sequence[_Row]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()


def _totals(a: Prediction, b: Prediction) -> Iterator[_Row]:
    yield _row("step", a.step_s, b.step_s, seconds_text)
    yield _row("step, mean of drawn lengths", a.spread.mean_s, b.spread.mean_s, seconds_text)
    yield _row("devices", a.devices, b.devices, "{:.0f}".format)
    yield _row("tokens/s", a.tokens_per_s, b.tokens_per_s, "{:,.0f}".format)
    yield _row("tokens/s per device", a.tokens_per_s_per_device, b.tokens_per_s_per_device, "{:,.0f}".format)
    hours = (a.gpu_hours_per_1000_steps, b.gpu_hours_per_1000_steps)
    yield _row("GPU-hours per 1,000 steps", hours[0], hours[1], "{:,.1f}".format)
    yield _row("MFU", a.mfu, b.mfu, "{:.1%}".format)
    ages = [max((line.max for line in each.staleness), default=0) for each in (a, b)]
    yield _row("staleness, at most", ages[0], ages[1], "{:.0f}".format)


def _row(name: str, a: float, b: float, text: Callable[[float], str]) -> _Row:
    return name, text(a), text(b), f"{b / a:.2f}" if a else "-"


def _stages(a: Prediction, b: Prediction) -> Iterator[_Row]:
    """Yield the seconds of every stage in a step; a star where it limits."""
    lines = [{line.name: line for line in each.stages} for each in (a, b)]
    for name in dict.fromkeys([*lines[0], *lines[1]]):
        found = [each.get(name) for each in lines]
        seconds = [line.occupancy_s + line.tail_s if line else 0.0 for line in found]
        if max(seconds) < _NOTHING_S:
            continue
        cells = [
            f"{_busy(line.occupancy_s, line.tail_s)} {'*' if line.is_limiting else ' '}" if line else "- "
            for line in found
        ]
        ratio = f"{seconds[1] / seconds[0]:.2f}" if all(seconds) else "-"
        yield name, cells[0], cells[1], ratio


def _busy(occupancy_s: float, tail_s: float) -> str:
    return f"{seconds_text(occupancy_s)} + {seconds_text(tail_s)}" if tail_s else seconds_text(occupancy_s)


def _groups(a: Prediction, b: Prediction) -> Iterator[_Row]:
    """Yield the devices of both, side by side from the largest group to the smallest."""
    both = [sorted((g for g in each.groups if g.devices), key=lambda g: -g.devices) for each in (a, b)]
    for i in range(max(map(len, both))):
        cells = [_group(groups[i]) if i < len(groups) else ("-", "-", "-") for groups in both]
        for name, left, right in zip(("devices", "  busy", "  memory"), *cells, strict=True):
            yield name, left, right, ""


def _group(group: GroupLine) -> tuple[str, str, str]:
    memory = f"{bytes_text(group.peak_bytes)} of {bytes_text(group.capacity_bytes)}"
    return f"{group.devices} {group.name}", f"{group.busy_share:.1%}", memory
