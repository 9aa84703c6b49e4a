"""The picture of a graph: everything is in it, once, with its marks, and nothing in it is markup by accident."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from rpeg.algorithms.catalog import ALGORITHMS
from rpeg.algorithms.grpo import grpo
from rpeg.graph.access import Access, Mode
from rpeg.view.graph_svg import Underlay, access_key, picture
from rpeg.view.overlays import Bars, Overlay


def groups(svg: str) -> dict[str, ElementTree.Element]:
    """Return the groups that have a tip, by its key."""
    return {
        group.attrib["data-tip"]: group for group in ElementTree.fromstring(svg).iter("g") if "data-tip" in group.attrib
    }


@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_parts_of_an_algorithm_are_there(name: str) -> None:
    graph = ALGORITHMS[name]()
    found = groups(picture(graph, name, Underlay()).svg)
    assert set(found) == {*graph.stage_of, *graph.data_of, *map(access_key, graph.accesses)}
    for access in graph.accesses:
        line = found[access_key(access)]
        assert len(line.findall("circle")) == min(5, access.delay)
        assert ("later" in line.attrib["class"]) is (access.delay > 0)


def test_keys_of_lines() -> None:
    assert access_key(Access("gen", "w", Mode.READ)) == "w>gen"
    assert access_key(Access("gen", "w", Mode.READ, delay=2)) == "w>gen@2"
    assert access_key(Access("up", "w", Mode.UPDATE)) == "up>w"


def test_boxes_say_what_they_are() -> None:
    found = groups(picture(grpo(4, 2), "Graph of grpo", Underlay()).svg)
    assert found["gen"].attrib["aria-label"] == (
        "gen, generate actor: reads prompts, actor.rollout 1 step back; writes rollouts"
    )
    assert found["actor.master"].attrib["aria-label"] == "actor.master, state data"
    assert found["gen"].attrib["role"] == "img"
    assert found["prompts>gen"].attrib["aria-hidden"] == "true"
    assert found["prompts"].attrib["class"] == "box external"


def test_marks_overlays_and_bars() -> None:
    overlay = Overlay(
        frozenset({("pull", "actor.rollout", "gen")}), (("gen", "pull", "device:roll"),), frozenset({"gen", "pull"}), ""
    )
    under = Underlay(
        {"critical": overlay},
        {"busy": Bars({"gen": (0.5, "50.0%")}, ""), "memory": Bars({"rollouts": (1.5, "3 GB")}, "")},
        {"gen": "changed", "actor.rollout>gen@1": "new"},
        "outer/",
    )
    svg = picture(grpo(4, 2), "x", under).svg
    found = groups(svg)
    assert found["outer/gen"].attrib["class"] == "box stage changed"
    assert found["outer/gen"].attrib["aria-label"].endswith(", changed in this rewrite")
    assert found["outer/actor.rollout>gen@1"].attrib["class"] == "link state later new"
    on = {key.removeprefix("outer/") for key, group in found.items() if group.attrib.get("data-on") == "critical"}
    assert on == {"gen", "pull", "actor.rollout", "pull>actor.rollout", "actor.rollout>gen@1"}
    jumps = [group for group in ElementTree.fromstring(svg).iter("g") if group.attrib.get("class") == "jump"]
    assert [jump.attrib["data-on"] for jump in jumps] == ["critical"]
    texts = [text.text for text in found["outer/gen"].iter("text")]
    assert texts == ["gen", "generate · actor", "50.0%", "changed"]
    rail, share = found["outer/rollouts"].iterfind("g[@class='bar memory']/rect")
    assert share.attrib["width"] == rail.attrib["width"]


@pytest.mark.parametrize(("src", "dst"), [("reward", "train"), ("push", "pull"), ("train", "gen"), ("gen", "update")])
def test_jumps_begin_and_end_at_their_stages(src: str, dst: str) -> None:
    overlay = Overlay(frozenset(), ((src, dst, "device:all"), (src, "elsewhere", "device:all")), frozenset(), "")
    svg = picture(grpo(4, 2), "x", Underlay({"critical": overlay})).svg
    root = ElementTree.fromstring(svg)
    (jump,) = [group for group in root.iter("g") if group.attrib.get("class") == "jump"]
    numbers = [float(n) for n in re.findall(r"-?\d+\.\d+", jump[0].attrib["d"])]
    for name, (x, y) in ((src, numbers[:2]), (dst, numbers[-2:])):
        centre = re.findall(r"-?\d+\.\d+", groups(svg)[name].attrib["transform"])
        width, height = (float(groups(svg)[name][0].attrib[side]) for side in ("width", "height"))
        assert abs(x - float(centre[0])) <= width / 2 + 0.1
        assert abs(y - float(centre[1])) <= height / 2 + 0.1


def test_the_next_picture_looks_like_the_one_before() -> None:
    first = picture(grpo(4, 2, 1), "x", Underlay())
    again = picture(grpo(4, 2, 2), "x", Underlay(), first.x_of)
    assert again.x_of == first.x_of
