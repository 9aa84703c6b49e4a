"""The graph page: frames of rewrites, overlays, words; it loads nothing and runs one script."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rpeg.algorithms.catalog import ALGORITHMS
from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.multi_turn import multi_turn
from rpeg.graph.contract import Kl
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import Duration, KnownCosts
from rpeg.plan.lower import lower
from rpeg.plan.timeline import Peak, Resident
from rpeg.view.graph_page import Frame, graph_page, write_graph_page

BEFORE, AFTER = grpo(64, 8), grpo(64, 8, 1, kl=Kl.LOSS)
COSTS = KnownCosts({"gen": Duration(40.0), "train": Duration(20.0), "pull": Duration(2.0)})


class Page(HTMLParser):
    """Collects elements with their attributes, and checks that they are closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [found for name, found in self.elements if name == tag and attributes.items() <= found.items()]


def data_of(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="run-data">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_page(name: str) -> None:
    graph = ALGORITHMS[name]()
    html = graph_page([Frame(graph)])
    page, data = Page(html), data_of(html)
    keys = {found["data-tip"] for tag, found in page.elements if "data-tip" in found}
    assert keys == set(data["tips"][0])
    regions = sum(stage.body is not None for stage in graph.stages)
    assert len(page.all("svg")) == 1 + regions
    assert len(page.all("input", type="radio")) == 2
    assert not page.all("input", type="range")


def test_it_loads_nothing_and_runs_one_script(tmp_path: Path) -> None:
    html = write_graph_page(tmp_path / "graph.html", [Frame(BEFORE)]).read_text()
    page = Page(html)
    assert len(page.all("script")) == 2
    assert [found for _, found in page.elements if found.get("src") or str(found.get("href", "#"))[0] not in "#d"] == []
    assert "http" not in html.replace("http-equiv", "")
    assert "unsafe-eval" not in html
    assert len(html) < 60_000


def test_rewrites_step_by_step() -> None:
    html = graph_page([Frame(BEFORE), Frame(AFTER, "relax{stage=gen,steps=1}", "learning")])
    page = Page(html)
    frames = [found for tag, found in page.elements if tag == "div" and "data-frame" in found]
    assert {found["data-frame"]: "hidden" in found for found in frames} == {"0": True, "1": False}
    assert len(frames) == 6
    (slider,) = page.all("input", type="range")
    assert (slider["min"], slider["max"], slider["value"]) == ("0", "1", "1")
    assert data_of(html)["titles"] == ["as given", "relax{stage=gen,steps=1}"]
    assert "Added: ref, ref.weights, ref_out. Changed: actor.rollout, rollouts. 5 accesses differ." in html
    assert "<li>stage ref: forward ref</li>" in html
    marks = {found["data-tip"]: found["class"] for found in page.all("g") if "data-tip" in found}
    assert marks["ref"] == "box stage new"
    assert marks["actor.rollout"] == "box state changed"
    assert marks["actor.rollout>gen@2"] == "link state later changed"
    assert marks["rollouts>ref"] == "link stream new"


def test_parts_that_went() -> None:
    html = graph_page([Frame(AFTER), Frame(BEFORE, "drop_dead", "exact")])
    assert "Changed: actor.rollout, rollouts. Removed: ref, ref.weights, ref_out. 5 accesses differ." in html
    one = replace(
        BEFORE,
        accesses=tuple(
            replace(a, columns=("tokens",)) if (a.stage, a.data) == ("train", "rollouts") else a
            for a in BEFORE.accesses
        ),
    )
    assert '<p class="note">1 access differs.</p>' in graph_page([Frame(BEFORE), Frame(one, "narrow", "exact")])


def test_overlays_come_with_what_is_known() -> None:
    events = lower(AFTER, bind_local(AFTER), COSTS)
    peaks = {"roll": Peak(0.0, 8, (Resident("rollouts", 8, 0.0, 1.0),))}
    priced = Page(html := graph_page([Frame(AFTER, events=events, bytes_of={"rollouts": 8}, peaks=peaks)]))
    values = [found["value"] for found in priced.all("input", type="radio")]
    assert values == ["none", "lineage", "critical", "busy", "memory"]
    assert "<dt>a step takes</dt><dd>42 s</dd>" in html
    assert 'class="say critical">A step takes 42 s.' in html
    assert 'class="say busy">Busy: roll 100.0%' in html
    assert 'class="say memory">At most 8 B on each device of roll: rollouts 8 B.' in html
    assert '<th scope="col" class="number">One version</th>' in html
    bare = Page(graph_page([Frame(AFTER)]))
    assert [found["value"] for found in bare.all("input", type="radio")] == ["none", "lineage"]


def test_a_graph_that_trains_on_nothing() -> None:
    still = replace(BEFORE, accesses=tuple(a for a in BEFORE.accesses if a.stage != "train"))
    assert 'class="say lineage">No sample is trained on.</p>' in graph_page([Frame(still)])


def test_what_happens_inside_a_stage_is_drawn_as_well() -> None:
    html = graph_page([Frame(multi_turn(4, max_turns=6))])
    assert "<h3>Inside gen: one turn of at most 6</h3>" in html
    assert data_of(html)["tips"][0]["gen/environment"][0] == "environment"


def test_the_words_are_those_of_the_text_form() -> None:
    html = graph_page([Frame(BEFORE)])
    assert 'aria-label="The graph as text">grpo  batch 512 = 64 x 8  staleness 0 (&lt;= 0)' in html
    row = re.search(r'<tr><th scope="row">actor.rollout</th>(.*?)</tr>', html)
    assert row is not None
    assert re.findall(r">([^<]*)</td>", row[1]) == ["state", "weights", "pull", "gen (-1)", "run", "1"]


def test_names_are_text() -> None:
    evil = replace(BEFORE, name="<b>&</b>")
    html = graph_page([Frame(evil, "<i>", "<u>")])
    assert "<b>" not in html
    assert "<i>" not in html
