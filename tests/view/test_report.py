"""The report: its numbers are those of the run folder, it loads nothing, and a partial run has a page as well."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rpeg.errors import InvalidInput, RunFolderError
from rpeg.observe.json_files import read_json_lines
from rpeg.observe.run_folder import RunFolder
from rpeg.view import report as report_module
from rpeg.view import sections as sections_module
from rpeg.view.report import write_report

Data = dict[str, dict[str, list[float | None]]]


@pytest.fixture(scope="module")
def html(run: RunFolder) -> str:
    path = write_report(run)
    assert path == run.report
    return path.read_text()


def data_of(html: str) -> Data:
    found = re.search(r'<script type="application/json" id="run-data">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


class Outline(HTMLParser):
    """Collects elements and text outside of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements[-1:] and self.elements[-1][0] not in ("script", "style"):
            self.text += f" {data}"

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def test_the_numbers_in_the_page_are_those_of_the_folder(html: str, run: RunFolder) -> None:
    steps = data_of(html)["steps"]
    rows = list(read_json_lines(run.metrics))
    assert steps["step"] == list(range(61))
    for place, row in enumerate(rows):
        assert {key: values[place] for key, values in steps.items() if values[place] is not None} == row
    warmup = data_of(html)["warmup"]
    assert [dict(zip(warmup, values, strict=True)) for values in zip(*warmup.values(), strict=True)] == list(
        read_json_lines(run.warmup)
    )


def test_the_samples_in_the_page_are_those_of_the_folder(html: str, run: RunFolder, hostile: str) -> None:
    written = {(row["step"], row["row_id"]): row for row in read_json_lines(run.samples)}
    shown = data_of(html)["samples"]
    assert len(shown) > 200
    for row in shown:
        source = written[row["step"], row["row_id"]]
        assert [row[key] for key in ("response", "reward", "advantage", "version")] == [
            source[key] for key in ("response", "reward", "advantage", "version")
        ]
    assert hostile in [row["response"] for row in shown]


def test_the_timeline_has_the_last_steps_of_both_kinds(html: str) -> None:
    bars = data_of(html)["timeline"]
    assert {bar["step"] for bar in bars if bar["kind"] == "measured"} == {58, 59, 60}
    assert {bar["step"] for bar in bars if bar["kind"] == "predicted"} == {1, 2, 3}
    assert {bar["resource"] for bar in bars} == {"sampler", "trainer"}


def test_headline_and_tables_say_the_same(html: str) -> None:
    text = re.sub(r"\s+", " ", Outline(html).text)
    assert "Held-out accuracy, step 0 and step 60 56.6% → to 92.7%" in text
    assert "60 of 60" in text
    assert "1 min 15 s" in text
    # 256 samples in each of 60 steps; 8 rows in each group without spread, 4 to 8 groups a step; 0 to 2 unscorable.
    assert "Generated sampled and given to the reward functions 15,360" in text
    assert "Zero spread neither better nor worse than their group: nothing to learn 2,880 18.8%" in text
    assert "Unscorable no reward function gave a number 60 0.4%" in text
    assert "Trained the loss learned from them 12,420 80.9%" in text
    assert "Truncated cut off at the length limit, whatever became of them 30 0.2%" in text
    assert "from_pretrained(" in text
    assert "packages.torch 2.13.0" in text


def test_nothing_is_loaded_from_anywhere(html: str) -> None:
    outline = Outline(html)
    for tag, attributes in outline.elements:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            address = attributes.get(name) or "#"
            assert address.startswith(("#", "data:,")), (tag, address)
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_hostile_text_stays_text(html: str) -> None:
    outline = Outline(html)
    assert len(outline.all("script")) == 3
    assert outline.all("img") == []
    assert "<script>alert" not in html


def test_everything_has_a_name_for_those_who_do_not_see(html: str) -> None:
    outline = Outline(html)
    tags = [tag for tag, _ in outline.elements]
    assert [tags.count(tag) for tag in ("header", "nav", "main", "footer", "h1")] == [1] * 5
    images = [each for each in outline.all("div") if each.get("role") == "img"]
    assert len(images) == 11
    # The chart of any metric gets its words when the reader chooses one.
    assert sorted(bool(each["aria-label"]) for each in images) == [False, *[True] * 10]
    assert tags.count("table") == tags.count("caption") == 5
    ids = [attributes["id"] for _, attributes in outline.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert {str(link["href"])[1:] for link in outline.all("a")} <= set(ids)


def test_every_chart_has_its_place(html: str) -> None:
    data = data_of(html)
    names = {*data["charts"], "explorer"}
    ids = {str(attributes.get("id")) for attributes in Outline(html).all("div")}
    assert {f"chart-{name}" for name in names} == {name for name in ids if name.startswith("chart-")}


def test_legend_and_bars_take_their_colors_from_the_same_list(html: str) -> None:
    assert html.count("--stage-11:") == 2  # light and dark
    assert "--stage-12" not in html
    assert "Array.from({ length: 12 }" in html
    assert sections_module._NUM_COLORS == 12


def test_a_run_killed_early_has_a_page_that_says_what_is_missing(
    tmp_path: Path, make_run: Callable[..., RunFolder]
) -> None:
    folder = make_run(tmp_path, steps=2)
    for path in (folder.samples, folder.spans, folder.graph_text, folder.warmup):
        path.unlink()
    shutil.rmtree(folder.model)
    folder.checkpoint(1).mkdir(parents=True)
    folder.metrics.write_bytes(folder.metrics.read_bytes()[:-20])
    html = write_report(folder.path).read_text()
    text = re.sub(r"\s+", " ", Outline(html).text)
    assert "Held-out accuracy at step 0 56.6%" in text
    assert "1 of 60" in text
    assert "spans.jsonl is missing: there is no timeline." in text
    assert "No samples were recorded." in text
    assert "The newest checkpoint is step-000001. To go on from there:" in text
    assert "rpeg train examples/arithmetic.yaml --resume" in text
    assert data_of(html)["steps"]["step"] == [0, 1]
    assert "timeline" not in data_of(html)["charts"]


def test_an_empty_folder_has_a_page(tmp_path: Path) -> None:
    html = write_report(str(tmp_path)).read_text()
    assert data_of(html)["charts"] == {}
    assert "Not recorded in this run: reward, held-out accuracy, response length, entropy." in html


def test_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="does not exist"):
        write_report(tmp_path / "none")


def test_without_the_chart_library_the_message_says_what_to_install(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    report_module._libraries.cache_clear()
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(InvalidInput, match=r"vl-convert-python: is not installed.*pip install 'rpeg\[train\]'"):
        write_report(run)
    report_module._libraries.cache_clear()
