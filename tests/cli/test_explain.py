"""``rpeg explain``: plan files, what is printed, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.search.test_explain import made_by_hand
from tests.search.tiny import CLUSTER, OVERRIDES, RECIPE, found, tiny

from rpeg.graph.graph import Graph
from rpeg.plan.plan import Plan
from rpeg.search import explain as explaining
from rpeg.search.bundle import Bundle, write_bundle
from rpeg.search.case import Case
from rpeg.search.explain_text import as_text
from rpeg.search.find import Goal

Write = Callable[..., Path]


@pytest.fixture
def plan_file(folder: Path) -> Write:
    """Return the function that writes the best plan with a step of staleness."""

    def write(cluster: str = CLUSTER, *, alone: bool = False) -> Path:
        best = found(1).plans[0]
        graph = None if alone else best.structure.graph
        write_bundle(folder / "plan.json", Bundle(best.priced.plan, graph, "grpo-7b", "" if alone else cluster))
        return folder / "plan.json"

    return write


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Case, Graph, Plan]]:
    """Answer at once, and keep what was asked: searches are tested where they are."""
    calls: list[tuple[Case, Graph, Plan]] = []

    def explain(case: Case, graph: Graph, plan: Plan) -> Any:
        calls.append((case, graph, plan))
        return made_by_hand()

    monkeypatch.setattr(explaining, "explain", explain)
    return calls


def test_text(rpeg: Any, plan_file: Write, asked: list[tuple[Case, Graph, Plan]]) -> None:
    """The machine and what is allowed are those of the file."""
    ended = rpeg("explain", plan_file(), RECIPE, *OVERRIDES)
    assert (ended.status, ended.err, ended.out) == (0, "", as_text(made_by_hand()) + "\n")
    ((case, graph, plan),) = asked
    best = found(1).plans[0]
    assert (graph, plan) == (best.structure.graph, best.priced.plan)
    assert (case.system.name, case.goal, case.graph) == (CLUSTER, Goal(1), tiny().graph)


def test_json(rpeg: Any, plan_file: Write, asked: list[tuple[Case, Graph, Plan]]) -> None:
    ended = rpeg("explain", plan_file(), RECIPE, *OVERRIDES, "--json")
    assert json.loads(ended.out)["text"] == made_by_hand().text
    assert json.loads(ended.out)["assumed"] == []


def test_options_come_before_the_file(rpeg: Any, plan_file: Write, asked: list[tuple[Case, Graph, Plan]]) -> None:
    options = ("--cluster", CLUSTER, "--staleness-max", 3, "--allow", "in_flight,share_trunk", "--software", "verl")
    ended = rpeg("explain", plan_file("alps:8"), RECIPE, *OVERRIDES, *options)
    assert ended.status == 0, ended.err
    ((case, _, _),) = asked
    assert case.system.name == CLUSTER
    assert case.goal == Goal(3, ("in_flight", "share_trunk"))
    assert case.software.loaded.asked == "verl"


def test_what_searches_have_to_keep(rpeg: Any, plan_file: Write, asked: list[tuple[Case, Graph, Plan]]) -> None:
    wishes = ("--set", "train.tp=2", "--set", "gen.where=rack")
    assert rpeg("explain", plan_file(), RECIPE, *OVERRIDES, *wishes).status == 0
    ((case, _, _),) = asked
    assert (case.goal.pins["train"].degrees, case.goal.regions) == ({"tp": 2}, {"gen": "rack"})
    (fault,) = rpeg("explain", plan_file(), RECIPE, *OVERRIDES, "--set", "trian.tp=2").faults
    assert fault == "trian.tp=2: names no call; did you mean train?"


def test_a_plan_alone(rpeg: Any, plan_file: Write, asked: list[tuple[Case, Graph, Plan]]) -> None:
    """It has no machine, and its graph is looked for among the structures that are allowed."""
    path = plan_file(alone=True)
    assert rpeg("explain", path, RECIPE, *OVERRIDES).faults == [
        f"plan: is for graph {found(1).plans[0].priced.plan.graph[:8]}, which is none of the 5 structures of grpo; "
        "these have staleness up to 0 and no rewrite that changes learning: "
        "give --staleness-max and --allow as when it was planned, or the file of rpeg plan --out"
    ]
    assert rpeg("explain", path, RECIPE, *OVERRIDES, "--staleness-max", 1).faults == [
        "--cluster: is missing: neither the plan nor the recipe names a machine; "
        "name it, such as --cluster alps:256 or --cluster dgx-h100:64"
    ]
    assert rpeg("explain", path, RECIPE, *OVERRIDES, "--staleness-max", 1, "--cluster", CLUSTER).status == 0


def test_what_if(rpeg: Any, plan_file: Write) -> None:
    changes = ("--what-if", "hbm=2x", "--what-if", "response.mean=0.5x", "--same-plan")
    ended = rpeg("explain", plan_file(), RECIPE, *OVERRIDES, *changes)
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "what if    hbm=2x, response.mean=0.5x (same plan, priced again)"
    assert [line[:10].strip() for line in lines] == ["what if", "now", "", "then", "", "ratio"]
    record = json.loads(rpeg("explain", plan_file(), RECIPE, *OVERRIDES, *changes, "--json").out)
    assert (record["changes"], record["differences"]) == (["hbm=2x", "response.mean=0.5x"], [])


@pytest.mark.parametrize(
    ("options", "faults"),
    [
        (["--same-plan"], ["--same-plan: is for changes; add --what-if nic=2x"]),
        (["--what-if", "hmb=2x"], ["hmb: is nothing that can be changed; did you mean hbm?"]),
        (["--cluster", "alpss"], ["alpss: is not in the catalogue; did you mean alps?"]),
        (["--allow", "relaxx", "--what-if", "hbm=2x"], None),
    ],
)
def test_what_is_refused(rpeg: Any, plan_file: Write, options: list[str], faults: list[str] | None) -> None:
    ended = rpeg("explain", plan_file(), RECIPE, *OVERRIDES, *options)
    assert ended.status == 2
    assert ended.faults == faults or (faults is None and "is no transformation that changes learning" in ended.err)


def test_a_plan_for_other_sizes(rpeg: Any, plan_file: Write) -> None:
    ended = rpeg("explain", plan_file(), RECIPE, *OVERRIDES, "algorithm.prompts=128")
    assert ended.faults == [
        "graph: is for another graph than that of the recipe (B value 128 -> 64); "
        "give the recipe and the overrides that it was planned with"
    ]


def test_a_plan_that_does_not_fit_on_the_machine(rpeg: Any, plan_file: Write) -> None:
    ended = rpeg("explain", plan_file(), RECIPE, *OVERRIDES, "--cluster", "t4:4")
    assert ended.status == 2
    assert "P2 host rack.node.host: is no path in the tree of t4:4" in ended.err


def test_no_such_file(rpeg: Any) -> None:
    (fault,) = rpeg("explain", "none.json", RECIPE).faults
    assert fault.endswith("give what rpeg plan --out has written, or the JSON of a plan")
