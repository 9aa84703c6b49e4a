"""``rpeg show``: graphs from files, recipes, algorithms and standard input; as text, JSON and page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rpeg.algorithms.catalog import ALGORITHMS
from rpeg.algorithms.grpo import grpo
from rpeg.graph.json import from_json
from rpeg.graph.text import to_text

RECIPE = (Path(__file__).parents[2] / "examples" / "arithmetic.yaml").read_text()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_by_name(rpeg: Any, name: str) -> None:
    ended = rpeg("show", name)
    graph = ALGORITHMS[name]()
    assert ended.status == 0
    assert ended.out.startswith(to_text(graph) + f"\nplan for graph {graph.digest()[:8]}\n")


def test_parameters_of_an_algorithm(rpeg: Any) -> None:
    expected = to_text(grpo(8, 4, 2)).splitlines()
    assert rpeg("show", "grpo", "prompts=8", "group=4", "staleness=2").out.splitlines()[: len(expected)] == expected


def test_faults_of_parameters_come_together(rpeg: Any) -> None:
    ended = rpeg("show", "grpo", "stalenes=2", "kl=never", "prompts=x", "zebra=1")
    assert (ended.status, ended.out) == (2, "")
    lines = ended.err.splitlines()
    assert lines[0] == "error: grpo: 4 faults"
    assert lines[1] == "  1. stalenes: is no parameter of grpo; did you mean staleness?"
    assert lines[2].startswith("  2. kl: is 'never'; input should be 'none', 'reward' or 'loss'")
    assert lines[3].startswith("  3. prompts: is 'x'; input should be a valid integer")
    assert lines[4].startswith("  4. zebra: is no parameter of grpo; there is prompts, group, staleness, ")


def test_what_the_algorithm_itself_refuses(rpeg: Any) -> None:
    ended = rpeg("show", "grpo", "prompts=3", "updates_per_step=2")
    assert (ended.status, ended.err) == (
        2,
        "error: grpo: 1 fault\n"
        "  1. updates_per_step: 2 updates do not divide 3 prompts; every update trains on whole groups, equally many\n",
    )


def test_a_file_and_standard_input_give_the_same(rpeg: Any, graph_file: Callable[..., Path]) -> None:
    path = graph_file()
    assert rpeg("show", path).out == rpeg("show", "-", given=path.read_text()).out
    assert from_json(rpeg("show", path, "--json").out) == grpo(4, 2)


def test_a_recipe_with_overrides(rpeg: Any, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    sizes = ["algorithm.prompts=4", "algorithm.group_size=2", "algorithm.updates_per_step=1"]
    ended = rpeg("show", tmp_path / "tiny.yaml", *sizes, "algorithm.staleness=1")
    assert ended.out.splitlines()[0].startswith("grpo  batch 8 = 4 x 2  staleness 1 (<= 1)"), ended.err
    (tmp_path / "tiny").write_text(RECIPE)
    ended = rpeg("show", tmp_path / "tiny", *sizes, "algorithm.staleness=0")
    assert ended.out.splitlines()[0].startswith("grpo  batch 8 = 4 x 2  staleness 0 (<= 0)"), ended.err


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("reinforce", "reinforce: there is no such file and no such algorithm; did you mean reinforce_pp?"),
        ("zebra", f"zebra: there is no such file and no such algorithm; algorithms: {', '.join(ALGORITHMS)}"),
        ("no.json", "no.json: there is no such file"),
    ],
)
def test_what_is_not_there(rpeg: Any, source: str, fault: str) -> None:
    ended = rpeg("show", source)
    assert (ended.status, ended.out, ended.err) == (2, "", f"error: {source}: 1 fault\n  1. {fault}\n")


def test_what_cannot_be_read(rpeg: Any, tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "latin.json").write_bytes(b'{"name": "\xe9"}')
    assert "folder.json: is a folder; give the graph.json in it" in rpeg("show", tmp_path / "folder.json").err
    ended = rpeg("show", tmp_path / "latin.json")
    assert (ended.status, "latin.json: cannot be read: 'utf-8' codec" in ended.err) == (2, True)
    assert "graph file: 1 fault\n  1. line 1: is not JSON" in rpeg("show", "-", given="nonsense").err


def test_overrides_of_a_graph_file(rpeg: Any, graph_file: Callable[..., Path]) -> None:
    ended = rpeg("show", graph_file(), "staleness=1")
    assert ended.status == 2
    assert "staleness=1: overrides belong to recipes and algorithms; give one of these instead" in ended.err


def page_data(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="run-data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_a_page_of_an_algorithm(rpeg: Any, tmp_path: Path) -> None:
    ended = rpeg("show", "grpo", "--html", tmp_path / "g.html")
    assert (ended.status, ended.out) == (0, f"{tmp_path / 'g.html'}\n")
    assert page_data(tmp_path / "g.html")["titles"] == ["as given"]


def test_a_page_steps_through_the_history_of_a_graph(rpeg: Any, tmp_path: Path) -> None:
    texts = ["stream{producer=gen,firings=2}", "stream{producer=gen,firings=4}"]
    rpeg("rewrite", "grpo", *texts, "-o", tmp_path / "g.json")
    ended = rpeg("show", tmp_path / "g.json", "--html", tmp_path / "g.html")
    assert (ended.status, ended.err) == (0, "")
    assert page_data(tmp_path / "g.html")["titles"] == ["as given", *texts]


def test_the_base_of_a_history_has_to_be_named_unless_it_is_an_algorithm(rpeg: Any, tmp_path: Path) -> None:
    rpeg("show", "grpo", "prompts=8", "--json")
    base = tmp_path / "base.json"
    base.write_text(rpeg("show", "grpo", "prompts=8", "--json").out)
    rpeg("rewrite", base, "stream{producer=gen,firings=2}", "-o", tmp_path / "g.json")
    ended = rpeg("show", tmp_path / "g.json", "--html", tmp_path / "g.html")
    assert (ended.status, ended.err) == (0, "its 1 rewrites need the graph they start from: --base GRAPH\n")
    assert page_data(tmp_path / "g.html")["titles"] == ["as given"]
    rpeg("show", tmp_path / "g.json", "--html", tmp_path / "g.html", "--base", base)
    assert page_data(tmp_path / "g.html")["titles"] == ["as given", "stream{producer=gen,firings=2}"]
    wrong = rpeg("show", tmp_path / "g.json", "--html", tmp_path / "g.html", "--base", "ppo")
    assert wrong.status == 2
    assert "1. stream{producer=gen,firings=2}: the graph before it has digest" in wrong.err


def test_seconds_and_bytes_bring_step_time_and_memory(rpeg: Any, tmp_path: Path) -> None:
    amounts = ["--step-seconds", "gen=40", "--step-seconds", "train=20", "--bytes", "actor.master=14e9"]
    rpeg("show", "grpo", "--html", tmp_path / "g.html", *amounts)
    html = (tmp_path / "g.html").read_text()
    assert "<dt>a step takes</dt><dd>1 min 00 s</dd>" in html
    assert "Busy: all 100.0%, host 0.0%." in html
    assert "At most 14.0 GB on each device of all: actor.master 14.0 GB." in html


def test_the_firings_of_a_stage_share_its_seconds_and_a_fused_one_takes_the_longest(rpeg: Any, tmp_path: Path) -> None:
    fused = ["share_trunk{actor=actor,critic=critic}", "fuse_forward{a=old_logp,b=value}"]
    rpeg("rewrite", "ppo", *fused, "stream{producer=gen,firings=4}", "--explore", "-o", tmp_path / "g.json")
    amounts = [f"--step-seconds={text}" for text in ("gen=40", "old_logp=3", "value=5")]
    rpeg("show", tmp_path / "g.json", "--html", tmp_path / "g.html", *amounts)
    found = re.findall(r"<dt>a step takes</dt><dd>(.*?)</dd>", (tmp_path / "g.html").read_text())
    assert found == ["48 s", "48 s", "45 s", "45 s"]


def test_what_the_page_is_for_is_said_without_one(rpeg: Any) -> None:
    ended = rpeg("show", "grpo", "--base", "ppo", "--step-seconds", "gen=1", "--bytes", "rollouts=1")
    assert (ended.status, ended.err.splitlines()) == (
        2,
        [
            "error: rpeg show: 3 faults",
            "  1. --base: is for the page; add --html FILE",
            "  2. --step-seconds: is for the page; add --html FILE",
            "  3. --bytes: is for the page; add --html FILE",
        ],
    )


def test_faults_of_amounts(rpeg: Any, tmp_path: Path) -> None:
    texts = ("gen", "zebra=3", "gen=-1", "gen=inf")
    ended = rpeg("show", "grpo", "--html", tmp_path / "g.html", *(f"--step-seconds={text}" for text in texts))
    stages = "there is advantage, gen, pull, push, reward, train, update"
    assert ended.err.splitlines() == [
        "error: --step-seconds: 4 faults",
        "  1. gen: has no seconds; write stage=seconds, such as advantage=40",
        *(
            f"  {number}. {text}: needs a stage of the graph and seconds from 0; {stages}"
            for number, text in enumerate(texts[1:], 2)
        ),
    ]
    assert not (tmp_path / "g.html").exists()
