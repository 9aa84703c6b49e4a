"""reorder, offload, prefetch, reshard, micro, pack, balance, recompute, pipeline, replicate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.plan.moves.test_meshes import moved, order, reasons

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.plan.costs import Duration, KnownCosts, KnownSizes
from rpeg.plan.events import cycle_ratio
from rpeg.plan.lower import lower
from rpeg.plan.moves.base import Deployment
from rpeg.plan.moves.memory_for_time import ChoosePipeline, ChooseRecompute, Replicate
from rpeg.plan.moves.reorder import Reorder
from rpeg.plan.moves.reshard import Reshard
from rpeg.plan.moves.residency import Offload, Prefetch
from rpeg.plan.moves.rows import BalanceRows, Micro, Pack
from rpeg.plan.plan import Balance, Home, Layout, Method, Pipeline, Recompute, Residency, Transfer

GB = 10**9


def test_reorder(together: Deployment) -> None:
    assert order(together, "all").startswith("gen old_logp value reward ref kl_control")
    found = moved(together, "reorder{resource=all,i=4,j=1}")
    assert order(found, "all").startswith("gen ref old_logp value reward kl_control")
    later = moved(together, "reorder{resource=all,i=1,j=3}")
    assert order(later, "all").startswith("gen value reward old_logp ref kl_control")
    assert order(found, "host") == order(together, "host")


def test_running_ahead_is_what_makes_staleness_pay(apart: Deployment) -> None:
    """Without the shift, generation and training of a step follow each other: 5 stages of 10 s each."""
    behind = moved(apart, "reorder{resource=roll,i=0,j=0,shift=-1}")
    assert (order(apart, "roll"), order(behind, "roll")) == ("gen+1 pull", "gen pull")
    costs = apart.site.costs
    assert costs is not None
    assert [cycle_ratio(lower(d.graph, d.plan, costs))[0] for d in (apart, behind)] == [40, 70]


def test_reorder_moves_a_guest_on_all_its_resources(deploy: Callable[[Graph], Deployment]) -> None:
    deployment = deploy(ppo(512, staleness=1))
    names = order(deployment, "trn").split()
    last = len(names) - 1
    found = moved(deployment, f"reorder{{resource=trn,i={names.index('publish')},j={last}}}")
    assert order(found, "trn").split()[-1] == "publish"
    assert order(found, "roll") == order(deployment, "roll")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("reorder{resource=moon,i=0,j=1}", "moon: has no order; orders are of all, host"),
        ("reorder{resource=host,i=0,j=7}", "host: has no place 7; places are 0 to 0"),
        ("reorder{resource=all,i=2,j=2}", "all: place 2 stays where it is; name another place, or a shift"),
        ("reorder{resource=all,i=0,j=1}", "P5 gen.0 -> old_logp.0 -> gen.0: 0 tokens on the cycle (data:rollouts, dev"),
        ("reorder{resource=all,i=0,j=0,shift=-1}", "P5 gen.0: has the shift -1; a shift counts steps ahead"),
        ("reorder{resource=all,i=0,j=0,shift=1}", "0 tokens on the cycle"),
    ],
)
def test_reorder_refused(together: Deployment, text: str, expected: str) -> None:
    found = reasons(together, text)
    assert len(found) == 1
    assert expected in found[0]


def test_neighbours_and_shifts_worth_looking_at(apart: Deployment) -> None:
    found = [move for move in Reorder.candidates(apart) if move.resource == "roll"]
    assert found == [Reorder("roll", 0, 1), Reorder("roll", 0, 0, 1), Reorder("roll", 0, 0, -1)]


def test_offload_and_prefetch(together: Deployment) -> None:
    found = moved(together, "offload{data=ref.weights,between=[ref,ref]}")
    assert found.plan.residencies == (Residency("ref.weights", Home.HOST, (("ref", "ref"),)),)
    ahead = moved(found, "prefetch{data=ref.weights,lead=2}")
    assert ahead.plan.residencies[0].lead == 2
    costs = KnownCosts({stage.name: Duration(10.0) for stage in found.graph.stages}, {"load:ref.weights.0": 15.0})
    periods = [cycle_ratio(lower(d.graph, d.plan, costs))[0] for d in (together, found, ahead)]
    assert periods == [periods[0], periods[0] + 15, periods[0]]


def test_offload_for_several_times(together: Deployment) -> None:
    text = "offload{data=critic.master,between=[value,value,train_critic,update_critic],home=disk}"
    assert moved(together, text).plan.residencies == (
        Residency("critic.master", Home.DISK, (("value", "value"), ("train_critic", "update_critic"))),
    )


def test_what_may_rest(together: Deployment) -> None:
    found = {move.data: move.between for move in Offload.candidates(together)}
    assert found == {
        "actor.master": ("old_logp", "publish"),
        "actor.rollout": ("gen", "publish"),
        "critic.master": ("value", "update_critic"),
        "ref.weights": ("ref", "ref"),
        "rm.weights": ("reward", "reward"),
    }
    assert list(Prefetch.candidates(together)) == []
    resting = moved(together, "offload{data=ref.weights,between=[ref,ref]}")
    assert list(Prefetch.candidates(resting)) == [Prefetch("ref.weights", lead) for lead in (1, 2, 4)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "offload{data=rollouts,between=[gen,train_actor]}",
            "rollouts: is no weights that last; there are ",
        ),
        ("offload{data=ref.weights,between=[ref]}", "ref: are 1 stages; name pairs: the first and the last to use it"),
        ("offload{data=ref.weights,between=[]}", "stages: are none; name at least one"),
        ("offload{data=ref.weights,between=[ref,ref],home=hbm}", "ref.weights: is on the device all the time already"),
        (
            "offload{data=actor.rollout,between=[gen,publish]}",
            "actor.rollout: is needed from the first firing of all to the last; there is no time away",
        ),
        (
            "offload{data=critic.master,between=[value,value]}",
            "P4 critic.master: is on host while train_critic, update_critic uses it; let it be on the device for all",
        ),
        ("prefetch{data=ref.weights,lead=1}", "ref.weights: is never loaded; loaded are none"),
    ],
)
def test_residency_refused(together: Deployment, text: str, expected: str) -> None:
    found = reasons(together, text)
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_residency_refused_twice(together: Deployment) -> None:
    resting = moved(together, "offload{data=ref.weights,between=[ref,ref]}")
    assert reasons(resting, "offload{data=ref.weights,between=[ref,ref]}") == [
        "ref.weights: is away from all for a time already; change that first"
    ]
    assert reasons(resting, "prefetch{data=ref.weights,lead=0}") == [
        "ref.weights: is loaded 0 firings ahead already; choose another lead"
    ]
    assert reasons(resting, "prefetch{data=ref.weights,lead=99}") == [
        "P4 ref.weights: is loaded 99 firings ahead; the order has 11"
    ]


def test_a_move_that_does_not_fit_is_refused_with_the_shortfall(deploy: Callable[..., Deployment]) -> None:
    """Weights of 40 GB and a reference of 40 fit; loading the reference while training needs 30 more does not."""
    graph = ppo(512)
    sizes = KnownSizes({"actor.master": 40 * GB, "ref.weights": 40 * GB}, {"train_critic": 50 * GB})
    with pytest.raises(
        ValueError, match=r"P4 all: needs 130 GB of 96.0 GB at .* during train_critic.0, 34.0 GB too much"
    ):
        deploy(graph, sizes)
    resting = replace(deploy(graph), site=replace(deploy(graph).site, sizes=sizes))
    resting = moved(resting, "offload{data=ref.weights,between=[ref,ref]}")
    assert reasons(resting, "prefetch{data=ref.weights,lead=2}") == []
    assert "34.0 GB too much" in reasons(resting, "prefetch{data=ref.weights,lead=8}")[0]


def test_reshard(apart: Deployment) -> None:
    found = moved(apart, "reshard{data=actor.staged,reader=pull,method=bucketed,bucket=1000000}")
    assert found.plan.transfers == (Transfer("actor.staged", "pull", Method.BUCKETED, 1_000_000),)
    again = moved(found, "reshard{data=actor.staged,reader=pull,method=gather}")
    assert again.plan.transfers == (Transfer("actor.staged", "pull", Method.GATHER),)
    assert list(Reshard.candidates(again)) == [
        Reshard("actor.staged", "pull", Method.P2P),
        Reshard("actor.staged", "pull", Method.BUCKETED, 2**28),
    ]


def test_reshard_refused(apart: Deployment) -> None:
    assert reasons(apart, "reshard{data=actor.rollout,reader=gen}") == [
        "actor.rollout, gen: no transfer from one to the other; there is actor.staged to pull"
    ]
    assert reasons(apart, "reshard{data=actor.staged,reader=pull,method=bucketed}") == [
        "actor.staged: bucketed with buckets of 0 bytes; buckets are for bucketed"
    ]
    assert reasons(apart, "reshard{data=actor.staged,reader=pull,bucket=5}") == [
        "actor.staged: p2p with buckets of 5 bytes; buckets are for bucketed"
    ]


def test_rows(apart: Deployment) -> None:
    found = moved(apart, "micro{stage=train,rows=16}")
    found = moved(found, "pack{stage=train}")
    found = moved(found, "balance{stage=train,by=tokens}")
    binding = found.plan.binding_of["train"]
    assert (binding.micro_rows, binding.pack, binding.balance) == (Dim("16"), True, Balance.TOKENS)
    assert [move.rows for move in Micro.candidates(found) if move.stage == "train"] == [1, 2, 4, 8, 32, 64]
    assert list(Pack.candidates(found)) == [Pack("ref")]
    assert list(BalanceRows.candidates(found)) == [
        BalanceRows("ref", Balance.TOKENS),
        BalanceRows("train", Balance.ROWS),
    ]
    assert reasons(found, "pack{stage=train}") == ["train: packs its rows already"]
    assert reasons(found, "balance{stage=train,by=tokens}") == ["train: is balanced by tokens already"]


@pytest.mark.parametrize("text", ["micro{stage=gen,rows=2}", "pack{stage=gen}", "balance{stage=gen,by=tokens}"])
def test_rows_refused(apart: Deployment, text: str) -> None:
    assert reasons(apart, text) == ["gen: is of kind generate; needs forward or train"]


def test_recompute(apart: Deployment) -> None:
    found = moved(apart, "recompute{stage=train,policy=selective}")
    assert found.plan.binding_of["train"].recompute is Recompute.SELECTIVE
    assert list(ChooseRecompute.candidates(found)) == [
        ChooseRecompute("train", Recompute.NONE),
        ChooseRecompute("train", Recompute.FULL),
    ]
    assert reasons(found, "recompute{stage=train,policy=selective}") == ["train: has the policy selective already"]
    assert reasons(found, "recompute{stage=ref,policy=full}") == [
        "ref: is of kind forward, which has no backward pass; needs train"
    ]


def test_pipeline(deploy: Callable[[Graph], Deployment]) -> None:
    deployment = deploy(grpo(64, 8, 1))
    assert reasons(deployment, "pipeline{stage=train,schedule=1f1b}") == [
        "train: has all layers on every rank; split layers over pp first"
    ]
    split = moved(deployment, "parallel{stages=[train,update,push],axes=[pp:4,dp:2],shard=[layers:pp]}")
    found = moved(split, "pipeline{stage=train,schedule=1f1b}")
    assert found.plan.binding_of["train"].pipeline is Pipeline.ONE_F_ONE_B
    assert found.plan.binding_of["train"].layout == Layout("trn", (("layers", "pp"),))
    assert [move.schedule for move in ChoosePipeline.candidates(found)] == [
        *(Pipeline.GPIPE, Pipeline.INTERLEAVED, Pipeline.ZERO_BUBBLE),
    ]
    assert reasons(found, "pipeline{stage=train,schedule=1f1b}") == ["train: has the schedule 1f1b already"]
    assert reasons(found, "pipeline{stage=train,schedule=interleaved_1f1b}") == [
        "P3 train: 4 interleaved stages of 2 parts do not divide 28 layers of actor; choose 1, 2, 7 or 14"
    ]


def test_replicate(apart: Deployment) -> None:
    """Two judges of 100 s with a mesh of their own: two steps are under way, which staleness 1 allows."""
    text = "separate{stages=[reward],mesh=judges,where=rack[0].node[0:2].host,rest=rack[0].node[2:4].host}"
    one = moved(apart, text)
    two = moved(one, "replicate{stage=reward,servers=2}")
    assert two.plan.binding_of["reward"].servers == 2
    costs = KnownCosts({"reward": Duration(100.0)})
    assert [cycle_ratio(lower(d.graph, d.plan, costs))[0] for d in (one, two)] == [100, 50]
    # Beside a stage with one server, an order is taken one step at a time.
    shared = moved(apart, "replicate{stage=reward,servers=2}")
    assert cycle_ratio(lower(shared.graph, shared.plan, costs))[0] == 100


def test_replicate_refused(apart: Deployment) -> None:
    assert reasons(apart, "replicate{stage=gen,servers=3}") == [
        "P3 gen: 3 servers do not divide 8 data parallel ranks of roll; choose 1, 2, 4 or 8"
    ]
    assert reasons(apart, "replicate{stage=gen,servers=1}") == ["gen: has 1 servers already"]
    assert "is of kind train" in reasons(apart, "replicate{stage=train,servers=2}")[0]
    assert [move.servers for move in Replicate.candidates(apart) if move.stage == "gen"] == [2, 4, 8]
