"""The charts of the report as Vega-Lite specifications; data and colours come from the page.

A specification names its data set (``steps`` or ``warmup``) and gives marks a style (``accent``, ``muted``, and the
same with ``-raw`` for the unsmoothed line); the page holds the data once and knows the styles in light and dark.
"""

from __future__ import annotations

from dataclasses import dataclass

from rpeg.observe.metrics import Series
from rpeg.view.numbers import as_unit

__all__ = ["CHARTS", "WARMUP", "Chart", "Line", "Spec", "line_spec", "staleness_spec", "summary"]

Spec = dict[str, object]
"""A Vega-Lite specification."""

_FORMATS = {"share": ".2~%", "count": ",d", "tokens": ",.4~g", "s": ",.3~g"}
_TOOLTIP_FORMATS = {"share": ".1%", "count": ",d"}
# Width follows the page; height covers the axes too, so that charts side by side have equal frames.
_SIZE: Spec = {"width": "container", "height": 240, "autosize": {"type": "fit", "contains": "padding"}}
# Ticks between whole numbers stay blank: there is no step 1.5, and rounded it would be a second 2.
_WHOLE = "datum.value === floor(datum.value) ? format(datum.value, ',d') : ''"
_FEW = 30
"""Up to so many points a line shows them as they are; longer lines are smoothed."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart."""

    key: str
    """Key of the metric."""
    label: str
    """What the legend calls it."""
    style: str = "accent"
    """``accent`` for what the chart is about, ``muted`` for what it is compared with."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart of metrics over steps."""

    name: str
    """Identifier of its element in the page."""
    title: str
    """Heading."""
    caption: str
    """One sentence that says how to read it."""
    lines: tuple[Line, ...]
    """What it shows; the first line is the one described to those who cannot see it."""
    unit: str = ""
    """Unit of the vertical axis, one of those of `rpeg.observe.metrics.Metric`."""
    has_zero: bool = True
    """Whether the vertical axis includes zero."""
    is_smoothed: bool = True
    """Whether many points get a smoothed line; False where single spikes are what to look for."""
    data: str = "steps"
    """Name of the data set."""
    index: str = "step"
    """Key of the horizontal axis."""


CHARTS = (
    Chart(
        "reward",
        "Reward",
        "Mean reward of each step's samples: up is better, and a line that has flattened has little more to give.",
        (Line("reward/mean", "mean reward"),),
    ),
    Chart(
        "accuracy",
        "Held-out accuracy",
        "Share of held-out problems answered correctly with greedy decoding; these are never trained on.",
        (Line("eval/accuracy", "accuracy"),),
        unit="share",
        has_zero=False,
        is_smoothed=False,
    ),
    Chart(
        "length",
        "Response length",
        "Tokens per response: growth often means more reasoning, a longest line stuck at the limit cut-off answers.",
        (Line("length/mean", "mean"), Line("length/max", "longest", "muted")),
        unit="tokens",
    ),
    Chart(
        "entropy",
        "Entropy",
        "How undecided the policy is about the next token; a fall to zero means it has stopped exploring.",
        (Line("policy/entropy", "entropy"),),
    ),
    Chart(
        "clip",
        "Clipped share",
        "Share of tokens whose update was clipped: a few percent are normal, more asks for a smaller learning rate.",
        (Line("policy/clip_fraction", "clipped"),),
        unit="share",
    ),
    Chart(
        "gradient",
        "Gradient norm",
        "Norm before clipping; single spikes are normal, steady growth is not.",
        (Line("optim/grad_norm", "gradient norm"),),
        is_smoothed=False,
    ),
    Chart(
        "step-time",
        "Step time",
        "Seconds per step as measured and as predicted; a gap is what the model of the machine does not know.",
        (Line("time/step_s", "measured"), Line("time/predicted_step_s", "predicted", "muted")),
        unit="s",
    ),
)
"""The charts over steps, in the order of the page."""

WARMUP = Chart(
    "warmup",
    "Warm-up loss",
    "Loss of the supervised updates before the first step; it should have flattened before reinforcement begins.",
    (Line("loss", "loss"),),
    data="warmup",
    index="update",
)
"""The chart of the warm-up."""


def line_spec(chart: Chart, num_points: int) -> Spec:
    """Return the Vega-Lite specification of ``chart``; ``num_points`` decides how strongly lines are smoothed."""
    reach = max(2, num_points // 100) if chart.is_smoothed and num_points > _FEW else 0
    has_points = num_points <= _FEW
    layers = [layer for line in reversed(chart.lines) for layer in _line_layers(line, reach, has_points)]
    return {
        **_SIZE,
        "data": {"name": chart.data},
        "encoding": {"x": _x_axis(chart.index)},
        "layer": [_y_axis(layer, chart) for layer in [*layers, _hover_layer(chart)]],
    }


def _x_axis(key: str) -> Spec:
    axis = {"title": key, "labelExpr": _WHOLE, "tickCount": 6, "grid": False}
    return {"field": key, "type": "quantitative", "axis": axis, "scale": {"zero": False, "nice": False}}


def _y_axis(layer: Spec, chart: Chart) -> Spec:
    """Return the layer with the shared vertical axis in its ``y``."""
    encoding = layer["encoding"]
    assert isinstance(encoding, dict), "every layer is made with an encoding"
    axis = {"title": None, "format": _FORMATS.get(chart.unit, ".4~g"), "tickCount": 4}
    y = {"type": "quantitative", "axis": axis, "scale": {"zero": chart.has_zero}, **encoding["y"]}
    return {**layer, "encoding": {**encoding, "y": y}}


def _valid(key: str) -> Spec:
    return {"filter": f"isValid(datum[{key!r}])"}


def _line_layers(line: Line, reach: int, has_points: bool) -> list[Spec]:
    """Return the line itself, or with ``reach`` its thin raw form under the mean over ``reach`` steps each way."""
    if reach == 0:
        point = {"point": {"style": f"{line.style}-point"}} if has_points else {}
        mark = {"type": "line", "style": line.style, **point}
        return [{"transform": [_valid(line.key)], "mark": mark, "encoding": {"y": {"field": line.key}}}]
    window = {"window": [{"op": "mean", "field": line.key, "as": "smooth"}], "frame": [-reach, reach]}
    return [
        {
            "transform": [_valid(line.key)],
            "mark": {"type": "line", "style": f"{line.style}-raw"},
            "encoding": {"y": {"field": line.key}},
        },
        {
            "transform": [_valid(line.key), window],
            "mark": {"type": "line", "style": line.style},
            "encoding": {"y": {"field": "smooth"}},
        },
    ]


def _hover_layer(chart: Chart) -> Spec:
    """Return an upright line at the step nearest to the pointer, which carries the numbers of that step."""
    numbers = [
        {"field": line.key, "title": line.label, "format": _TOOLTIP_FORMATS.get(chart.unit, ",.4~g")}
        for line in chart.lines
    ]
    nearest = {"type": "point", "nearest": True, "on": "pointerover", "clear": "pointerout", "encodings": ["x"]}
    return {
        "transform": [_valid(chart.lines[0].key)],
        "params": [{"name": "hover", "select": nearest}],
        "mark": {"type": "point", "style": "hover"},
        "encoding": {
            "y": {"field": chart.lines[0].key},
            "opacity": {"condition": {"param": "hover", "empty": False, "value": 1}, "value": 0},
            "tooltip": [{"field": chart.index, "title": chart.index, "format": ",d"}, *numbers],
        },
    }


def staleness_spec() -> Spec:
    """Return the histogram of the staleness of steps: for each age of weights, the steps whose samples were that old.

    The mean of a step is rounded to whole versions, so that both kinds of bars stand at the same ages.
    """
    fold = {"fold": ["staleness/mean", "staleness/max"], "as": ["statistic", "age"]}
    words = "datum.statistic == 'staleness/max' ? 'oldest sample of the step' : 'mean of the step'"
    return {
        **_SIZE,
        "data": {"name": "steps"},
        "transform": [
            fold,
            _valid("age"),
            {"calculate": "round(datum.age)", "as": "age"},
            {"calculate": words, "as": "of"},
        ],
        "mark": {"type": "bar", "cornerRadiusEnd": 2},
        "encoding": {
            "x": {"field": "age", "type": "ordinal", "axis": {"title": "age in versions", "labelAngle": 0}},
            "xOffset": {"field": "statistic", "sort": ["staleness/mean", "staleness/max"]},
            "y": {"aggregate": "count", "axis": {"title": "steps", "tickCount": 4, "labelExpr": _WHOLE}},
            "color": {
                "field": "statistic",
                "scale": {"domain": ["staleness/mean", "staleness/max"], "range": "pair"},
                "legend": None,
            },
            "tooltip": [
                {"field": "of", "title": "age of the"},
                {"field": "age", "title": "versions"},
                {"aggregate": "count", "title": "steps", "format": ",d"},
            ],
        },
    }


def summary(chart: Chart, series: Series) -> str:
    """Return what the chart shows in one sentence, for those who cannot see it; "" if it shows nothing."""
    key = chart.lines[0].key
    points = series.points(key)
    if not points:
        return ""
    (first, begin), (last, end) = points[0], points[-1]
    values = [value for _, value in points]
    low, high, begin_text, end_text = (as_unit(value, chart.unit) for value in (min(values), max(values), begin, end))
    return (
        f"{chart.title}, {chart.lines[0].label}: {begin_text} at {chart.index} {first:,}, "
        f"{end_text} at {chart.index} {last:,}; between {low} and {high}."
    )
