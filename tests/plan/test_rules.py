"""P1 bindings, P2 meshes, P5 orders, P6 collectives: one plan per way to break each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rpeg.errors import PlanError
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.hardware.catalog import load_system
from rpeg.plan.plan import Binding, Layout, Mesh, Method, Plan, Slot, Transfer
from rpeg.plan.rules import check_plan, validate_plan
from rpeg.plan.site import Site


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
    assert faults(graph, replace(plan, meshes=(roll, replace(trn, axes=axes)))) == [
        f"P2 trn: has axes dp {sizes[0]} tp {sizes[1]}"
    ]


def test_p2_ranks_divide_the_batch(graph: Graph, plan: Plan) -> None:
    roll, trn = plan.meshes
    bad = replace(plan, meshes=(roll, replace(trn, axes=(("dp", 3), ("tp", 2)))))
    assert [str(fault) for fault in validate_plan(graph, bad)] == [
        "P2 trn: 3 data parallel ranks do not divide 8 rows; choose a divisor: 1, 2, 4"
    ]
    assert faults(graph, replace(plan, meshes=(roll, replace(trn, axes=(("tp", 3),))))) == []


def test_p2_names_of_meshes_are_unique(graph: Graph, plan: Plan) -> None:
    again = replace(plan, meshes=(*plan.meshes, Mesh("roll", "local.slot[1:2]")))
    assert faults(graph, again) == ["P2 roll: is declared 2 times"]


@pytest.mark.parametrize("name", ["a&b", "A", "", "a.b", "1a"])
def test_p2_names_can_stand_in_names_of_resources(make: Any, name: str) -> None:
    graph = make.graph({"gen": 1}, [], [])
    plan = make.plan(graph, **{name: [Slot("gen")]})
    assert f"P2 {name}: is no name of a mesh" in faults(graph, plan)


def on(plan: Plan, *regions: tuple[str, tuple[tuple[str, int], ...]]) -> Plan:
    """Return the plan with its meshes on other regions, with these axes."""
    return replace(plan, meshes=tuple(Mesh(m.name, w, axes) for m, (w, axes) in zip(plan.meshes, regions, strict=True)))


def test_p2_regions_can_be_read_and_axes_are_named_once(graph: Graph, plan: Plan) -> None:
    bad = on(plan, ("rack[", (("dp", 1),)), ("rack", (("dp", 1), ("dp", 2))))
    assert faults(graph, bad) == ["P2 roll 'rack[': has 'rack['", "P2 trn: has axes dp 1 dp 2"]


def test_p2_sizes_multiply_up_on_the_machine(graph: Graph, plan: Plan) -> None:
    site = Site(load_system("alps:16"))
    good = on(plan, ("rack[0].node[0:2].gpu[0:2]", (("dp", 2), ("tp", 2))), ("rack[0].node[2:4].host", (("dp", 2),)))
    assert validate_plan(graph, good, site) == []
    bad = on(plan, ("rack[0].node[0:2]", (("dp", 2), ("tp", 2))), ("rack[0].node[4]", (("tp", 4),)))
    assert [str(fault) for fault in validate_plan(graph, bad, site)] == [
        "P2 roll: its axes dp 2 tp 2 make 4 ranks, rack[0].node[0:2] has 8 devices; let the sizes multiply up to 8",
        "P2 trn rack[0].node[4]: asks for node 4 where there are 4; alps:16 has node[0:4]",
    ]


def test_p5_meshes_that_share_devices_share_an_order(graph: Graph, plan: Plan) -> None:
    """Node 1 belongs to both: one order there, and one for the rest of each."""
    site = Site(load_system("alps:16"))
    axes = (("dp", 2), ("tp", 4))
    plan = on(plan, ("rack[0].node[0:2]", axes), ("rack[0].node[1:3]", axes))
    assert [str(fault) for fault in validate_plan(graph, plan, site)] == [
        "P5 roll&trn: its order lacks gen.0, gen.1, train.0; every firing runs once per step"
    ]
    gen, train = [Slot("gen", 0), Slot("gen", 1)], [Slot("train")]
    good = replace(plan, order=(("roll", tuple(gen)), ("roll&trn", (*gen, *train)), ("trn", tuple(train))))
    assert validate_plan(graph, good, site) == []
    assert validate_plan(graph, good) == []
    same = on(good, ("rack[0].node[0]", (("dp", 4),)), ("rack[0].node[0]", (("tp", 4),)))
    assert [str(fault) for fault in validate_plan(graph, same, site)] == [
        "P5 roll: has an order but shares its devices; orders are of roll&trn",
        "P5 trn: has an order but shares its devices; orders are of roll&trn",
    ]


def test_p5_the_orders_can_turn(make: Any) -> None:
    graph = make.graph({"w": 1, "r": 1}, [make.stream("x")], [make.write("w", "x"), make.read("r", "x")])
    assert [str(fault) for fault in validate_plan(graph, make.plan(graph, dev=[Slot("r"), Slot("w")]))] == [
        "P5 w.0 -> r.0 -> w.0: 0 tokens on the cycle (data:x, device:dev), so it never starts; "
        "shift the order or keep more versions"
    ]


def test_p6_two_who_meet_twice_meet_in_one_order(make: Any) -> None:
    graph = make.graph({"push": 1, "eval": 1, "gen": 1}, [], [])
    plan = make.plan(graph, roll=[Slot("gen"), Slot("push"), Slot("eval")], trn=[Slot("eval"), Slot("push")])
    assert [str(fault) for fault in validate_plan(graph, plan)] == [
        "P6 push.0, eval.0: on roll push.0 comes first of what follows, on trn eval.0; "
        "both occupy roll and trn: one order for both"
    ]
    good = make.plan(graph, roll=[Slot("eval"), Slot("gen"), Slot("push")], trn=[Slot("eval"), Slot("push")])
    assert validate_plan(graph, good) == []


def test_p1_weights_are_installed_where_they_are_used(make: Any) -> None:
    accesses = [make.write("pull", "weights"), make.read("gen", "weights", 1)]
    graph = make.graph({"pull": 1, "gen": 1}, [make.state("weights")], accesses, pull=StageKind.PULL)
    plan = make.plan(graph, roll=[Slot("gen")], trn=[Slot("pull")])
    assert [str(fault) for fault in validate_plan(graph, plan)] == [
        "P1 pull: installs weights on trn, but gen reads it on roll; bind both to one mesh"
    ]


def test_p1_only_what_is_sent_can_be_sent_in_a_certain_way(graph: Graph, plan: Plan) -> None:
    bad = replace(plan, transfers=(Transfer("weights", "gen", Method.BUCKETED, 0),))
    assert [str(fault) for fault in validate_plan(graph, bad)] == [
        "P1 transfer of weights to gen: does not happen: the layouts do not ask for it; those that do: none",
        "P1 transfer of weights to gen: has buckets of 0 bytes; give them room",
    ]


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
        "  2. P2 roll: has axes dp 0; every axis is named once and has a slot\n"
        "  3. P5 roll: its order lacks gen.1; every firing runs once per step"
    )
