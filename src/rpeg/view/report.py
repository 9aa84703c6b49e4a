"""The report of a run: one page that needs nothing but itself."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rpeg.errors import Fault, InvalidInput
from rpeg.observe.json_files import write_text
from rpeg.observe.run_folder import RunFolder
from rpeg.view.charts import CHARTS, WARMUP, Spec, line_spec, staleness_spec
from rpeg.view.page import Assets, page
from rpeg.view.record import Record, read_record
from rpeg.view.sections import EXPLORER, body
from rpeg.view.timeline import Timeline, timeline

__all__ = ["write_report"]


def write_report(run_folder: RunFolder | Path | str) -> Path:
    """Write ``report.html`` into a run folder and return its path; the run may be unfinished.

    The page holds metrics, samples and spans once, as the JSON of its element ``run-data``, and the charting libraries.

    Raises:
        RunFolderError: if the folder does not exist.
        InvalidInput: if vl-convert-python is not installed.
    """
    folder = run_folder if isinstance(run_folder, RunFolder) else RunFolder(Path(run_folder))
    record = read_record(folder)
    bars = timeline(record.spans, record.predicted)
    title = f"{folder.path.resolve().name} - RPEG"
    assets = Assets(("page.css",), "page.js", _libraries())
    write_text(folder.report, page(title, body(record, bars), _data(record, bars), assets))
    return folder.report


def _data(record: Record, bars: Timeline | None) -> dict[str, object]:
    """Return what the page's script reads; metrics by column under their own keys."""
    return {
        "steps": record.series.columns,
        "warmup": record.warmup.columns,
        "timeline": bars.rows if bars else (),
        "samples": record.samples.rows,
        "charts": _specs(record, bars),
        "explorer": line_spec(EXPLORER, len(record.series.steps)),
    }


def _specs(record: Record, bars: Timeline | None) -> dict[str, Spec]:
    """Return the specifications of the charts that have data, by the name of their place in the page."""
    specs = {}
    for chart in CHARTS:
        if points := record.series.points(chart.lines[0].key):
            specs[chart.name] = line_spec(chart, len(points))
    if record.series.points("staleness/max"):
        specs["staleness"] = staleness_spec()
    if points := record.warmup.points("loss"):
        specs["warmup"] = line_spec(WARMUP, len(points))
    if bars is not None:
        specs["timeline"] = bars.spec
    return specs


@cache
def _libraries() -> str:
    """Return the JavaScript of Vega, Vega-Lite and Vega-Embed, without what the page does not call."""
    try:
        from vl_convert import javascript_bundle
    except ImportError as error:
        fault = Fault("vl-convert-python", "is not installed; it draws the charts", "pip install 'rpeg[train]'")
        raise InvalidInput("report", [fault]) from error
    return javascript_bundle("window.vegaEmbed = vegaEmbed;")
