"""One sequence of all firings, and the part of each resource."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rpeg.algorithms.catalog import ALGORITHMS
from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.hardware.catalog import load_system
from rpeg.plan.bind import bind_local
from rpeg.plan.orders import alone, dealt, depths, guests, in_sequence, rebound, rendezvous, sequence
from rpeg.plan.plan import Binding, Layout, Mesh, Slot, Transfer
from rpeg.plan.rules import validate_plan


def names(slots: Any) -> str:
    return " ".join(f"{s.stage}.{s.firing}" + (f"+{s.shift}" if s.shift else "") for s in slots)


def streamed(graph: Graph, firings: int) -> Graph:
    """Return the graph in which everything up to the gradients happens in parts."""
    kinds = (StageKind.GENERATE, StageKind.FORWARD, StageKind.VERIFY, StageKind.ADVANTAGE, StageKind.TRAIN)
    stages = (replace(s, firings=Dim(str(firings))) if s.kind in kinds else s for s in graph.stages)
    return replace(graph, stages=tuple(stages))


def test_what_comes_first_may_be_chosen() -> None:
    """One kind of work after the other, or each part as far as it goes."""
    graph = streamed(grpo(8, 4), 2)
    bindings = [Binding(stage.name, "all", Layout("all")) for stage in graph.stages]
    depth = depths(graph)
    events = alone(graph, bindings, {})
    assert names(in_sequence(events, lambda e: (depth[e.stage], e.firing))) == (
        "gen.0 gen.1 reward.0 reward.1 advantage.0 advantage.1 train.0 train.1 update.0 push.0 pull.0"
    )
    assert names(in_sequence(events, lambda e: (-depth[e.stage], e.firing))) == (
        "gen.0 reward.0 advantage.0 train.0 gen.1 reward.1 advantage.1 train.1 update.0 push.0 pull.0"
    )


def test_the_sequence_of_a_plan_agrees_with_all_its_orders() -> None:
    for graph in (ppo(), ppo(staleness=1), grpo(8, 4, 2, updates_per_step=2), streamed(ppo(64), 4)):
        plan = bind_local(graph)
        found = sequence(graph, plan)
        for _, slots in plan.order:
            assert [slot for slot in found if slot in slots] == list(slots)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_dealing_a_sequence_again_changes_nothing(name: str) -> None:
    graph = ALGORITHMS[name]()
    plan = bind_local(graph)
    assert validate_plan(graph, plan) == []
    assert dealt(sequence(graph, plan), plan.meshes, plan.bindings, guests(plan), None) == plan.order


def test_a_streamed_trainer_takes_each_part_as_it_comes() -> None:
    """Beside a generator that runs ahead, log-probabilities and gradients of a part follow each other."""
    graph = streamed(grpo(8, 4, 1), 2)
    plan = bind_local(graph)
    assert names(dict(plan.order)["roll"]) == "gen.0+1 gen.1+1 pull.0"
    assert names(dict(plan.order)["host"]) == "reward.0 advantage.0 reward.1 advantage.1"
    assert names(dict(plan.order)["trn"]) == "train.0 train.1 update.0 push.0"


def test_who_meets_whom() -> None:
    """A push straight into weights in use needs the generator's devices; one into a staged copy does not."""
    graph = ppo(staleness=1)
    plan = bind_local(graph)
    assert rendezvous(graph, plan.bindings) == guests(plan) == {"publish": {"roll"}}
    assert plan.resources_of("publish") == ("trn", "roll")
    staged = grpo(8, 4, 1)
    assert rendezvous(staged, bind_local(staged).bindings) == guests(bind_local(staged)) == {}
    assert rendezvous(ppo(), bind_local(ppo()).bindings) == {}


def test_a_part_of_ones_own_mesh_makes_no_guest(make: Any) -> None:
    """``ref`` sits on some of the devices of ``gen``: who stands on all of gen stands there too."""
    graph = make.graph({"gen": 1, "ref": 1}, [], [])
    plan = make.plan(graph, gen=[Slot("gen")], ref=[Slot("ref")])
    plan = replace(plan, order=(("gen", (Slot("gen"),)), ("gen&ref", (Slot("gen"), Slot("ref")))))
    assert guests(plan) == {}


ALPS = load_system("alps:16")


def test_bound_anew() -> None:
    """The reference moves to the generator's mesh; the guest stays, the order of the rest too."""
    graph = ppo(staleness=1)
    plan = bind_local(graph)
    wheres = ("rack[0].node[0:2]", "rack[0].node[2:4]", "rack[0].node[0:4].host")
    meshes = [replace(mesh, where=where) for mesh, where in zip(plan.meshes, wheres, strict=True)]
    ref = replace(plan.binding_of["ref"], mesh="roll", layout=Layout("roll"))
    bindings = [ref if b.stage == "ref" else b for b in plan.bindings]
    found = rebound(graph, replace(plan, transfers=(Transfer("ref.weights", "ref"),)), meshes, bindings, ALPS)
    assert names(dict(found.order)["roll"]) == "gen.0+1 ref.0 publish.0"
    without = [slot for slot in dict(plan.order)["trn"] if slot.stage != "ref"]
    assert list(dict(found.order)["trn"]) == without
    assert found.transfers == ()
    assert validate_plan(graph, found) == []


def test_a_rendezvous_follows_the_generator() -> None:
    graph = ppo(staleness=1)
    plan = bind_local(graph)
    new = Mesh("fast", "rack[0].node[3]")
    wheres = ("rack[0].node[0]", "rack[0].node[1]", "rack[0].node[0:4].host")
    meshes = [*(replace(mesh, where=where) for mesh, where in zip(plan.meshes, wheres, strict=True)), new]
    gen = replace(plan.binding_of["gen"], mesh="fast", layout=Layout("fast"))
    found = rebound(graph, plan, meshes, [gen if b.stage == "gen" else b for b in plan.bindings], ALPS)
    assert [mesh.name for mesh in found.meshes] == ["trn", "host", "fast"]
    assert guests(found) == {"publish": {"fast"}}
    assert found.shift_of("gen") == 1


def test_meshes_on_the_same_devices_get_one_order() -> None:
    graph = ppo(staleness=1)
    plan = bind_local(graph)
    wheres = ("rack[0].node[0:2]", "rack[0].node[1:3]", "rack[0].node[0:4].host")
    meshes = [replace(mesh, where=where) for mesh, where in zip(plan.meshes, wheres, strict=True)]
    found = rebound(graph, plan, meshes, plan.bindings, ALPS)
    order = dict(found.order)
    assert list(order) == ["roll", "roll&trn", "trn", "host"]
    assert names(order["roll"]) == "gen.0+1 publish.0"
    assert {slot.stage for slot in order["roll&trn"]} == {
        *(s.stage for s in order["roll"]),
        *(s.stage for s in order["trn"]),
    }
    assert [slot for slot in order["roll&trn"] if slot in order["trn"]] == list(order["trn"])
    assert validate_plan(graph, found) == []
