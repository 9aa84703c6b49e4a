"""What is in memory when; P4: it fits, and it is there when it is used."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from tests.plan.test_shipments import SPLIT, laid_out, learning, on_one, weights

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.graph.access import Access, Mode
from rpeg.graph.data import Column, Data, DataKind, Per
from rpeg.graph.graph import Graph
from rpeg.hardware.catalog import load_system
from rpeg.hardware.topology import System
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import Costs, Duration, KnownCosts, KnownSizes
from rpeg.plan.memory import copies, residents, staging_bytes
from rpeg.plan.plan import Home, Layout, Mesh, Method, Plan, Residency, Slot, Transfer
from rpeg.plan.rules import validate_plan
from rpeg.plan.shipments import reshards
from rpeg.plan.site import Site
from rpeg.plan.timeline import peak, schedule

SECONDS = KnownCosts({name: Duration(10.0) for name in "abcd"})
GB = 10**9


def times(
    graph: Graph, plan: Plan, sizes: KnownSizes, costs: Costs = SECONDS
) -> dict[str, list[tuple[str, float, float]]]:
    """Return name, start and end of what is resident, by resource, the first two of each name."""
    found = residents(graph, plan, sizes, schedule(graph, plan, costs))
    return {
        resource: [
            (each.name, each.start_s, each.end_s)
            for i, each in enumerate(there)
            if [other.name for other in there[:i]].count(each.name) < 2
        ]
        for resource, there in found.items()
    }


def resting(make: Any, lead: int = 0) -> tuple[Graph, Plan]:
    """``b`` reads and ``c`` updates weights that rest on the host while ``a`` and ``d`` work, 10 s each."""
    accesses = [make.read("b", "w", 1), Access("c", "w", Mode.UPDATE)]
    graph = make.graph({"a": 1, "b": 1, "c": 1, "d": 1}, [weights("w")], accesses)
    plan = make.plan(graph, trn=[Slot(name) for name in "abcd"])
    return graph, replace(plan, residencies=(Residency("w", Home.HOST, (("b", "c"),), lead),))


def test_weights_are_there_from_load_to_store(make: Any) -> None:
    """Loading takes 4 s after a, storing 3 s while d runs."""
    graph, plan = resting(make)
    costs = KnownCosts(SECONDS.by_stage, {"load:w.0": 4.0, "store:w.0": 3.0})
    assert times(graph, plan, KnownSizes({"w": 5}), costs)["trn"] == [("w", 10.0, 37.0), ("w", 54.0, 81.0)]


def test_prefetching_takes_room_earlier(make: Any) -> None:
    graph, plan = resting(make, 1)
    costs = KnownCosts(SECONDS.by_stage, {"load:w.0": 4.0, "store:w.0": 3.0})
    assert times(graph, plan, KnownSizes({"w": 5}), costs)["trn"] == [("w", 0.0, 33.0), ("w", 40.0, 73.0)]


def test_without_a_residency_they_are_always_there(make: Any) -> None:
    graph, plan = resting(make)
    played = schedule(graph, plan, SECONDS)
    found = residents(graph, replace(plan, residencies=()), KnownSizes({"w": 5}), played)
    assert [(each.name, each.num_bytes, each.start_s, each.end_s) for each in found["trn"]] == [("w", 5, 0.0, inf)]


def test_versions_count(make: Any) -> None:
    accesses = [make.read("a", "w", 2), Access("b", "w", Mode.UPDATE)]
    graph = make.graph({"a": 1, "b": 1}, [weights("w", 3)], accesses)
    plan = make.plan(graph, trn=[Slot("a"), Slot("b")])
    assert peak(residents(graph, plan, KnownSizes({"w": 5}), schedule(graph, plan, SECONDS))["trn"]).num_bytes == 15


def test_rows_lie_with_their_writer_and_then_with_their_readers(make: Any) -> None:
    accesses = [make.write("a", "x"), make.read("b", "x"), make.read("c", "x")]
    graph = make.graph({"a": 1, "b": 1, "c": 1}, [make.stream("x")], accesses)
    plan = make.plan(graph, roll=[Slot("a"), Slot("b")], trn=[Slot("c")])
    found = times(graph, plan, KnownSizes({"x": 5}))
    assert found == {"roll": [("x", 0.0, 20.0), ("x", 20.0, 40.0)], "trn": [("x", 10.0, 20.0), ("x", 30.0, 40.0)]}


def test_working_memory_while_a_firing_runs(make: Any) -> None:
    graph, plan = resting(make)
    found = times(graph, plan, KnownSizes({}, {"c": 7}))
    assert found["trn"] == [("c (working)", 20.0, 30.0), ("c (working)", 60.0, 70.0)]


def test_a_firing_beside_the_tail_of_the_one_before_has_the_same_room(make: Any) -> None:
    """``a`` occupies its devices for 10 s of every 10, and each firing has a tail of 15 s."""
    graph = make.graph({"a": 1, "b": 1}, [make.stream("x", 3)], [make.write("a", "x"), make.read("b", "x")])
    plan = make.plan(graph, roll=[Slot("a")], trn=[Slot("b")])
    played = schedule(graph, plan, KnownCosts({"a": Duration(10.0, 15.0)}))
    found = residents(graph, plan, KnownSizes({}, {"a": 7}), played)["roll"]
    assert [(each.name, each.num_bytes, each.start_s) for each in found] == [("a (working)", 7, 0.0)]
    assert peak(found).num_bytes == 7


def test_copies_for_other_layouts(make: Any) -> None:
    graph = learning(make)
    plan = laid_out(on_one(make, graph), old=Layout("trn", SPLIT), value=Layout("trn", SPLIT))
    assert [(copy.name, copy.layout.shard) for copy in copies(graph, plan)] == [
        ("master", ()),
        ("master for old", SPLIT),
    ]


def test_copies_of_a_staged_publish() -> None:
    """The pull goes from what was staged with the trainer straight into what the sampler uses: k + 1 versions of it."""
    graph = grpo(8, 4, 2)
    found = {copy.name: (copy.layout.mesh, copy.versions) for copy in copies(graph, bind_local(graph))}
    assert {name: where for name, where in found.items() if name.startswith("actor.")} == {
        "actor.master": ("trn", 1),
        "actor.moments": ("trn", 1),
        "actor.staged": ("trn", 2),
        "actor.rollout": ("roll", 3),
    }


def test_a_rendezvous_leaves_no_copy_with_the_trainer_that_is_not_used() -> None:
    graph = ppo(staleness=1)
    found = [(copy.name, copy.layout.mesh) for copy in copies(graph, bind_local(graph)) if "rollout" in copy.name]
    assert found == [("actor.rollout", "roll")]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (None, 100),
        (Transfer("master", "old", Method.BUCKETED, 30), 30),
        (Transfer("master", "old", Method.BUCKETED, 300), 100),
        (Transfer("master", "old", Method.GATHER), 100),
    ],
)
def test_buffers_of_a_transfer(make: Any, how: Transfer | None, expected: int) -> None:
    graph = learning(make)
    plan = laid_out(on_one(make, graph), old=Layout("trn", SPLIT))
    plan = replace(plan, transfers=(how,) if how else ())
    sizes = KnownSizes({"master": 100})
    assert staging_bytes(sizes, reshards(graph, plan)[0]) == expected
    played = schedule(graph, plan, KnownCosts({"update": Duration(10.0)}, {"reshard:master>old": 3.0}))
    sent = [each for each in residents(graph, plan, sizes, played)["trn"] if each.name == "master (sent)"]
    assert (sent[0].start_s, sent[0].end_s, sent[0].num_bytes) == (10.0, 13.0, expected)


def site(sizes: KnownSizes, costs: Costs = SECONDS, system: System | None = None) -> Site:
    return Site(system or load_system("alps:4"), {}, costs, sizes)


def on_node(plan: Plan) -> Plan:
    return replace(plan, meshes=(Mesh("trn", "rack[0].node[0].gpu", (("dp", 4),)),))


def test_p4_says_when_and_what(make: Any) -> None:
    """60 GB of weights, 20 of which come and go with c, and 25 of batches: 105 on a device of 96."""
    accesses = [make.write("a", "x"), make.read("c", "x"), Access("c", "w", Mode.UPDATE), Access("d", "v", Mode.UPDATE)]
    graph = make.graph({"a": 1, "b": 1, "c": 1, "d": 1}, [make.stream("x"), weights("w"), weights("v")], accesses)
    plan = on_node(make.plan(graph, trn=[Slot(name) for name in "abcd"]))
    sizes = KnownSizes({"w": 40 * GB, "v": 20 * GB, "x": 25 * GB}, {"c": 20 * GB})
    assert [str(fault) for fault in validate_plan(graph, plan, site(sizes))] == [
        "P4 trn: needs 105 GB of 96.0 GB at 20 s during c.0, 9.00 GB too much: w 40.0 GB, x 25.0 GB, "
        "c (working) 20.0 GB, v 20.0 GB; "
        "split the largest further, recompute, offload what is not in use, or add devices"
    ]
    resting = replace(plan, residencies=(Residency("v", Home.HOST, (("d", "d"),)),))
    assert validate_plan(graph, resting, site(sizes)) == []


def test_p4_names_the_largest_and_sums_up_the_rest(make: Any) -> None:
    names = [f"w{i}" for i in range(11)]
    accesses = [Access("a", name, Mode.UPDATE) for name in names]
    graph = make.graph({"a": 1}, [weights(name) for name in names], accesses)
    plan = on_node(make.plan(graph, trn=[Slot("a")]))
    found = validate_plan(graph, plan, site(KnownSizes({name: (10 + i) * GB for i, name in enumerate(names)})))
    assert "needs 165 GB of 96.0 GB at 0 s during a.0" in found[0].what
    assert found[0].what.endswith("w3 13.0 GB, 3 more 33.0 GB")


def test_p4_needs_times_and_sizes(make: Any) -> None:
    graph, plan = resting(make)
    plan = on_node(plan)
    assert validate_plan(graph, plan, Site(load_system("alps:4"))) == []
    assert validate_plan(graph, plan, Site(load_system("alps:4"), {}, SECONDS)) == []


def test_p4_a_host_has_its_own_memory(make: Any) -> None:
    """480 GB, the shares of four devices."""
    accesses = [make.write("a", "x"), make.read("b", "x")]
    graph = make.graph({"a": 1, "b": 1}, [make.stream("x")], accesses)
    plan = make.plan(graph, host=[Slot("a"), Slot("b")])
    plan = replace(plan, meshes=(Mesh("host", "rack[0].node[0].host"),))
    assert validate_plan(graph, plan, site(KnownSizes({"x": 400 * GB}))) == []
    assert "of 480 GB" in validate_plan(graph, plan, site(KnownSizes({"x": 500 * GB})))[0].what


@pytest.mark.parametrize(
    ("residency", "fault"),
    [
        (Residency("ghost", Home.HOST), "P4 ghost: has a residency but is no data of the graph; drop it"),
        (
            Residency("w", Home.HBM, (("b", "c"),)),
            "P4 w: lives on the device and is brought there as well; name host or disk as its home",
        ),
        (
            Residency("w", Home.HOST, (("b", "x"),)),
            "P4 w: is brought for x, which the graph has not; name stages of the graph",
        ),
        (Residency("w", Home.HOST, (("c", "b"),)), "P4 w: its times on trn are not in the order a b c d; name them in"),
        (Residency("w", Home.HOST, (("b", "c"), ("a", "a"))), "P4 w: its times on trn are not in the order a b c d"),
        (Residency("w", Home.HOST, (("b", "b"),)), "P4 w: is on host while c uses it; let it be on the device"),
        (Residency("w", Home.DISK, (("c", "d"),)), "P4 w: is on disk while b uses it; let it be on the device"),
        (Residency("w", Home.HOST, (("b", "c"),), 4), "P4 w: is loaded 4 firings ahead; the order has 4"),
        (Residency("w", Home.HOST, ()), "P4 w: is on the device from and to stages on no mesh; name pairs of stages"),
    ],
)
def test_p4_data_is_there_when_it_is_used(make: Any, residency: Residency, fault: str) -> None:
    graph, plan = resting(make)
    found = [str(fault) for fault in validate_plan(graph, replace(plan, residencies=(residency,)))]
    assert len(found) == 1
    assert found[0].startswith(fault)


def test_p4_times_are_on_one_mesh(make: Any) -> None:
    graph, _ = resting(make)
    plan = make.plan(graph, roll=[Slot("a"), Slot("b")], trn=[Slot("c"), Slot("d")])
    plan = replace(plan, residencies=(Residency("w", Home.HOST, (("b", "c"),)),))
    assert [str(fault) for fault in validate_plan(graph, plan)] == [
        "P4 w: is on the device from and to stages on roll, trn; "
        "name pairs of stages on one mesh, one residency for each mesh"
    ]


def test_gradients_are_alive_from_train_to_update(make: Any) -> None:
    grads = Data("grads", DataKind.STREAM, (Column("grads", "float32"),), Per.STEP, "actor", 0)
    graph = make.graph({"a": 1, "b": 1, "c": 1}, [grads], [make.write("b", "grads"), make.read("c", "grads")])
    plan = make.plan(graph, trn=[Slot(name) for name in "abc"])
    assert times(graph, plan, KnownSizes({"grads": 5}))["trn"] == [("grads", 10.0, 30.0), ("grads", 40.0, 60.0)]


def test_what_meshes_share_has_the_residents_of_all(make: Any) -> None:
    accesses = [Access("gen", "w", Mode.UPDATE), Access("train", "v", Mode.UPDATE)]
    graph = make.graph({"gen": 1, "train": 1}, [weights("w"), weights("v")], accesses)
    plan = make.plan(graph, gen=[Slot("gen")], train=[Slot("train")])
    both = (Slot("gen"), Slot("train"))
    meshes = (Mesh("gen", "rack[0].node[0:2].gpu[0]", (("dp", 2),)), Mesh("train", "rack[0].node[1].gpu[0]"))
    plan = replace(plan, meshes=meshes, order=(("gen", both[:1]), ("gen&train", both)))
    sizes = KnownSizes({"w": 60 * GB, "v": 50 * GB})
    found = [str(fault) for fault in validate_plan(graph, plan, site(sizes, system=load_system("alps:8")))]
    assert len(found) == 1
    assert found[0].startswith("P4 gen&train: needs 110 GB of 96.0 GB at 0 s, 14.0 GB too much: w 60.0 GB, v")


def test_a_device_has_the_working_memory_of_its_own_server(make: Any) -> None:
    """Two servers overlap in time, but not on a device."""
    graph = make.graph({"reward": 1}, [], [])
    plan = make.plan(graph, host=[Slot("reward")])
    plan = replace(plan, bindings=(replace(plan.bindings[0], servers=2),))
    played = schedule(graph, plan, KnownCosts({"reward": Duration(10.0)}))
    found = residents(graph, plan, KnownSizes({}, {"reward": 5}), played)["host"]
    assert [(each.start_s, each.end_s) for each in found[:3]] == [(0.0, 10.0), (10.0, 20.0), (20.0, 30.0)]
    assert peak(found).num_bytes == 5
