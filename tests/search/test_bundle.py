"""Plan files: written and read, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rpeg.algorithms.grpo import grpo
from rpeg.errors import GraphError, PlanError
from rpeg.plan.bind import bind_local
from rpeg.search.bundle import Bundle, from_json, read_bundle, to_json, write_bundle
from rpeg.search.find import Goal
from rpeg.search.origin import allowed_by, graph_of, unqueued, widened
from rpeg.search.structures import structures

STALE = next(s.graph for s in structures(grpo(8, 8), 1) if s.staleness and s.firings == 1)
"""GRPO with a step of staleness, as a search has it."""


def bundle() -> Bundle:
    return Bundle(bind_local(STALE), STALE, "tiny", "alps:4")


def fault(change: Callable[[dict[str, Any]], object]) -> str:
    """Return what is said about a file that was changed by hand."""
    record = json.loads(to_json(bundle()))
    change(record)
    with pytest.raises((PlanError, GraphError)) as caught:
        from_json(json.dumps(record), "plan.json")
    return str(caught.value.faults[0])


def test_round_trip(tmp_path: Path) -> None:
    write_bundle(tmp_path / "plan.json", bundle())
    found = read_bundle(tmp_path / "plan.json")
    assert (found.plan, found.graph, found.recipe, found.cluster) == (bundle().plan, STALE, "tiny", "alps:4")
    assert found.graph is not None
    assert found.graph.history == STALE.history
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert to_json(found) == to_json(bundle())


def test_a_plan_alone() -> None:
    plan = bundle().plan
    found = from_json(plan.to_json())
    assert (found.plan, found.graph, found.recipe, found.cluster) == (plan, None, "", "")
    assert to_json(found) == plan.to_json()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(more=1), "more: is unknown; a plan file has schema, recipe, cluster, graph, plan"),
        (lambda r: r.pop("graph"), "graph: is missing; a plan file has schema, recipe, cluster, graph, plan"),
        (lambda r: r.update(schema=2), "schema: is 2; this version reads 1 to 1"),
        (lambda r: r.pop("schema"), "schema: is missing; this is not a plan file"),
        (lambda r: r.update(cluster=4), "cluster: is 4; write it as text"),
        (lambda r: r.update(graph="x"), "schema: is missing; this is not a graph file"),
        (lambda r: r["graph"].update(more=1), "graph: has unknown fields more"),
        (lambda r: r["plan"].update(more=1), "plan: has unknown fields more"),
        (lambda r: r["graph"].update(name="other"), "plan: is for graph"),
        (lambda r: r["graph"]["accesses"].pop(), "plan: is for graph"),
    ],
)
def test_what_is_refused(change: Callable[[dict[str, Any]], object], message: str) -> None:
    assert fault(change).startswith(message)


def test_a_graph_that_breaks_a_rule() -> None:
    broken = replace(STALE, accesses=STALE.accesses[:-1])
    plan = replace(bundle().plan, graph=broken.digest())
    with pytest.raises(GraphError, match=r"V14 actor.moments: is saved but can be recomputed"):
        from_json(to_json(Bundle(plan, broken)))


def test_no_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"cannot be read: .*give what rpeg plan --out has written"):
        read_bundle(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(PlanError, match=r"bad.json: 1 fault\n  1. line 1: is not JSON"):
        read_bundle(tmp_path / "bad.json")


# Where the graph comes from.


def test_the_graph_beside_the_plan() -> None:
    assert graph_of(bundle(), grpo(8, 8), Goal()) == STALE
    assert allowed_by(grpo(8, 8), STALE) == Goal(1, ())


def test_the_graph_of_a_plan_alone_is_found_by_what_is_allowed() -> None:
    alone = Bundle(bundle().plan)
    assert graph_of(alone, grpo(8, 8), Goal(1)) == STALE
    with pytest.raises(
        PlanError, match=r"is none of the .* structures of grpo; these have staleness up to 0 and no rew"
    ):
        graph_of(alone, grpo(8, 8), Goal())


def test_a_plan_for_other_sizes() -> None:
    with pytest.raises(PlanError, match=r"than that of the recipe \(B value 16 -> 8\); give the recipe"):
        graph_of(bundle(), grpo(16, 8), Goal())
    own = grpo(8, 8)
    with pytest.raises(PlanError, match=r"\(B value 16 -> 8\)"):
        graph_of(Bundle(bind_local(own), own), grpo(16, 8), Goal())


def test_a_plan_for_another_algorithm() -> None:
    from rpeg.algorithms.rloo import rloo

    with pytest.raises(PlanError, match="is for another graph than that of the recipe"):
        graph_of(bundle(), rloo(8, 8), Goal())


def test_delays_are_moved_back() -> None:
    assert [applied.transform for applied in STALE.history] == ["relax{stage=gen,steps=1}", "retime{stage=gen,r=-1}"]
    before = unqueued(grpo(8, 8), STALE)
    assert [applied.transform for applied in before.history] == ["relax{stage=gen,steps=1}"]
    assert widened(grpo(8, 8), STALE).digest() == STALE.history[0].before
    assert unqueued(grpo(16, 8), STALE) == STALE, "a history that begins elsewhere stays"
