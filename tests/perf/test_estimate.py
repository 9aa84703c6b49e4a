"""The model behind the protocols of a plan: it lowers, keeps the rules busy, and is quick the second time."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.graph.graph import Graph
from rpeg.hardware.catalog import load_system
from rpeg.perf.estimate import Estimate
from rpeg.perf.lengths import lognormal
from rpeg.perf.reshard import haul_s, reshard_s
from rpeg.perf.software import Software, software_for
from rpeg.perf.workload import Workload
from rpeg.plan.costs import Costs, Sizes
from rpeg.plan.events import cycle_ratio
from rpeg.plan.fixed import bind_groups
from rpeg.plan.groups import DeviceGroup, GroupLayout
from rpeg.plan.lower import lower
from rpeg.plan.plan import Home, Method, Plan, Recompute, Residency, Transfer
from rpeg.plan.rules import validate_plan
from rpeg.plan.shipments import Cause, shipments
from rpeg.plan.site import Site
from rpeg.shapes.catalog import shape_of
from rpeg.shapes.parameters import tensors

SYSTEM = load_system("alps:16")
SHAPE = shape_of("Qwen2.5-7B")
LOAD = Workload(
    dict.fromkeys(("actor", "critic", "ref", "rm"), SHAPE), lognormal(300.0, 0.5, 1024.0), lognormal(800.0, 0.8, 4096.0)
)
WEIGHTS = dict.fromkeys(LOAD.shapes, tensors(SHAPE))
PASSES = ("old_logp", "value", "reward", "ref", "train_actor", "train_critic")
ALL, GEN, TRAIN = "rack[0].node[0:4]", "rack[0].node[0:2]", "rack[0].node[2:4]"
GRAPH, SPLIT = ppo(256, mini_batches=2), grpo(64, 4, 1)


def colocated(**more: Any) -> Plan:
    how = GroupLayout(tp=4, zero=1, micro_rows=2, recompute=Recompute.FULL)
    groups = [DeviceGroup("gen", ALL, ("gen",), GroupLayout(tp=2)), DeviceGroup("train", ALL, PASSES, how)]
    return bind_groups(GRAPH, SYSTEM, groups, WEIGHTS, **more)


def apart(**more: Any) -> Plan:
    how = GroupLayout(tp=4, zero=1, micro_rows=2, recompute=Recompute.FULL)
    groups = [DeviceGroup("gen", GEN, ("gen",)), DeviceGroup("train", TRAIN, ("train",), how)]
    return bind_groups(SPLIT, SYSTEM, groups, WEIGHTS, **more)


def estimate(graph: Graph, plan: Plan, software: Software | None = None) -> Estimate:
    return Estimate(graph, plan, LOAD, SYSTEM, software)


def with_constants(**changes: Any) -> Software:
    base = software_for("generic")
    return replace(base, loaded=replace(base.loaded, constants=replace(base.constants, **changes)))


def seconds(found: Estimate, stage: str) -> float:
    return found.seconds(stage, found.plan.binding_of[stage]).occupancy_s


def test_it_is_what_plans_are_judged_with() -> None:
    plan = colocated()
    found = estimate(GRAPH, plan)
    costs: Costs = found
    sizes: Sizes = found
    assert validate_plan(GRAPH, plan, Site(SYSTEM, WEIGHTS, costs, sizes)) == []


def test_a_step_in_turns_is_the_sum_of_its_stages() -> None:
    plan = colocated()
    found = estimate(GRAPH, plan)
    period, cycle = cycle_ratio(lower(GRAPH, plan, found))
    on_devices = [b.stage for b in plan.bindings if b.mesh != "host"]
    firings = {stage: 2 if "train_" in stage or "update_" in stage else 1 for stage in on_devices}
    total_s = sum(firings[stage] * seconds(found, stage) for stage in on_devices)
    tail_s = found.seconds("gen", plan.binding_of["gen"]).tail_s
    assert float(period) == pytest.approx(total_s + tail_s, rel=1e-3)  # hosts take microseconds
    assert sum(arc.tokens for arc in cycle) == 1


def test_side_by_side_the_slower_side_counts() -> None:
    plan = apart()
    found = estimate(SPLIT, plan)
    period, _ = cycle_ratio(lower(SPLIT, plan, found))
    train_s = seconds(found, "train") + seconds(found, "update") + seconds(found, "push")
    generated = found.seconds("gen", plan.binding_of["gen"])
    drained_s = generated.occupancy_s + generated.tail_s + seconds(found, "pull")
    assert float(period) == pytest.approx(max(train_s, drained_s), rel=1e-6)


def test_a_plan_is_priced_again_by_looking_up() -> None:
    plan = colocated()

    def priced_s() -> float:
        start_s = time.process_time()
        found = estimate(GRAPH, plan)
        for binding in plan.bindings:
            found.seconds(binding.stage, binding)
        return time.process_time() - start_s

    other = Workload(dict(LOAD.shapes), LOAD.prompts, LOAD.responses)  # no table knows it
    start_s = time.process_time()
    found = Estimate(GRAPH, plan, other, SYSTEM)
    for binding in plan.bindings:
        found.seconds(binding.stage, binding)
    first_s = time.process_time() - start_s
    priced_s()
    assert min(priced_s() for _ in range(5)) < first_s / 5


def test_a_pull_takes_as_long_as_its_reshard() -> None:
    plan = apart()
    found = estimate(SPLIT, plan)
    (carried,) = [each for each in shipments(SPLIT, plan) if each.carrier == "pull"]
    wanted = reshard_s(
        SHAPE, (carried.src, plan.mesh_named["train"]), (carried.dst, plan.mesh_named["gen"]), SYSTEM, 2.0
    )
    assert found.transfer_s(carried) == wanted
    assert seconds(found, "pull") == pytest.approx(wanted + found.software.constants.firing_s)


def test_the_method_of_a_transfer_counts() -> None:
    gathered = apart(transfers=[Transfer("actor.staged", "pull", Method.GATHER)])
    assert seconds(estimate(SPLIT, gathered), "pull") > 2 * seconds(estimate(SPLIT, apart()), "pull")
    halved = apart(transfers=[Transfer("actor.staged", "pull", Method.P2P, dtype="float8")])
    assert seconds(estimate(SPLIT, halved), "pull") < 0.6 * seconds(estimate(SPLIT, apart()), "pull")


def test_what_comes_once_per_step_is_in_the_push() -> None:
    plain, slow = (estimate(SPLIT, apart(), with_constants(step_s=each, host_s=0.0)) for each in (0.0, 7.0))
    assert seconds(slow, "push") - seconds(plain, "push") == pytest.approx(7.0)
    per_host = estimate(SPLIT, apart(), with_constants(step_s=0.0, host_s=2.0))
    assert seconds(per_host, "push") - seconds(plain, "push") == pytest.approx(2.0 * 4)


def test_switching_costs_where_devices_take_turns() -> None:
    switch = {"switch_s": 3.0}
    together = [seconds(estimate(GRAPH, colocated(), with_constants(**each)), "publish") for each in ({}, switch)]
    separate = [seconds(estimate(SPLIT, apart(), with_constants(**each)), "pull") for each in ({}, switch)]
    assert together[1] - together[0] == pytest.approx(3.0)
    assert separate[0] == separate[1]


def test_loads_go_over_the_link_to_the_host() -> None:
    away = Residency("ref.weights", Home.HOST, (("ref", "ref"),))
    plan = colocated(residencies=[away])
    found = estimate(GRAPH, plan)
    (load,) = [each for each in shipments(GRAPH, plan) if each.cause is Cause.LOAD]
    assert found.transfer_s(load) == pytest.approx(haul_s(found.held_bytes("ref.weights", load.src), SYSTEM), rel=1e-6)
    disk = replace(load, home=Home.DISK)
    assert found.transfer_s(disk) > 10 * found.transfer_s(load)


def test_a_generator_has_the_memory_that_others_leave() -> None:
    """Putting weights away while it runs makes room for caches; alone on its devices it has its usual share."""
    rows = ppo(16384)
    how = GroupLayout(tp=2, zero=1, micro_rows=2, recompute=Recompute.FULL)
    groups = [DeviceGroup("gen", ALL, ("gen",)), DeviceGroup("train", ALL, PASSES, how)]
    stays = bind_groups(rows, SYSTEM, groups, WEIGHTS)
    spans = {
        "actor.master": ("old_logp", "publish"),
        "critic.master": ("value", "update_critic"),
        "ref.weights": ("ref", "ref"),
        "rm.weights": ("reward", "reward"),
    }
    away = [Residency(name, Home.HOST, (span,)) for name, span in spans.items()]
    goes = bind_groups(rows, SYSTEM, groups, WEIGHTS, residencies=away)
    caches = [estimate(rows, plan).working_bytes("gen", plan.binding_of["gen"]) for plan in (stays, goes)]
    assert caches[0] < caches[1]
    assert seconds(estimate(rows, stays), "gen") > seconds(estimate(rows, goes), "gen")


def test_several_servers_have_a_part_each() -> None:
    plan = apart()
    binding = plan.binding_of["gen"]
    found = estimate(SPLIT, plan)
    one, two = (found.seconds("gen", replace(binding, servers=n)) for n in (1, 2))
    assert one.occupancy_s < two.occupancy_s < 2.1 * one.occupancy_s


def test_moves_need_no_room_of_their_own() -> None:
    plan = apart()
    assert estimate(SPLIT, plan).working_bytes("push", plan.binding_of["push"]) == 0


def test_what_was_not_fitted_is_said() -> None:
    text = estimate(SPLIT, apart()).extrapolates
    assert "device GH200-96GB new" in text
    large = load_system("alps:2048")
    plan = replace(apart())
    assert "devices 2048 above" in Estimate(SPLIT, plan, LOAD, large).extrapolates
