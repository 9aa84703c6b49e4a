"""What has to be moved follows from layouts and residencies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.graph.access import Access, Mode
from rpeg.graph.contract import Logprob
from rpeg.graph.data import Column, Data, DataKind, Per
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.plan.bind import bind_local
from rpeg.plan.plan import Home, Layout, Method, Plan, Residency, Slot, Transfer
from rpeg.plan.shipments import Cause, is_changed_between, is_laid_out, reshards, shipments

SPLIT = (("heads", "tp"),)


def weights(name: str, versions: int = 1) -> Data:
    return Data(name, DataKind.STATE, (Column("weights", "float32"),), Per.RUN, "actor", versions)


def learning(make: Any, trains: int = 1, updates: int = 1, delay: int = 1) -> Graph:
    """``train`` and ``old`` read the weights before the update, ``train`` makes gradients for it."""
    grads = Data("grads", DataKind.STREAM, (Column("grads", "float32"),), Per.STEP, "actor", 0)
    return make.graph(
        {"old": 1, "value": 1, "train": trains, "update": updates},
        [grads, weights("master")],
        [
            *(make.read(stage, "master", delay) for stage in ("old", "value", "train")),
            make.write("train", "grads"),
            make.read("update", "grads"),
            Access("update", "master", Mode.UPDATE),
        ],
        train=StageKind.TRAIN,
        update=StageKind.UPDATE,
        old=StageKind.FORWARD,
        value=StageKind.FORWARD,
    )


def laid_out(plan: Plan, **layouts: Layout) -> Plan:
    """Return the plan with other layouts; a stage goes to the mesh of its layout."""
    bindings = (
        replace(b, layout=layouts[b.stage], mesh=layouts[b.stage].mesh) if b.stage in layouts else b
        for b in plan.bindings
    )
    return replace(plan, bindings=tuple(bindings))


def on_one(make: Any, graph: Graph) -> Plan:
    order = [Slot(s.name, j) for s in graph.stages for j in range(int(graph.firings(s.name)))]
    return make.plan(graph, trn=order)


def test_one_layout_needs_no_moves(make: Any) -> None:
    graph = learning(make)
    assert shipments(graph, on_one(make, graph)) == ()


def test_who_wants_another_layout_gets_a_copy(make: Any) -> None:
    graph = learning(make)
    split = Layout("trn", SPLIT)
    found = reshards(graph, laid_out(on_one(make, graph), old=split))
    assert [(s.name, s.cause, s.writer, s.readers, s.firings, s.carrier) for s in found] == [
        ("reshard:master>old", Cause.RESHARD, "update", ("old",), 1, None)
    ]
    assert (found[0].src, found[0].dst) == (Layout("trn"), split)


def test_those_who_want_the_same_share_it(make: Any) -> None:
    graph = learning(make)
    plan = laid_out(on_one(make, graph), old=Layout("trn", SPLIT), value=Layout("trn", SPLIT, 1))
    assert [(s.name, s.readers) for s in reshards(graph, plan)] == [("reshard:master>old", ("old", "value"))]
    plan = laid_out(on_one(make, graph), old=Layout("trn", SPLIT), value=Layout("trn", dtype="bfloat16"))
    assert [s.name for s in reshards(graph, plan)] == ["reshard:master>old", "reshard:master>value"]


def test_gradients_move_too(make: Any) -> None:
    """The optimizer works on another layout: gradients go there, and new weights come back after every update."""
    graph = learning(make, trains=4, updates=2)
    plan = laid_out(on_one(make, graph), update=Layout("trn", SPLIT))
    assert [(s.name, s.firings, s.readers) for s in reshards(graph, plan)] == [
        ("reshard:grads>update", 2, ("update",)),
        ("reshard:master>old", 2, ("old", "value", "train")),
    ]


def test_rows_are_carried_by_the_data_plane() -> None:
    """Rollouts go from one mesh to the other without a transfer; weights are carried by the pull."""
    graph = grpo(8, 4, 1, old_logprob=Logprob.RECOMPUTED)
    found = reshards(graph, bind_local(graph))
    assert [(s.name, s.carrier) for s in found] == [("reshard:actor.staged>pull", "pull")]
    assert is_laid_out(graph.data_of["grads"])
    assert not is_laid_out(graph.data_of["rollouts"])
    assert not is_laid_out(ppo().data_of["kl.coef"])


def test_a_push_straight_into_weights_in_use_carries_them() -> None:
    graph = ppo(staleness=1)
    found = reshards(graph, bind_local(graph))
    assert [(s.name, s.carrier) for s in found] == [("reshard:actor.rollout>gen", "publish")]


def test_how_it_is_sent(make: Any) -> None:
    graph = learning(make)
    how = Transfer("master", "value", Method.GATHER)
    plan = laid_out(on_one(make, graph), old=Layout("trn", SPLIT), value=Layout("trn", SPLIT))
    assert [s.how for s in reshards(graph, replace(plan, transfers=(how,)))] == [how]
    assert [s.how for s in reshards(graph, plan)] == [None]


def test_what_is_brought_for_a_time(make: Any) -> None:
    """Between train and update the weights change, between old and value they do not."""
    graph = learning(make)
    residency = Residency("master", Home.HOST, (("old", "value"), ("train", "update")))
    plan = replace(on_one(make, graph), residencies=(residency,))
    assert [(s.name, s.cause, s.writer, s.home) for s in shipments(graph, plan)] == [
        ("load:master.0", Cause.LOAD, "old", Home.HOST),
        ("load:master.1", Cause.LOAD, "train", Home.HOST),
        ("store:master.1", Cause.STORE, "update", Home.HOST),
    ]
    assert not is_changed_between(graph, plan, "master", "old", "train")
    assert is_changed_between(graph, plan, "master", "old", "update")


def test_what_lives_on_the_device_is_not_brought(make: Any) -> None:
    graph = learning(make)
    plan = replace(on_one(make, graph), residencies=(Residency("master", Home.HBM),))
    assert shipments(graph, plan) == ()
