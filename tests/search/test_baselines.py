"""Other systems as plans: each is what it may be by construction, keeps the rules of plans, and is its best."""

from __future__ import annotations

from functools import cache

import pytest

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.errors import PlanError
from rpeg.graph.graph import Graph
from rpeg.hardware.catalog import load_system
from rpeg.perf.lengths import constant, lognormal
from rpeg.perf.software import software_for
from rpeg.perf.step import Prediction, predict
from rpeg.perf.workload import Workload
from rpeg.search.baselines.baseline import MODELLED, Modelled
from rpeg.search.baselines.bench import Bench
from rpeg.search.baselines.catalog import BASELINES, baselines_named
from rpeg.search.baselines.cuts import everything, in_three, in_two
from rpeg.search.case import Case
from rpeg.search.find import Goal
from rpeg.shapes.catalog import shape_of

ROLES = ("actor", "critic", "ref", "rm")


def case(graph: Graph, machine: str, model: str = "llama-3.2-1b", bound: int = 2) -> Case:
    return Case(graph, _load(model), load_system(machine), Goal(bound), software_for())


@cache
def _load(model: str) -> Workload:
    return Workload(dict.fromkeys(ROLES, shape_of(model)), constant(256.0), lognormal(512.0, 0.6, 2048.0))


@cache
def _plan(name: str, algorithm: str, machine: str) -> Modelled:
    asked = case(grpo(64, 8) if algorithm == "grpo" else ppo(64), machine)
    return BASELINES[name].plan(asked, Bench(asked.market()))


def plan(name: str, algorithm: str = "grpo", machine: str = "alps:4") -> Modelled:
    return _plan(name, algorithm, machine)


def predicted(name: str, algorithm: str) -> Prediction:
    asked, found = case(ppo(64), "alps:4"), plan(name, algorithm).found
    return predict(found.structure.graph, found.priced.plan, asked.workload, asked.system, asked.software)


def places(name: str, algorithm: str) -> dict[str, frozenset[int]]:
    return {each.call.name: each.place.devices for each in plan(name, algorithm).found.assigned}


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize("name", list(BASELINES))
def test_keeps_the_rules_of_plans_and_of_memory(name: str, algorithm: str) -> None:
    """`predict` refuses a plan that breaks any of P1-P6 or needs more memory than there is."""
    found = predicted(name, algorithm)
    assert found.step_s == pytest.approx(plan(name, algorithm).found.step_s)
    assert all(group.peak_bytes <= group.capacity_bytes for group in found.groups)


@pytest.mark.parametrize(
    ("name", "rewrites"),
    [
        ("real-heuristic", set()),
        ("real", set()),
        ("verl", set()),
        ("openrlhf", set()),
        ("rlinf", {"stream"}),
        ("verl-one-step-off", {"relax", "retime"}),
        ("verl-async", {"relax", "retime", "stream", "in_flight"}),
        ("areal", {"relax", "retime", "in_flight"}),
    ],
)
def test_changes_no_more_than_the_system_can(name: str, rewrites: set[str]) -> None:
    for algorithm in ("grpo", "ppo"):
        structure = plan(name, algorithm).found.structure
        assert {text.partition("{")[0] for text in structure.rewrites} <= rewrites
        is_stale = "relax" in rewrites
        assert (structure.staleness > 0) == is_stale
        assert structure.staleness <= (1 if name == "verl-one-step-off" else 2)


def test_the_heuristic_of_real_has_all_calls_on_all_devices_with_tensors_split_by_eight() -> None:
    found = plan("real-heuristic", "ppo", "dgx-h100:16").found
    assert {each.place.devices for each in found.assigned} == {frozenset(range(16))}
    assert {each.row.choice.tp for each in found.assigned} == {8}
    assert len({each.row.choice.pp for each in found.assigned}) == 1


def test_the_heuristic_of_real_stays_within_smaller_nodes_where_that_is_better() -> None:
    found = plan("real-heuristic", "ppo").found
    assert {each.place.devices for each in found.assigned} == {frozenset(range(4))}
    assert len({(each.row.choice.tp, each.row.choice.pp) for each in found.assigned}) == 1
    assert found.assigned[0].row.choice.tp == 4


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_verl_has_all_calls_on_all_devices(algorithm: str) -> None:
    assert set(places("verl", algorithm).values()) == {frozenset(range(4))}


@pytest.mark.parametrize("name", ["verl-one-step-off", "verl-async", "areal", "openrlhf"])
def test_engines_have_devices_of_their_own(name: str) -> None:
    found = places(name, "ppo")
    others = frozenset[int]().union(*(devices for call, devices in found.items() if call != "gen"))
    assert not found["gen"] & others
    assert found["gen"] | others == frozenset(range(4))


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_areal_splits_three_to_one_and_its_step_is_that_of_the_batch(algorithm: str) -> None:
    found = places("areal", algorithm)
    assert (len(found["gen"]), {len(found[call]) for call in found if call != "gen"}) == (3, {1})
    modelled = plan("areal", algorithm)
    graph = modelled.found.structure.graph
    assert graph.contract.prompts.evaluate(graph.env) == 72  # 9/8 of 64
    assert modelled.step_s == pytest.approx(modelled.found.step_s * 64 / 72)


def test_openrlhf_trains_replicas_and_keeps_pairs_of_models_together() -> None:
    found = plan("openrlhf", "ppo").found
    by_call = {each.call.name: each for each in found.assigned}
    assert {(e.row.choice.tp, e.row.choice.pp) for name, e in by_call.items() if name != "gen"} == {(1, 1)}
    for a, b in (("train_actor", "old_logp"), ("train_actor", "ref"), ("train_critic", "value"), ("value", "reward")):
        assert by_call[a].place is by_call[b].place


def test_a_system_that_may_more_is_never_slower() -> None:
    for algorithm in ("grpo", "ppo"):
        heuristic, real, verl, rlinf = (
            plan(name, algorithm).step_s for name in ("real-heuristic", "real", "verl", "rlinf")
        )
        assert real <= verl <= heuristic
        assert rlinf <= verl
        assert plan("verl-async", algorithm).step_s <= plan("verl-one-step-off", algorithm).step_s * 1.001


def test_what_does_not_fit_is_an_answer() -> None:
    asked = case(ppo(64), "alps:4", "qwen2.5-32b")
    with pytest.raises(PlanError, match=r"(?s)plans on alps:4: .*train_actor: fits in no layout") as refused:
        BASELINES["verl"].plan(asked, Bench(asked.market()))
    assert "more devices" in str(refused.value)


def test_a_stale_system_needs_leave() -> None:
    asked = case(grpo(64, 8), "alps:4", bound=0)
    with pytest.raises(PlanError, match="areal: works with old samples only; allow a staleness of 1"):
        BASELINES["areal"].plan(asked, Bench(asked.market()))


def test_a_machine_that_cannot_be_cut_is_refused() -> None:
    asked = case(grpo(64, 8), "alps:1")
    with pytest.raises(PlanError, match="alps:1: cannot be cut as the system wants it; more devices"):
        BASELINES["openrlhf"].plan(asked, Bench(asked.market()))


def test_the_same_every_time() -> None:
    asked = case(grpo(64, 8), "alps:4")
    again = BASELINES["verl-async"].plan(asked, Bench(asked.market()))
    assert again.found.priced.plan.digest() == plan("verl-async").found.priced.plan.digest()


def test_cuts_have_every_device_once() -> None:
    for machine in ("alps:4", "alps:8", "alps:64", "alps:256"):
        system = load_system(machine)
        for cut in (*in_two(system), *in_three(system)):
            devices = [device for place in cut for device in place.devices]
            assert sorted(devices) == list(range(system.num_devices))
        assert everything(system).devices == frozenset(range(system.num_devices))
    assert [len(first.devices) for first, _ in in_two(load_system("alps:64"))] == [4 * n for n in range(1, 16)]


def test_by_name() -> None:
    assert baselines_named([]) == tuple(BASELINES.values())
    assert [each.name for each in baselines_named(["verl", "real", "verl"])] == ["real", "verl"]
    with pytest.raises(PlanError) as refused:
        baselines_named(["verl", "reel", "nobody"], "--against")
    assert str(refused.value).splitlines() == [
        "--against: 2 faults",
        f"  1. reel: is no baseline; did you mean real? there is {', '.join(BASELINES)}",
        f"  2. nobody: is no baseline; there is {', '.join(BASELINES)}",
    ]


def test_everybody_says_what_it_may_and_that_it_is_modelled() -> None:
    assert all(each.may and each.not_modelled for each in BASELINES.values())
    assert "none of these systems was run" in MODELLED
