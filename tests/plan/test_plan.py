"""The plan as a value."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from rpeg.graph.dim import ONE
from rpeg.graph.graph import Applied
from rpeg.plan.plan import Layout, Plan, Slot


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
        "pack": False,
        "balance": "rows",
        "servers": 1,
    }
    assert record["order"][1] == ["trn", [{"stage": "push", "firing": 0, "shift": 0}]]
    assert (record["residencies"], record["transfers"], record["history"], record["schema"]) == ([], [], [], 1)


def test_the_digest_is_that_of_the_plan_and_not_of_its_history(make: Any) -> None:
    plan = rendezvous(make)
    assert len(plan.digest()) == 64
    assert replace(plan, history=(Applied("place{stage=a,mesh=b}", "x", "y"),)).digest() == plan.digest()
    assert replace(plan, meshes=plan.meshes[::-1]).digest() != plan.digest()


def test_orders_of_what_meshes_share(make: Any) -> None:
    """``gen`` has places of its own and shares others with ``train``."""
    graph = make.graph({"gen": 1, "train": 1}, [], [])
    plan = make.plan(graph, gen=[Slot("gen")], train=[Slot("train")])
    both = (Slot("gen"), Slot("train"))
    plan = replace(plan, order=(("gen&train", both), ("gen", (Slot("gen"),))))
    assert plan.resources_of("gen") == ("gen&train", "gen")
    assert plan.resources_of("train") == ("gen&train",)
    assert [name for name, _ in plan.slots_of("train")] == ["gen&train"]
    assert [name for name, _ in plan.slots_of("gen")] == ["gen&train", "gen"]


@pytest.mark.parametrize(
    ("other", "is_like"),
    [
        (Layout("trn", (("ffn", "tp"), ("heads", "tp")), 1), True),
        (Layout("trn", (("heads", "tp"), ("ffn", "tp")), 3), False),
        (Layout("trn", (("heads", "tp"),), 0), False),
        (Layout("roll", (("heads", "tp"), ("ffn", "tp")), 0), False),
        (Layout("trn", (("heads", "tp"), ("ffn", "tp")), 0, "bfloat16"), False),
    ],
)
def test_layouts_in_which_weights_lie_alike(other: Layout, is_like: bool) -> None:
    """ZeRO levels 1 and 2 split moments and gradients; weights are whole."""
    layout = Layout("trn", (("heads", "tp"), ("ffn", "tp")), 2)
    assert layout.holds_like(other) is is_like
    assert other.holds_like(layout) is is_like
