"""place, colocate, separate, parallel: who runs where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.graph.graph import Graph
from rpeg.plan.events import cycle_ratio
from rpeg.plan.lower import lower
from rpeg.plan.moves.base import Deployment
from rpeg.plan.moves.colocate import Colocate, Separate
from rpeg.plan.moves.parallel import Parallel
from rpeg.plan.moves.place import Place
from rpeg.plan.moves.registry import parse
from rpeg.plan.plan import Layout, Mesh
from rpeg.plan.shipments import reshards

SPLIT = (("heads", "tp"), ("kv_heads", "tp"), ("ffn", "tp"), ("vocabulary", "tp"))


def reasons(deployment: Deployment, text: str) -> list[str]:
    return [str(reason) for reason in parse(text).check(deployment)]


def order(deployment: Deployment, resource: str) -> str:
    slots = dict(deployment.plan.order)[resource]
    return " ".join(slot.stage + f"+{slot.shift}" * bool(slot.shift) for slot in slots)


def moved(deployment: Deployment, text: str) -> Deployment:
    return replace(deployment, plan=parse(text).apply(deployment))


def test_place(apart: Deployment) -> None:
    found = moved(apart, "place{stage=ref,mesh=roll}")
    assert (order(found, "roll"), order(found, "trn")) == ("gen+1 ref pull", "train update push")
    assert found.plan.binding_of["ref"].layout == Layout("roll")
    assert list(Place.candidates(apart)) == [
        *(Place("gen", "trn"), Place("reward", "roll"), Place("reward", "trn"), Place("advantage", "roll")),
        *(Place("advantage", "trn"), Place("ref", "roll")),
    ]


def test_place_refused(apart: Deployment) -> None:
    assert reasons(apart, "place{stage=ref,mesh=trn}") == ["ref: is on trn already; name another mesh"]
    assert reasons(apart, "place{stage=gen,mesh=trn}") == [
        "P1 pull: installs actor.rollout on roll, but gen reads it on trn; bind both to one mesh"
    ]


def test_colocate(apart: Deployment) -> None:
    """Everything on the trainer's devices: the generator keeps running a step ahead."""
    found = moved(apart, "colocate{stages=[gen,pull,train],mesh=trn}")
    assert [mesh.name for mesh in found.plan.meshes] == ["trn", "host"]
    assert order(found, "trn") == "gen+1 ref train update push pull"
    assert list(Colocate.candidates(apart)) == [
        Colocate(("gen", "pull"), "trn"),
        Colocate(("ref", "train", "update", "push"), "roll"),
    ]


def test_colocate_refused(apart: Deployment) -> None:
    assert reasons(apart, "colocate{stages=[gen,pull],mesh=roll}") == [
        "gen, pull: are on roll already; name another mesh"
    ]
    assert reasons(apart, "colocate{stages=[],mesh=mars}") == [
        "stages: are none; name at least one",
        "mars: is no mesh; meshes: roll, trn, host",
    ]


def test_separate(together: Deployment) -> None:
    """One node generates, three do the rest: 12 ranks would not divide 512 rows, so two and two it is."""
    text = "separate{stages=[gen],mesh=roll,where=rack[0].node[0:2],rest=rack[0].node[2:4]}"
    found = moved(together, text)
    assert [(mesh.name, mesh.where, mesh.axes) for mesh in found.plan.meshes] == [
        ("all", "rack[0].node[2:4]", (("dp", 8),)),
        ("host", "rack[0].node[0:4].host", (("dp", 4),)),
        ("roll", "rack[0].node[0:2]", (("dp", 8),)),
    ]
    assert order(found, "roll") == "gen publish"
    assert found.plan.resources_of("publish") == ("all", "roll")
    back = moved(found, "colocate{stages=[gen],mesh=all}")
    assert order(back, "all") == order(together, "all")
    assert list(Separate.candidates(together))[1] == Separate(
        ("gen",), "roll", "rack[0].node[0:2].gpu", "rack[0].node[2:4].gpu"
    )


def test_separate_on_shared_devices(together: Deployment) -> None:
    """What stays behind keeps all devices: the first node has one order for both."""
    found = moved(together, "separate{stages=[ref,reward],mesh=side,where=rack[0].node[0]}")
    assert list(dict(found.plan.order)) == ["all&side", "all", "host"]
    assert order(found, "all&side") == order(together, "all")
    assert "ref" not in order(found, "all")
    assert found.plan.mesh_named["side"].axes == (("dp", 4),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "separate{stages=[gen],mesh=all,where=rack[0].node[0]}",
            ["all: is a mesh already; choose another name, or colocate the stages there"],
        ),
        ("separate{stages=[gen,gae],mesh=m,where=rack[0]}", ["gen, gae: are on all and host; name stages of one mesh"]),
        (
            "separate{stages=[gen],mesh=m,where=rack[0].node[9],rest=rack[}",
            [
                "rack[0].node[9]: asks for node 9 where there are 4; alps:16 has node[0:4]",
                "'rack[': has 'rack['; write rack[0:2].node[*].gpu[0:4]",
            ],
        ),
        (
            "separate{stages=[gae],mesh=m,where=rack[0].node[0].host,rest=rack[0].node[1].host}",
            ["host: has no other work, so nothing stays behind; leave rest out"],
        ),
        (
            "separate{stages=[gen],mesh=roll,where=rack[0].node[0:3],rest=rack[0].node[3]}",
            ["P2 roll: 12 data parallel ranks do not divide 512 rows; choose a divisor: 1, 2, 4, 8, 16"],
        ),
    ],
)
def test_separate_refused(together: Deployment, text: str, expected: list[str]) -> None:
    assert reasons(together, text) == expected


def test_parallel_of_a_whole_mesh(deploy: Callable[[Graph], Deployment]) -> None:
    deployment = deploy(grpo(64, 8, 1))
    text = "parallel{stages=[gen,pull],axes=[dp:2,tp:4],shard=[heads:tp,kv_heads:tp,ffn:tp,vocabulary:tp]}"
    found = moved(deployment, text)
    assert found.plan.mesh_named["roll"] == Mesh("roll", "rack[0].node[0:2].gpu", (("dp", 2), ("tp", 4)))
    assert found.plan.binding_of["gen"].layout == Layout("roll", SPLIT)
    assert [(s.name, s.carrier) for s in reshards(found.graph, found.plan)] == [("reshard:actor.staged>pull", "pull")]


def test_parallel_of_some_stages_makes_a_mesh_on_the_same_devices(together: Deployment) -> None:
    """The reference alone is split; the devices are shared, so the order stays one."""
    text = "parallel{stages=[ref],axes=[pp:4,dp:4],shard=[layers:pp]}"
    found = moved(together, text)
    assert [(mesh.name, mesh.axes) for mesh in found.plan.meshes] == [
        *(("all", (("dp", 16),)), ("host", (("dp", 4),)), ("all_2", (("pp", 4), ("dp", 4)))),
    ]
    assert list(dict(found.plan.order)) == ["all&all_2", "host"]
    assert order(found, "all&all_2") == order(together, "all")
    assert reshards(found.graph, found.plan) == ()  # frozen weights are read from outside in any layout
    again = moved(found, "parallel{stages=[value],axes=[dp:8,tp:2],shard=[heads:tp]}")
    assert [mesh.name for mesh in again.plan.meshes] == ["all", "host", "all_2", "all_3"]
    assert [s.name for s in reshards(again.graph, again.plan)] == ["reshard:critic.master>value"]


def test_a_copy_in_another_layout_costs_its_transfer(together: Deployment) -> None:
    found = moved(together, "parallel{stages=[value],axes=[dp:8,tp:2],shard=[heads:tp]}")
    costs = together.site.costs
    assert costs is not None
    before, after = (cycle_ratio(lower(d.graph, d.plan, costs))[0] for d in (together, found))
    assert before == after  # a transfer of no time
    events = lower(found.graph, found.plan, costs)
    assert events.event_of["reshard:critic.master>value.0"].resources == ("net:all&all_2",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("parallel{stages=[gen,reward],axes=[dp:8]}", ["gen, reward: are on host and roll; name stages of one mesh"]),
        (
            "parallel{stages=[gen,pull],axes=[dp,tp:x],shard=[heads]}",
            ["dp: is no axis; write tp:4", "tp:x: is no axis; write tp:4", "heads: is no split; write heads:tp"],
        ),
        (
            "parallel{stages=[gen,pull],axes=[dp:3,tp:4],shard=[heads:tp]}",
            [
                "P2 roll: its axes dp 3 tp 4 make 12 ranks, rack[0].node[0:2].gpu has 8 devices; "
                "let the sizes multiply up to 8",
                "P2 roll: 3 data parallel ranks do not divide 512 rows; choose a divisor: 1, 2, 4",
            ],
        ),
        (
            "parallel{stages=[gen,pull],axes=[tp:8],shard=[heads:tp]}",
            [
                "P3 gen, pull: tp = 8 does not divide 28 heads of actor; choose 1, 2, 4, 7, 14 or 28, "
                "or split the layers over a pp axis instead"
            ],
        ),
    ],
)
def test_parallel_refused(apart: Deployment, text: str, expected: list[str]) -> None:
    assert reasons(apart, text) == expected


def test_degrees_worth_looking_at(deploy: Callable[[Graph], Deployment]) -> None:
    """4 devices of a node and 28 layers: tp 1, 2, 4 by pp 1, 2, 4 by three levels of ZeRO that multiply up to 8."""
    found = [move for move in Parallel.candidates(deploy(grpo(64, 8, 1))) if "gen" in move.stages]
    assert len(found) == 8 * 3
    assert Parallel(("gen", "pull"), ("pp:1", "dp:2", "tp:4"), tuple(f"{p}:{a}" for p, a in SPLIT), 1) in found


def test_ppo_closes_over_its_layouts(deploy: Callable[[Graph], Deployment]) -> None:
    deployment = deploy(ppo(512, staleness=1))
    assert all(not move.check(deployment) for move in list(Parallel.candidates(deployment))[::5])
