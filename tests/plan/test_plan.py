"""The plan as a value."""

from __future__ import annotations

import json
from typing import Any

from rpeg.graph.dim import ONE
from rpeg.plan.plan import Plan, Slot


def rendezvous(make: Any) -> Plan:
    graph = make.graph({"gen": 2, "push": 1}, [], [])
    return make.plan(graph, roll=[Slot("gen", 0, 1), Slot("gen", 1, 2), Slot("push", 0, 0)], trn=[Slot("push")])


def test_where_and_when_a_firing_runs(make: Any) -> None:
    plan = rendezvous(make)
    assert (plan.mesh_of("gen"), plan.mesh_of("push")) == ("roll", "roll")
    assert [plan.shift_of("gen"), plan.shift_of("gen", 1), plan.shift_of("push")] == [1, 2, 0]
    assert plan.resources_of("gen", 1) == ("roll",)
    assert plan.resources_of("push") == ("roll", "trn")


def test_the_mesh_of_the_binding_comes_first(make: Any) -> None:
    graph = make.graph({"push": 1, "train": 1}, [], [])
    plan = make.plan(graph, trn=[Slot("train"), Slot("push")], roll=[Slot("push")])
    assert plan.resources_of("push") == ("trn", "roll")
    other = Plan(plan.graph, plan.meshes, plan.bindings, plan.order[::-1])
    assert other.resources_of("push") == ("trn", "roll")


def test_json(make: Any) -> None:
    plan = rendezvous(make)
    text = plan.to_json()
    record = json.loads(text)
    assert text.endswith("}\n")
    assert record["graph"] == plan.graph
    assert record["meshes"][0] == {"name": "roll", "where": "local.slot[0:1]", "axes": [["dp", 1]]}
    assert record["bindings"][0] == {
        "stage": "gen",
        "mesh": "roll",
        "layout": {"mesh": "roll", "shard": [], "zero": 0, "dtype": "float32"},
        "micro_rows": str(ONE),
        "pipeline": None,
        "recompute": "none",
        "engine": "torch",
    }
    assert record["order"][1] == ["trn", [{"stage": "push", "firing": 0, "shift": 0}]]
    assert (record["residencies"], record["schema"]) == ([], 1)
