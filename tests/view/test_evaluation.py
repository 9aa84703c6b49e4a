"""The page of an evaluation: every table below its assumptions, bars with numbers, nothing from anywhere."""

from __future__ import annotations

import re
from pathlib import Path

from tests.view.test_graph_page import Page

from rpeg.view.evaluation import Part, evaluation_page, write_evaluation

PARTS = (
    Part(
        "S1: seconds",
        ("Machine: <alps>.", "none of these systems was run"),
        ("PPO", "8 GPUs", "16 GPUs"),
        (("verl (modelled)", "20.0 (0)", "does not fit"), ("+ asynchrony", "10.0 (1)", "5.0 (1)")),
        ((20.0, None), (10.0, 5.0)),
        "s",
        frozenset({"+ asynchrony"}),
    ),
    Part("Claims", ("assumed",), ("claim", "most"), (("up to 2x", "2.00x"),)),
)


def test_every_table_stands_below_its_assumptions() -> None:
    html = evaluation_page(PARTS)
    page = Page(html)
    assert len(page.all("table")) == len(page.all("details", **{"class": "assumptions", "open": ""})) == 2
    for section in html.split("<section")[1:]:
        assert section.index("<details") < section.index("<table")
    assert "Machine: &lt;alps&gt;." in html
    assert "Modelled, not measured" in html
    assert [link["href"] for link in page.all("a") if str(link["href"]).startswith("#part")] == ["#part-0", "#part-1"]


def test_bars_have_the_lengths_of_their_numbers() -> None:
    html = evaluation_page(PARTS)
    found = [(m[1], float(m[2])) for m in re.finditer(r'<rect class="(\w+)" [^>]*width="([\d.]+)"', html)]
    (other, longest), (mine, half), (again, whole) = found
    assert (other, mine, again) == ("other", "mine", "mine")
    assert half == longest / 2
    assert whole == longest  # each picture has a scale of its own
    assert html.count(">none</text>") == 1
    assert 'aria-label="8 GPUs: S1: seconds, s: verl (modelled) 20, + asynchrony 10"' in html


def test_it_loads_nothing_and_runs_one_script() -> None:
    html = evaluation_page(PARTS)
    page = Page(html)
    assert "http" not in re.sub(r'http-equiv|content="[^"]*"', "", html).replace("http://www.w3.org", "")
    assert len(page.all("script")) == 2  # the data, and what shows and hides
    assert "default-src 'none'" in html


def test_written(tmp_path: Path) -> None:
    path = write_evaluation(tmp_path / "e.html", PARTS)
    assert path.read_text() == evaluation_page(PARTS)
