"""The timeline of the report: what each resource did in the last steps, and what it was expected to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rpeg.observe.trace import Span

__all__ = ["Timeline", "last_steps", "timeline"]

_NUM_STEPS = 3
_MAX_SPANS = 4000
_MAX_RESOURCES = 48
_ROW_PX, _GAP_PX = 20, 10


@dataclass(frozen=True, slots=True)
class Timeline:
    """The bars of the timeline and what to say about them."""

    rows: tuple[dict[str, object], ...]
    """One bar each: resource, kind (``measured`` or ``predicted``), stage, step, firing, start, end, rows, ..."""
    stages: tuple[str, ...]
    """Stages in order of first appearance; a stage's place is its colour."""
    steps: tuple[int, ...]
    """Measured steps shown."""
    num_resources: int
    """Resources shown."""
    num_hidden: int
    """Resources left out because the picture has no room for them."""
    has_prediction: bool
    """Whether predicted bars are among ``rows``."""
    spec: dict[str, object]
    """Vega-Lite specification; its data set is called ``timeline``."""


def last_steps(spans: Sequence[Span]) -> list[Span]:
    """Return the spans of the last three steps, or of fewer if three have more than a page can show."""
    steps = sorted({span.step for span in spans})[-_NUM_STEPS:]
    while steps:
        chosen = [span for span in spans if span.step in steps]
        if len(chosen) <= _MAX_SPANS or len(steps) == 1:
            return chosen[:_MAX_SPANS]
        steps = steps[1:]
    return []


def timeline(measured: Sequence[Span], predicted: Sequence[Span]) -> Timeline | None:
    """Return the timeline of the last steps, each kind beginning at zero; None if nothing was measured.

    Args:
        measured: all spans of the run.
        predicted: expected spans; those of the steps shown if there are any, else their own last steps.
    """
    shown = last_steps(measured)
    if not shown:
        return None
    steps = sorted({span.step for span in shown})
    expected = [span for span in predicted if span.step in steps] or last_steps(predicted)
    names = sorted({resource for span in (*shown, *expected) for resource in span.resources})
    kept = names[:_MAX_RESOURCES]
    rows = [*_rows(expected, "predicted", kept), *_rows(shown, "measured", kept)]
    stages = tuple(dict.fromkeys(span.stage for span in (*shown, *expected)))
    kinds = ["predicted", "measured"] if expected else ["measured"]
    return Timeline(
        tuple(rows), stages, tuple(steps), len(kept), len(names) - len(kept), bool(expected), _spec(stages, kept, kinds)
    )


def _rows(spans: Sequence[Span], kind: str, resources: Sequence[str]) -> list[dict[str, object]]:
    if not spans:
        return []
    zero_s = min(span.start_s for span in spans)
    return [
        {
            "resource": resource,
            "kind": kind,
            "stage": span.stage,
            "event": span.event,
            "step": span.step,
            "firing": span.firing,
            "start": span.start_s - zero_s,
            "end": span.end_s - zero_s,
            "seconds": span.duration_s,
            "rows": span.rows,
            "tokens": span.tokens,
            "version": span.version,
        }
        for span in spans
        for resource in span.resources
        if resource in resources
    ]


def _spec(stages: Sequence[str], resources: Sequence[str], kinds: Sequence[str]) -> dict[str, object]:
    tooltip = [
        {"field": "kind"},
        {"field": "stage"},
        {"field": "step"},
        {"field": "firing"},
        {"field": "seconds", "format": ",.3~g"},
        {"field": "rows", "format": ",d"},
        {"field": "tokens", "format": ",d"},
        {"field": "version", "title": "weights version"},
    ]
    bars = {
        "mark": {"type": "bar", "style": "span"},
        "encoding": {
            "x": {"field": "start", "type": "quantitative", "axis": {"title": "seconds", "tickCount": 8}},
            "x2": {"field": "end"},
            "y": {
                "field": "resource",
                "type": "nominal",
                "sort": list(resources),
                "axis": {"title": None},
                "scale": {"paddingInner": 0.3, "paddingOuter": 0.15},
            },
            "yOffset": {"field": "kind", "type": "nominal", "sort": list(kinds), "scale": {"paddingInner": 0.12}},
            "color": {"field": "stage", "type": "nominal", "scale": {"domain": list(stages)}, "legend": None},
            "fillOpacity": {"condition": {"test": "datum.kind == 'predicted'", "value": 0.35}, "value": 1},
            "tooltip": tooltip,
        },
    }
    return {
        "width": "container",
        "height": _ROW_PX * len(resources) * len(kinds) + _GAP_PX * len(resources),
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"name": "timeline"},
        "layer": [bars, *_step_marks()],
    }


def _step_marks() -> list[dict[str, object]]:
    """Return the layers that say where each measured step begins."""
    begin: list[dict[str, object]] = [
        {"filter": "datum.kind == 'measured'"},
        {"aggregate": [{"op": "min", "field": "start", "as": "begin"}], "groupby": ["step"]},
    ]
    x = {"field": "begin", "type": "quantitative"}
    label = {"type": "text", "style": "step-label", "align": "left", "baseline": "bottom", "dx": 4, "dy": -3}
    words = {"calculate": "'step ' + datum.step", "as": "words"}
    return [
        {"transform": begin, "mark": {"type": "rule", "style": "step"}, "encoding": {"x": x}},
        {
            "transform": [*begin, words],
            "mark": label,
            "encoding": {"x": x, "y": {"value": 0}, "text": {"field": "words"}},
        },
    ]
