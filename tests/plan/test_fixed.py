"""Plans by hand: groups of devices become meshes, bindings and orders that keep every rule."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.errors import HardwareError, PlanError
from rpeg.graph.graph import Graph
from rpeg.hardware.catalog import load_system
from rpeg.plan import groups as module
from rpeg.plan.costs import Duration, KnownCosts
from rpeg.plan.events import cycle_ratio
from rpeg.plan.fixed import bind_groups, draw_groups, hosts_mesh
from rpeg.plan.groups import DeviceGroup, GroupLayout
from rpeg.plan.lower import lower
from rpeg.plan.plan import Balance, Home, Pipeline, Plan, Recompute, Residency, Slot
from rpeg.plan.rules import validate_plan
from rpeg.plan.site import Site
from rpeg.plan.text import plan_text
from rpeg.shapes.catalog import shape_of
from rpeg.shapes.parameters import tensors

EIGHT = load_system("alps:8")
WEIGHTS = tensors(shape_of("Llama-3.1-8B"))
ROLES = dict.fromkeys(("actor", "critic", "ref", "rm"), WEIGHTS)
PASSES = ("old_logp", "value", "reward", "ref", "train_actor", "train_critic")
ALL = "rack[0].node[0:2]"


def colocated(graph: Graph, **layout: object) -> Plan:
    how = GroupLayout(tp=4, zero=1, micro_rows=2, recompute=Recompute.FULL)
    groups = [
        DeviceGroup("gen", ALL, ("gen",), GroupLayout(tp=2)),
        DeviceGroup("train", ALL, PASSES, replace(how, **layout)),  # pyright: ignore[reportArgumentType]
    ]
    return bind_groups(graph, EIGHT, groups, ROLES)


def test_doctests() -> None:
    assert doctest.testmod(module).failed == 0


def test_ppo_on_eight_devices_takes_turns() -> None:
    plan = colocated(ppo(64, mini_batches=2))
    lines = plan_text(plan).splitlines()
    assert [line.strip() for line in lines[1:5]] == [
        "gen        rack[0].node[0:2]  dp 4 x tp 2",
        "train      rack[0].node[0:2]  dp 2 x tp 4",
        "host       rack.node.host  dp 2  gae kl_control",
        "gen&train  shared  gen old_logp value reward ref train_actor train_critic update_actor train_actor.1 "
        "update_critic train_critic.1 update_actor.1 update_critic.1 publish",
    ]
    assert validate_plan(ppo(64, mini_batches=2), plan, Site(EIGHT, ROLES)) == []


def test_trained_weights_are_kept_in_float32_and_the_rest_is_not() -> None:
    dtypes = {b.stage: b.layout.dtype for b in colocated(ppo(64)).bindings if b.mesh != "host"}
    kept = {"old_logp", "value", "train_actor", "train_critic", "update_actor", "update_critic"}
    assert dtypes == {stage: "float32" if stage in kept else "bfloat16" for stage in dtypes}


def test_only_training_recomputes_and_only_with_stages_has_a_schedule() -> None:
    flat = colocated(ppo(64), pipeline=Pipeline.ONE_F_ONE_B).binding_of
    deep = colocated(ppo(64), pp=2, pipeline=Pipeline.ONE_F_ONE_B).binding_of
    assert (flat["train_actor"].recompute, flat["value"].recompute) == (Recompute.FULL, Recompute.NONE)
    assert (flat["train_actor"].pipeline, deep["train_actor"].pipeline) == (None, Pipeline.ONE_F_ONE_B)
    assert deep["value"].pipeline is None
    assert (flat["value"].pack, flat["value"].balance) == (True, Balance.TOKENS)


def test_a_generator_apart_runs_ahead() -> None:
    """Of 16 devices three quarters sample one step ahead of the quarter that trains."""
    graph, system = grpo(48, 2, 1, updates_per_step=2), load_system("alps:16")
    groups = [
        DeviceGroup("gen", "rack[0].node[0:3]", ("gen",)),
        DeviceGroup("train", "rack[0].node[3:4]", ("train",), GroupLayout(tp=4, zero=1)),
    ]
    plan = bind_groups(graph, system, groups, {"actor": WEIGHTS})
    assert dict(plan.order) == {
        "gen": (Slot("gen", 0, 1), Slot("pull")),
        "train": (Slot("train"), Slot("update"), Slot("train", 1), Slot("update", 1), Slot("push")),
        "host": (Slot("reward"), Slot("advantage")),
    }
    seconds = {"gen": 40.0, "train": 20.0, "push": 1.0, "pull": 1.0}
    costs = KnownCosts({stage: Duration(each) for stage, each in seconds.items()})
    period, _ = cycle_ratio(lower(graph, plan, costs))
    assert float(period) == 41.0  # two times 20 s and a push; the generator hides beside it


def test_a_pass_beside_a_generator_that_runs_ahead_does_so_too() -> None:
    """Else the trainer would wait for the next samples before it gets what the reference says of these."""
    graph, system = ppo(48, staleness=1), load_system("alps:16")
    groups = [
        DeviceGroup("gen", "rack[0].node[0:3]", ("gen", "ref", "reward")),
        DeviceGroup("train", "rack[0].node[3:4]", ("old_logp", "value", "train_actor", "train_critic")),
    ]
    plan = bind_groups(graph, system, groups, ROLES)
    assert {slot.stage: slot.shift for slot in dict(plan.order)["gen"]} == {
        "gen": 1, "reward": 1, "ref": 1, "publish": 0
    }  # fmt: skip
    seconds = KnownCosts({"gen": Duration(40.0), "ref": Duration(5.0), "train_actor": Duration(30.0)})
    assert float(cycle_ratio(lower(graph, plan, seconds))[0]) == 45.0


def test_experts_are_spread_over_tensor_ranks_then_over_others() -> None:
    experts = tensors(shape_of("Qwen3-30B-A3B"))
    groups = [
        DeviceGroup("gen", ALL, ("gen",), GroupLayout(tp=4, ep=4)),
        DeviceGroup("train", ALL, ("train",), GroupLayout(tp=2, ep=4)),
    ]
    plan = bind_groups(grpo(32, 2), EIGHT, groups, {"actor": experts})
    gen, train = plan.binding_of["gen"].layout, plan.binding_of["train"].layout
    assert dict(gen.shard)["experts"] == "tp"
    assert [axis for part, axis in train.shard if part == "experts"] == ["ep", "tp"]
    assert plan.mesh_named["train"].axes == (("dp", 2), ("ep", 2), ("tp", 2))
    assert "expert_ffn" not in dict(gen.shard) | dict(train.shard)


def test_without_spreading_every_expert_is_split() -> None:
    groups = [DeviceGroup("all", ALL, ("gen", "train"), GroupLayout(tp=2))]
    plan = bind_groups(grpo(32, 2), EIGHT, groups, {"actor": tensors(shape_of("Qwen3-30B-A3B"))})
    assert dict(plan.binding_of["train"].layout.shard)["expert_ffn"] == "tp"


def test_residencies_are_kept() -> None:
    away = Residency("ref.weights", Home.HOST, (("ref", "ref"),))
    groups = [DeviceGroup("all", ALL, ("gen", *PASSES), GroupLayout(tp=4))]
    assert bind_groups(ppo(64), EIGHT, groups, ROLES, residencies=[away]).residencies == (away,)


def test_one_host_where_several_do_not_divide_the_rows() -> None:
    assert (hosts_mesh(EIGHT, 64).where, hosts_mesh(EIGHT, 63).where) == ("rack.node.host", "rack[0].node[0].host")


def test_a_stage_belongs_to_one_group() -> None:
    groups = [DeviceGroup("a", ALL, ("gen", "train")), DeviceGroup("b", ALL, ("train", "fly"))]
    with pytest.raises(PlanError) as caught:
        bind_groups(grpo(32, 2), EIGHT, groups)
    assert [fault.where for fault in caught.value.faults] == ["train", "b"]
    assert "is in a and in b" in str(caught.value)


def test_a_pass_that_nobody_names_is_a_fault() -> None:
    with pytest.raises(PlanError, match="ref: is in no group; name it in one"):
        bind_groups(ppo(64), EIGHT, [DeviceGroup("all", ALL, ("gen", *(each for each in PASSES if each != "ref")))])


def test_degrees_divide_the_devices() -> None:
    with pytest.raises(PlanError, match="has 8 devices for tp 3; choose degrees"):
        bind_groups(grpo(32, 2), EIGHT, [DeviceGroup("all", ALL, ("gen", "train"), GroupLayout(tp=3))])


def test_what_does_not_divide_is_said_by_the_rules_unless_the_plan_is_only_drawn() -> None:
    groups = [DeviceGroup("all", ALL, ("gen", "train"), GroupLayout(pp=8))]
    weights = {"actor": tensors(shape_of("Qwen2.5-7B"))}
    with pytest.raises(PlanError, match="pp = 8 stages of 4 of the 28 layers of actor leave some empty"):
        bind_groups(grpo(32, 2), EIGHT, groups, weights)
    assert draw_groups(grpo(32, 2), EIGHT, groups, weights).mesh_named["all"].axes == (("pp", 8), ("dp", 1))


def test_a_region_that_is_not_there() -> None:
    with pytest.raises(HardwareError, match="asks for node 8 where there are 2"):
        bind_groups(grpo(32, 2), EIGHT, [DeviceGroup("all", "rack[0].node[8]", ("gen", "train"))])
