"""The specifications of the charts."""

from __future__ import annotations

import json

import pytest
import vl_convert

from rpeg.observe.metrics import METRICS, Series
from rpeg.view.charts import CHARTS, WARMUP, Chart, Line, line_spec, staleness_spec, summary


def test_every_chart_shows_known_metrics_in_their_unit() -> None:
    for chart in CHARTS:
        units = {METRICS[line.key].unit for line in chart.lines}
        assert chart.unit in units | {""}, chart.name
        assert chart.caption.endswith("."), chart.name
    assert len({chart.name for chart in CHARTS}) == len(CHARTS)


@pytest.mark.parametrize("chart", [*CHARTS, WARMUP], ids=lambda chart: chart.name)
@pytest.mark.parametrize("num_points", [5, 1000])
def test_specifications_compile_and_name_their_data(chart: Chart, num_points: int) -> None:
    spec = line_spec(chart, num_points)
    assert spec["data"] == {"name": chart.data}
    compiled = vl_convert.vegalite_to_vega(json.dumps(spec))
    assert chart.data in [data["name"] for data in compiled["data"]]


def test_staleness_compiles() -> None:
    assert vl_convert.vegalite_to_vega(json.dumps(staleness_spec()))["marks"]


def test_long_lines_are_smoothed_over_two_percent_of_their_points() -> None:
    assert "frame" not in json.dumps(line_spec(CHARTS[0], 30))
    assert '"frame": [-10, 10]' in json.dumps(line_spec(CHARTS[0], 1000))


def test_spikes_are_not_smoothed_away() -> None:
    gradient = next(chart for chart in CHARTS if chart.name == "gradient")
    assert "frame" not in json.dumps(line_spec(gradient, 1000))


def test_summary_in_words() -> None:
    chart = Chart("a", "Accuracy", "", (Line("eval/accuracy", "greedy"),), unit="share")
    series = Series((0, 5, 10), {"eval/accuracy": (0.5, 0.25, 0.75)})
    assert summary(chart, series) == "Accuracy, greedy: 50.0% at step 0, 75.0% at step 10; between 25.0% and 75.0%."
    assert summary(chart, Series((), {})) == ""
