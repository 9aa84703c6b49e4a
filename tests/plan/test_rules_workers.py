"""P7: what workers cannot do is said of a plan for them, and of no other one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.plan.models import QWEN_7B

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo, ppo_shared
from rpeg.graph.contract import Kl
from rpeg.graph.graph import Graph
from rpeg.hardware.catalog import load_system
from rpeg.plan.bind import bind_local, sampled_by
from rpeg.plan.plan import Mesh, Pipeline, Plan, Recompute
from rpeg.plan.rules import validate_plan
from rpeg.plan.rules_workers import learners, p7_workers
from rpeg.plan.site import Site
from rpeg.plan.workers import Workers

TP = (("heads", "tp"), ("kv_heads", "tp"))
EVERY = frozenset({"tp", "pp", "cp"})


def _on(graph: Graph, stages: tuple[str, ...], axes: tuple[tuple[str, int], ...], **layout: Any) -> Plan:
    """Return the plan of one slot, with some stages on a mesh of their own: two slots more."""
    plan = bind_local(graph)
    mesh = Mesh("several", "local.slot[2:4]", axes)
    bindings = tuple(
        replace(each, mesh="several", layout=replace(each.layout, mesh="several", **layout))
        if each.stage in stages
        else each
        for each in plan.bindings
    )
    return replace(plan, meshes=(*plan.meshes, mesh), bindings=bindings)


def _faults(graph: Graph, plan: Plan, workers: Workers | None) -> list[str]:
    """Return what P7 says; orders, which would have to be made anew, are not looked at."""
    weights = {model.name: QWEN_7B for model in graph.models}
    return [str(each) for each in p7_workers(graph, plan, Site(load_system("local:4"), weights, workers=workers))]


LEARN = ("train", "update", "push")


def test_what_workers_do_is_not_refused_and_other_software_may_do_more() -> None:
    graph = grpo(8, 8)
    assert _faults(graph, bind_local(graph), Workers(axes={"actor": EVERY})) == []
    assert _faults(graph, _on(graph, LEARN, (("tp", 2),), shard=TP), Workers(axes={"actor": EVERY})) == []
    sampled = _on(graph, ("gen", "pull"), (("pp", 2),), shard=(("layers", "pp"),))
    assert _faults(graph, sampled, None) == []
    assert validate_plan(graph, bind_local(graph), Site(load_system("local:2"), workers=Workers())) == []


@pytest.mark.parametrize(
    ("stages", "axes", "layout", "workers", "said"),
    [
        (
            LEARN,
            (("tp", 2),),
            {"shard": TP},
            Workers(False),
            "P7 several: has 2 ranks, and run.home inline is one proc",
        ),
        (LEARN, (("tp", 2),), {"shard": TP}, Workers(axes={}), "P7 train: is split over tp 2 of several; models like "),
        (
            LEARN,
            (("cp", 2),),
            {},
            Workers(has_adapter=True),
            "P7 train: is split over ranks of several, and a model with an adapter",
        ),
        (
            ("gen", "pull"),
            (("pp", 2),),
            {"shard": (("layers", "pp"),)},
            Workers(),
            "P7 gen: samples from weights split",
        ),
        (("gen", "pull"), (("dp", 2),), {"zero": 3}, Workers(), "P7 gen: samples from weights split over dp (zero 3) "),
        (
            ("train",),
            (("dp", 2),),
            {},
            Workers(),
            "P7 actor: train, update, push are on 2 meshes: all, several; put the",
        ),
        (
            ("reward",),
            (("dp", 2),),
            {},
            Workers(),
            "P7 reward: is on the 2 ranks of several, and a verify stage without",
        ),
    ],
)
def test_what_workers_do_not_is_refused_by_name(
    stages: tuple[str, ...], axes: tuple[tuple[str, int], ...], layout: dict[str, Any], workers: Workers, said: str
) -> None:
    graph = grpo(8, 8)
    assert _faults(graph, _on(graph, stages, axes, **layout), workers)[0].startswith(said)


@pytest.mark.parametrize(
    ("stage", "asked", "said"),
    [
        ("train", {"recompute": Recompute.FULL}, None),
        (
            "train",
            {"recompute": Recompute.SELECTIVE},
            "the attention of workers keeps no scores that could",
        ),
        ("gen", {"recompute": Recompute.FULL}, "a generate keeps no activations"),
        ("train_critic", {"recompute": Recompute.FULL}, None),
        (
            "train",
            {"recompute": Recompute.FULL, "pipeline": Pipeline.ZERO_BUBBLE},
            "zero_bubble keeps what it makes",
        ),
    ],
)
def test_activations_are_made_again_where_workers_can(stage: str, asked: dict[str, Any], said: str | None) -> None:
    graph = ppo(8) if stage == "train_critic" else grpo(8, 8)
    plan = bind_local(graph)
    bindings = tuple(replace(each, **asked) if each.stage == stage else each for each in plan.bindings)
    found = _faults(graph, replace(plan, bindings=bindings), Workers())
    if said is None:
        assert found == []
    else:
        assert found[0].startswith(f"P7 {stage}: asks to recompute {asked['recompute']}, and {said}")


@pytest.mark.parametrize(
    ("axis", "shard", "said"),
    [
        ("cp", (("experts", "cp"),), "splits experts over cp of several; they can be split over ep and tp"),
        ("tp", (("hidden", "tp"),), "splits hidden over tp of several; what can be split is layers, experts, heads, "),
        ("tp", TP[:1], "splits heads over ['tp'] and kv_heads over nothing of several; split both over the same axis"),
        ("pp", (), "splits no layers over pp of several; split layers over pp, or leave pp at 1"),
    ],
)
def test_splits_that_no_family_takes_are_refused(axis: str, shard: tuple[tuple[str, str], ...], said: str) -> None:
    graph = grpo(8, 8)
    (fault,) = _faults(graph, _on(graph, LEARN, ((axis, 2),), shard=shard), Workers())
    assert fault.startswith(f"P7 train: {said}")


def test_gradients_put_off_and_shares_of_weights_do_not_go_together() -> None:
    """Other software may keep gradients whole with ZeRO 1; workers share them out on every level."""
    graph, sizes = grpo(8, 8), (("pp", 2), ("dp", 2))
    for zero, dp in ((0, 2), (1, 1), (1, 2)):
        plan = _on(graph, LEARN, (sizes[0], ("dp", dp)), shard=(("layers", "pp"),), zero=zero)
        ordered = (
            replace(each, pipeline=Pipeline.ZERO_BUBBLE) if each.stage == "train" else each for each in plan.bindings
        )
        found = _faults(graph, replace(plan, bindings=tuple(ordered)), Workers())
        if zero and dp > 1:
            assert found == [
                "P7 train: has the schedule zero_bubble and ZeRO 1 over dp of several, which splits weights and "
                "gradients on every level; choose 1f1b, or zero 0"
            ]
        else:
            assert found == []


def test_replicas_of_a_sampler_are_ours_and_split_in_one_way() -> None:
    graph, heads = grpo(8, 8), {"shard": TP}
    assert _faults(graph, _on(graph, ("gen", "pull"), (("tp", 2),), **heads), Workers()) == []
    plan = sampled_by(graph, _on(graph, ("gen", "pull"), (("tp", 2),), **heads), "vllm")
    assert _faults(graph, plan, Workers())[0].startswith(
        "P7 gen: asks for the engine vllm, and sampling.engine is torch"
    )
    found = _faults(graph, plan, Workers(sampling_engine="vllm"))
    assert found[0].startswith("P7 gen: samples from weights split over tp 2 of several by vllm")
    plan = _on(graph, ("gen", "pull"), (("tp", 2),), **heads)
    whole = tuple(
        replace(each, layout=replace(each.layout, shard=())) if each.stage == "pull" else each for each in plan.bindings
    )
    (said,) = _faults(graph, replace(plan, bindings=whole), Workers())
    assert said.startswith("P7 several: has one sampler, which gen and pull split differently")


def test_what_values_rows_and_what_scores_them() -> None:
    graph = ppo(8)
    assert learners(graph)["critic"] == ["value", "train_critic", "update_critic"]
    critic = _on(graph, ("train_critic", "update_critic", "value"), (("dp", 2),), zero=1)
    assert _faults(graph, critic, Workers()) == []
    scorer = _on(graph, ("reward",), (("tp", 2),), **{"shard": TP})
    assert _faults(graph, scorer, Workers())[0].startswith(
        "P7 reward: is split over tp 2 of several; a reward model is"
    )
    trunk = ppo_shared(8)
    shared = _on(trunk, ("train", "update", "publish", "old_logp", "value"), (("cp", 2),))
    assert _faults(trunk, shared, Workers()) == []
    found = _faults(trunk, shared, Workers(has_value_layers=True))
    assert [each.partition(":")[0] for each in found] == ["P7 value", "P7 train"]
    assert "a value head with layers of its own is whole on every rank yet" in found[0]


def _shifted(plan: Plan, **shifts: int) -> Plan:
    """Return the plan with other shifts of some stages."""
    order = tuple(
        (name, tuple(replace(slot, shift=shifts.get(slot.stage, slot.shift)) for slot in slots))
        for name, slots in plan.order
    )
    return replace(plan, order=order)


@pytest.mark.parametrize(
    ("staleness", "shifts", "said"),
    [
        (1, {}, []),
        (1, {"ref": 1}, []),
        (
            2,
            {"gen": 1},
            [
                "P7 gen: reads actor.rollout of 3 steps back and runs 1 ahead, so a resumed run needs what is 1 older "
                "than the newest, which no checkpoint has; let it run 2 steps ahead, or move the delay: "
                "retime{stage=gen,r=-1}"
            ],
        ),
        (
            1,
            {"ref": 1, "reward": 1, "advantage": 1, "train": 1},
            [
                "P7 train: makes grads 1 steps before update uses it, and no checkpoint has it meanwhile; "
                "give it the shift of update, and no delay between them"
            ],
        ),
        (
            0,
            {"gen": 1, "reward": 1, "ref": 1, "advantage": 1, "train": 1, "update": 1, "push": 0, "pull": 0},
            [
                f"P7 update: makes {data} 1 steps ahead, and a checkpoint has what steps before it have made; "
                "give it the shift 0"
                for data in ("actor.master", "actor.moments")
            ],
        ),
    ],
)
def test_plans_that_no_checkpoint_can_cut(staleness: int, shifts: dict[str, int], said: list[str]) -> None:
    graph = grpo(8, 8, staleness, kl=Kl.LOSS)
    plan = _shifted(bind_local(graph), **shifts)
    site = Site(load_system("local:2"), {model.name: QWEN_7B for model in graph.models}, workers=Workers())
    assert [str(fault) for fault in p7_workers(graph, plan, site)] == said
    assert list(p7_workers(graph, plan, replace(site, workers=None))) == []
