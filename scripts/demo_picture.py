"""Draw the picture of the README from a run: `python scripts/demo_picture.py runs/demo docs/demo.svg`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import vl_convert

from rpeg.observe.metrics import Series, read_series

ACCENT, GREY = "#2563eb", "#8a8f98"


def line(series: Series, key: str, title: str, number_format: str, mark: dict[str, Any]) -> dict[str, Any]:
    """Return one small chart of a metric over the steps."""
    points = [{"step": step, "value": value} for step, value in series.points(key)]
    axis = {
        "grid": False,
        "tickCount": 4,
        "domainColor": GREY,
        "tickColor": GREY,
        "labelColor": GREY,
        "titleColor": GREY,
    }
    return {
        "data": {"values": points},
        "title": {"text": title, "anchor": "start", "color": GREY, "fontWeight": "normal"},
        "width": 230,
        "height": 140,
        "mark": {"type": "line", "color": ACCENT, "strokeWidth": 2, **mark},
        "encoding": {
            "x": {"field": "step", "type": "quantitative", "title": "step", "axis": axis},
            "y": {
                "field": "value",
                "type": "quantitative",
                "title": None,
                "scale": {"zero": False, "nice": True},
                "axis": {**axis, "format": number_format},
            },
        },
    }


def main(run: str, target: str) -> None:
    """Write the picture of ``run`` to ``target``."""
    series = read_series(Path(run) / "metrics.jsonl")
    charts = [
        line(series, "eval/accuracy", "right answers on problems never trained on", "%", {"point": {"color": ACCENT}}),
        line(series, "length/mean", "tokens per answer: it learns to write its working", "d", {}),
    ]
    spec = {
        "hconcat": charts,
        "spacing": 40,
        "background": None,
        "config": {"view": {"stroke": None}, "font": "sans-serif"},
    }
    Path(target).write_text(vl_convert.vegalite_to_svg(spec))


if __name__ == "__main__":
    main(*sys.argv[1:])
