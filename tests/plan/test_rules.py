"""P1 bindings, P2 meshes, P5 orders: one plan per way to break each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rpeg.errors import PlanError
from rpeg.graph.graph import Graph
from rpeg.plan.plan import Binding, Layout, Mesh, Plan, Slot
from rpeg.plan.rules import check_plan, validate_plan


@pytest.fixture
def graph(make: Any) -> Graph:
    return make.graph({"gen": 2, "train": 1}, [], [])


@pytest.fixture
def plan(make: Any, graph: Graph) -> Plan:
    return make.plan(graph, roll=[Slot("gen", 0), Slot("gen", 1)], trn=[Slot("train")])


def faults(graph: Graph, plan: Plan) -> list[str]:
    return [f"{fault.where}: {fault.what}" for fault in validate_plan(graph, plan)]


def ordered(plan: Plan, **order: list[Slot]) -> Plan:
    """Return the plan with other orders."""
    return replace(plan, order=tuple((name, tuple(slots)) for name, slots in order.items()))


def test_a_legal_plan(graph: Graph, plan: Plan) -> None:
    assert validate_plan(graph, plan) == []
    assert check_plan(graph, plan) is plan


def test_p1_the_plan_of_another_graph(graph: Graph, plan: Plan) -> None:
    other = replace(graph, name="other")
    text = f"P1 plan: is for graph {graph.digest()[:8]}, this one is {other.digest()[:8]}"
    assert faults(other, plan) == [text]


def test_p1_a_stage_is_bound_once(graph: Graph, plan: Plan) -> None:
    gen, train = plan.bindings
    assert faults(graph, replace(plan, bindings=(gen, train, train))) == ["P1 train: is bound 2 times"]
    assert faults(graph, replace(plan, bindings=(gen,))) == ["P1 train: is bound 0 times"]


def test_p1_bindings_of_no_stage(graph: Graph, plan: Plan) -> None:
    ghost = Binding("ghost", "trn", Layout("trn"))
    assert faults(graph, replace(plan, bindings=(*plan.bindings, ghost))) == [
        "P1 ghost: is bound but is no stage of the graph"
    ]


def test_p1_meshes_exist(graph: Graph, plan: Plan) -> None:
    gen, train = plan.bindings
    moved = replace(plan, bindings=(gen, replace(train, mesh="moon", layout=Layout("moon"))))
    assert faults(graph, moved) == ["P1 train: is bound to the unknown mesh moon"]


def test_p1_layouts_are_on_the_mesh_of_their_binding(graph: Graph, plan: Plan) -> None:
    gen, train = plan.bindings
    assert faults(graph, replace(plan, bindings=(gen, replace(train, layout=Layout("roll"))))) == [
        "P1 train: is bound to trn with a layout on roll"
    ]


@pytest.mark.parametrize("sizes", [(0, 1), (-1, -1), (2, 0)])
def test_p2_axes_have_slots(graph: Graph, plan: Plan, sizes: tuple[int, int]) -> None:
    roll, trn = plan.meshes
    axes = (("dp", sizes[0]), ("tp", sizes[1]))
    assert faults(graph, replace(plan, meshes=(roll, replace(trn, axes=axes)))) == [f"P2 trn: has axes {dict(axes)}"]


def test_p2_ranks_divide_the_batch(graph: Graph, plan: Plan) -> None:
    roll, trn = plan.meshes
    bad = replace(plan, meshes=(roll, replace(trn, axes=(("dp", 3), ("tp", 2)))))
    assert faults(graph, bad) == ["P2 trn: 3 data parallel ranks do not divide 8 rows"]
    assert faults(graph, replace(plan, meshes=(roll, replace(trn, axes=(("tp", 3),))))) == []


def test_p2_names_of_meshes_are_unique(graph: Graph, plan: Plan) -> None:
    again = replace(plan, meshes=(*plan.meshes, Mesh("roll", "local.slot[1:2]")))
    assert faults(graph, again) == ["P2 roll: is declared 2 times"]


def test_p5_every_firing_runs(graph: Graph, plan: Plan) -> None:
    assert faults(graph, ordered(plan, roll=[Slot("gen", 1)], trn=[Slot("train")])) == [
        "P5 roll: its order lacks gen.0"
    ]
    assert faults(graph, ordered(plan, roll=[Slot("gen", 0), Slot("gen", 1)])) == ["P5 trn: its order lacks train.0"]


def test_p5_no_firing_runs_twice_or_is_made_up(graph: Graph, plan: Plan) -> None:
    slots = [Slot("gen", 0), Slot("gen", 1), Slot("gen", 1), Slot("gen", 2), Slot("ghost")]
    assert faults(graph, ordered(plan, roll=slots, trn=[Slot("train")])) == [
        "P5 roll: its order has gen.1, gen.2, ghost.0 too often"
    ]


def test_p5_orders_are_of_meshes_and_one_each(graph: Graph, plan: Plan) -> None:
    twice = replace(plan, order=(*plan.order, ("moon", ()), ("trn", ())))
    assert faults(graph, twice) == ["P5 trn: has 2 orders", "P5 moon: has an order but is no mesh"]


def test_p5_a_guest_is_welcome_with_all_its_firings(make: Any, graph: Graph, plan: Plan) -> None:
    both = ordered(plan, roll=[Slot("gen", 0), Slot("gen", 1), Slot("train")], trn=[Slot("train")])
    assert faults(graph, both) == []
    half = ordered(plan, roll=[Slot("gen", 0), Slot("gen", 1)], trn=[Slot("train"), Slot("gen", 1)])
    assert faults(graph, half) == ["P5 trn: its order lacks gen.0"]


def test_p5_an_event_has_one_shift(graph: Graph, plan: Plan) -> None:
    both = ordered(plan, roll=[Slot("gen", 0), Slot("gen", 1), Slot("train", 0, 2)], trn=[Slot("train")])
    assert faults(graph, both) == ["P5 train.0: has the shifts 0, 2 in different orders"]


def test_p5_nothing_runs_behind_the_step(graph: Graph, plan: Plan) -> None:
    behind = ordered(plan, roll=[Slot("gen", 0), Slot("gen", 1)], trn=[Slot("train", 0, -1)])
    assert faults(graph, behind) == ["P5 train.0: has the shift -1"]


def test_all_faults_are_reported_at_once(graph: Graph, plan: Plan) -> None:
    roll, trn = plan.meshes
    bad = replace(ordered(plan, roll=[Slot("gen", 0)], trn=[Slot("train")]), graph="0" * 64)
    bad = replace(bad, meshes=(replace(roll, axes=(("dp", 0),)), trn))
    with pytest.raises(PlanError) as caught:
        check_plan(graph, bad)
    assert str(caught.value) == (
        "plan of test: 3 faults\n"
        f"  1. P1 plan: is for graph 00000000, this one is {graph.digest()[:8]}; bind this graph anew\n"
        "  2. P2 roll: has axes {'dp': 0}; every axis has at least one slot\n"
        "  3. P5 roll: its order lacks gen.1; every firing runs once per step"
    )
