"""Whole steps: what people read, and what a plan that does not fit gets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.errors import PlanError
from rpeg.graph.graph import Graph
from rpeg.hardware.catalog import load_system
from rpeg.perf.estimate import Estimate
from rpeg.perf.lengths import constant, lognormal
from rpeg.perf.spread import spread_of
from rpeg.perf.step import Prediction, predict
from rpeg.perf.step_text import as_json, as_text
from rpeg.perf.workload import Workload
from rpeg.plan.events import cycle_ratio
from rpeg.plan.fixed import bind_groups
from rpeg.plan.groups import DeviceGroup, GroupLayout
from rpeg.plan.lower import lower
from rpeg.plan.plan import Home, Plan, Recompute, Residency
from rpeg.shapes.catalog import shape_of
from rpeg.shapes.parameters import tensors
from rpeg.transforms.in_flight import InFlight, KvPolicy

SYSTEM = load_system("alps:16")
SHAPE = shape_of("Qwen2.5-7B")
PROMPTS, RESPONSES = lognormal(300.0, 0.5, 1024.0), lognormal(800.0, 0.8, 4096.0)
LOAD = Workload(dict.fromkeys(("actor", "critic", "ref", "rm"), SHAPE), PROMPTS, RESPONSES)
WEIGHTS = dict.fromkeys(LOAD.shapes, tensors(SHAPE))
PASSES = ("old_logp", "value", "reward", "ref", "train_actor", "train_critic")
ALL, GEN, TRAIN = "rack[0].node[0:4]", "rack[0].node[0:2]", "rack[0].node[2:4]"
PPO, GRPO = ppo(256, mini_batches=2), grpo(64, 4, 1)
FULL = GroupLayout(tp=4, zero=1, micro_rows=2, recompute=Recompute.FULL)


def in_turns(train: GroupLayout = FULL, **more: Any) -> Plan:
    groups = [DeviceGroup("gen", ALL, ("gen",), GroupLayout(tp=2)), DeviceGroup("train", ALL, PASSES, train)]
    return bind_groups(PPO, SYSTEM, groups, WEIGHTS, **more)


def side_by_side(graph: Graph = GRPO) -> Plan:
    groups = [DeviceGroup("gen", GEN, ("gen",)), DeviceGroup("train", TRAIN, ("train",), FULL)]
    return bind_groups(graph, SYSTEM, groups, WEIGHTS)


@pytest.fixture(scope="module")
def turns() -> Prediction:
    return predict(PPO, in_turns(), LOAD, SYSTEM)


@pytest.fixture(scope="module")
def beside() -> Prediction:
    return predict(GRPO, side_by_side(), LOAD, SYSTEM)


def test_a_step_in_turns(turns: Prediction) -> None:
    (group, host) = turns.groups
    assert (group.name, group.devices, host.devices, turns.devices) == ("gen&train", 16, 0, 16)
    assert sum(line.occupancy_s for line in turns.stages if line.where == ("gen&train",)) == pytest.approx(
        group.busy_share * turns.step_s
    )
    assert all(line.is_limiting for line in turns.stages if line.kind in ("generate", "train", "forward"))
    assert turns.cycle_steps == 1


def test_rates_follow_from_the_step(turns: Prediction) -> None:
    assert turns.tokens == pytest.approx(256 * (PROMPTS.mean_tokens + RESPONSES.mean_tokens))
    assert turns.tokens_per_s_per_device == pytest.approx(turns.tokens / turns.step_s / 16)
    assert turns.gpu_hours_per_1000_steps == pytest.approx(16 * turns.step_s / 3.6)


def test_mfu_counts_the_operations_of_the_model(turns: Prediction) -> None:
    plan = in_turns()
    found = Estimate(PPO, plan, LOAD, SYSTEM)
    per_step = {"train_actor": 2, "train_critic": 2}
    flops = sum(
        float(found.prices(b.stage, b).device_flops[0]) * per_step.get(b.stage, 1)
        for b in plan.bindings
        if b.mesh != "host"
    )
    assert turns.mfu == pytest.approx(flops / (turns.step_s * 16 * 989e12), rel=1e-2)
    assert 0.01 < turns.mfu < 0.6


def test_memory_by_phase(turns: Prediction) -> None:
    group = turns.groups[0]
    assert dict(group.phases).keys() == {line.name for line in turns.stages if line.where == ("gen&train",)}
    assert max(dict(group.phases).values()) == group.peak_bytes == sum(size for _, size in group.residents)
    assert group.peak_bytes <= group.capacity_bytes
    sizes = [size for _, size in group.residents]
    assert sizes == sorted(sizes, reverse=True)


def test_side_by_side(beside: Prediction) -> None:
    gen, train, _ = beside.groups
    assert (gen.devices, train.devices, beside.devices) == (8, 8, 16)
    assert max(gen.busy_share, train.busy_share) <= 1.0 + 1e-9
    assert beside.step_s < sum(line.occupancy_s + line.tail_s for line in beside.stages)
    assert [(line.generator, line.mean, line.max) for line in beside.staleness] == [("gen", 1, 1)]


def test_samples_are_younger_where_new_weights_are_taken_at_once() -> None:
    graph = InFlight("gen", KvPolicy.KEEP).apply(grpo(64, 4, 2), explore=True)
    (line,) = predict(graph, side_by_side(graph), LOAD, SYSTEM).staleness
    assert line.max == 2
    assert 0 <= line.mean < 2


def test_drawn_lengths_spread_the_steps(turns: Prediction) -> None:
    spread = turns.spread
    assert spread.p10_s < spread.p50_s < spread.p90_s
    assert spread.mean_s == pytest.approx(turns.step_s, rel=0.1)


def test_equal_seeds_draw_equal_steps_and_constant_lengths_none() -> None:
    plan = in_turns()
    found = Estimate(PPO, plan, LOAD, SYSTEM)
    events = lower(PPO, plan, found)
    assert spread_of(PPO, plan, found, events, 1) == spread_of(PPO, plan, found, events, 1)
    assert spread_of(PPO, plan, found, events, 1) != spread_of(PPO, plan, found, events, 2)
    fixed = Workload(dict(LOAD.shapes), constant(300.0), constant(800.0))
    found = Estimate(PPO, plan, fixed, SYSTEM)
    events = lower(PPO, plan, found)
    steady = spread_of(PPO, plan, found, events)
    assert steady.p10_s == pytest.approx(steady.p90_s)
    assert steady.mean_s == pytest.approx(float(cycle_ratio(events)[0]))


def test_text_for_people(turns: Prediction) -> None:
    lines = as_text(turns).splitlines()
    assert lines[0].startswith("step time  ")
    assert lines[0].endswith("s on 16 devices of alps:16")
    chain = "gen -> old_logp -> value -> reward -> ref -> gae -> train_actor -> train_critic -> update_actor"
    assert lines[1] == f"limited by {chain} -> update_critic -> publish -> gen, in 1 step"
    assert any(line.startswith("gen&train: 16 devices, busy ") for line in lines)
    assert any(line.startswith("profiles: rl/generic ") for line in lines)
    assert lines[-1].startswith("beyond what was fitted: ")


def test_json_for_programs(turns: Prediction) -> None:
    found = json.loads(json.dumps(as_json(turns)))
    assert found["step_s"] == turns.step_s
    assert found["tokens_per_s"] == turns.tokens_per_s
    assert {"stages", "groups", "spread", "staleness", "profiles", "extrapolates", "mfu"} <= found.keys()


def test_a_plan_of_another_graph_is_refused() -> None:
    with pytest.raises(PlanError, match=r"is for graph .*, this one is .*; give the plan of this recipe") as caught:
        predict(ppo(128), in_turns(), LOAD, SYSTEM)
    assert len(caught.value.faults) == 1


def test_a_plan_of_another_machine_is_refused() -> None:
    with pytest.raises(PlanError, match="is no path in the tree of dgx-h100:16"):
        predict(PPO, in_turns(), LOAD, load_system("dgx-h100:16"))


def test_what_does_not_fit_is_told_with_the_least_remedy() -> None:
    """All float32 gradients of two models on every device: splitting them is enough."""
    plan = in_turns(train=GroupLayout(tp=1, zero=1, micro_rows=2, recompute=Recompute.FULL))
    with pytest.raises(PlanError) as caught:
        predict(PPO, plan, LOAD, SYSTEM)
    (fault,) = caught.value.faults
    assert fault.where == "memory of gen&train"
    assert "of 96.0 GB on every device at " in fault.what
    assert "too much: actor.grads 30.5 GB, critic.grads 30.5 GB" in fault.what
    assert fault.remedy == "train_actor, train_critic: ZeRO level 2"


def test_what_waits_may_rest_on_the_host() -> None:
    """Where training is not to blame, weights that nobody uses meanwhile are."""
    large = dict.fromkeys(LOAD.shapes, shape_of("Qwen2.5-32B"))
    load, weights = Workload(large, PROMPTS, RESPONSES), {r: tensors(s) for r, s in large.items()}
    deep = GroupLayout(tp=4, pp=2, zero=3, micro_rows=2)
    groups = [DeviceGroup("gen", ALL, ("gen",), GroupLayout(tp=2)), DeviceGroup("rest", ALL, PASSES, deep)]
    plan = bind_groups(PPO, SYSTEM, groups, weights)
    with pytest.raises(PlanError, match=r"memory of gen&rest: needs .* too much") as caught:
        predict(PPO, plan, load, SYSTEM)
    assert caught.value.faults[0].remedy


def test_a_residency_that_frees_enough_makes_it_fit(turns: Prediction) -> None:
    away = [Residency(f"{role}.weights", Home.HOST, ((s, s),)) for role, s in (("rm", "reward"), ("ref", "ref"))]
    found = predict(PPO, in_turns(residencies=away), LOAD, SYSTEM)
    assert found.groups[0].peak_bytes < turns.groups[0].peak_bytes
    loads = [line for line in found.stages if line.kind == "load"]
    assert {line.name for line in loads} == {"load:ref.weights.0", "load:rm.weights.0"}
    assert all(line.occupancy_s > 0 for line in loads)
