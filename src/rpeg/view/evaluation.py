"""The page of an evaluation: every table below what it assumes, with bars to look at; it loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from rpeg.observe.json_files import write_text
from rpeg.view.page import Assets, element, page, rows_table, section

__all__ = ["Part", "evaluation_page", "write_evaluation"]

_ASSETS = Assets(("page.css", "evaluation.css"), "evaluation.js")
_LEFT, _RIGHT, _WIDTH, _ROW, _BAR = 190.0, 76.0, 560.0, 20.0, 13.0
"""Of a picture: room for names and for numbers, width, height of a row and of its bar, in pixels."""


@dataclass(frozen=True, slots=True)
class Part:
    """A table with what it assumes."""

    title: str
    notes: Sequence[str]
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    values: Sequence[Sequence[float | None]] = ()
    """What bars are drawn of: per row, a number per column after the first."""
    unit: str = ""
    marked: frozenset[str] = frozenset()
    """Rows whose bars stand out."""


def write_evaluation(path: Path, parts: Sequence[Part]) -> Path:
    """Write the page of an evaluation to ``path`` and return it."""
    write_text(path, evaluation_page(parts))
    return path


def evaluation_page(parts: Sequence[Part]) -> str:
    """Return the page of an evaluation."""
    names = [f"part-{number}" for number, _ in enumerate(parts)]
    items = "".join(
        element("li", element("a", escape(part.title), href=f"#{name}"))
        for name, part in zip(names, parts, strict=True)
    )
    toggle = element("button", "Hide all assumptions", type="button", id="toggle", hidden="")
    head = element("h1", "Evaluation") + element("p", "Modelled, not measured: every number is a price of one model.")
    body = [
        element("header", head),
        element("nav", element("ul", items) + toggle, aria_label="Tables"),
        element("main", "\n".join(map(_section, names, parts)), id="main"),
    ]
    return page("Evaluation - RPEG", "\n".join(body), {"tables": len(parts)}, _ASSETS)


def _section(name: str, part: Part) -> str:
    notes = "".join(element("li", escape(note)) for note in part.notes)
    above = element("details", element("summary", "Assumptions") + element("ul", notes, class_="notes"), open="",
                    class_="assumptions")  # fmt: skip
    table = rows_table(part.title, part.head, part.rows)
    return section(name, part.title, [above, *_pictures(part), table])


def _pictures(part: Part) -> Iterator[str]:
    """Yield the bars of every column side by side."""
    if part.values:
        figures = (_figure(part, place) for place in range(len(part.head) - 1))
        yield element("div", "".join(figures), class_="columns")


def _figure(part: Part, place: int) -> str:
    label = f"{part.head[place + 1]}: {part.title}"
    found = [row[place] for row in part.values]
    longest = max((value for value in found if value is not None), default=1.0)
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    bars = "".join(
        _bar(number, row[0], value, scale, part)
        for number, (row, value) in enumerate(zip(part.rows, found, strict=True))
    )
    height = f"{_ROW * len(part.rows):g}"
    svg = element(
        "svg", bars, viewBox=f"0 0 {_WIDTH:g} {height}", class_="bars", role="img", aria_label=_said(part, place, label)
    )
    return element("figure", element("figcaption", escape(part.head[place + 1])) + svg)


def _bar(number: int, name: str, value: float | None, scale: float, part: Part) -> str:
    top, middle = number * _ROW, number * _ROW + _ROW / 2 + 4
    text = element("text", escape(name), x=f"{_LEFT - 8:g}", y=f"{middle:g}", text_anchor="end")
    if value is None:
        return text + element("text", "none", x=f"{_LEFT:g}", y=f"{middle:g}", class_="none")
    width = value * scale
    kind = "mine" if name in part.marked else "other"
    size = {"x": f"{_LEFT:g}", "y": f"{top + (_ROW - _BAR) / 2:g}", "width": f"{width:.1f}", "height": f"{_BAR:g}"}
    said = f"{_number(value)} {part.unit}"
    end = element("text", escape(said), x=f"{_LEFT + width + 6:.1f}", y=f"{middle:g}", class_="value")
    return text + element("rect", class_=kind, rx="2", **size) + end


def _said(part: Part, place: int, label: str) -> str:
    """Return what a picture shows, for those who cannot see it."""
    numbers = (
        f"{row[0]} {'none' if values[place] is None else _number(values[place])}"
        for row, values in zip(part.rows, part.values, strict=True)
    )
    return f"{label}, {part.unit}: {', '.join(numbers)}"


def _number(value: float | None) -> str:
    assert value is not None, "shown only where there is one"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
