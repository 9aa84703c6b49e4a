"""The search: equal to brute force where all can be priced, deterministic, and honest about what does not fit."""

from dataclasses import replace
from itertools import product

import pytest

from rpeg.algorithms.grpo import grpo
from rpeg.errors import PlanError
from rpeg.hardware.catalog import load_system
from rpeg.hardware.topology import System
from rpeg.perf.demand import demands
from rpeg.perf.lengths import constant, lognormal
from rpeg.perf.software import software_for
from rpeg.perf.step import predict
from rpeg.perf.workload import Workload
from rpeg.plan.rules import validate_plan
from rpeg.search.find import Goal, Outcome, find_plans
from rpeg.search.plans import Assigned, draw_plan, price_plan
from rpeg.search.prices import Pin
from rpeg.search.problem import Market, pose
from rpeg.search.ranking import as_json, as_text, ranked
from rpeg.search.structures import structures
from rpeg.shapes.catalog import shape_of

LOAD = Workload({"actor": shape_of("Qwen2.5-1.5B")}, constant(256.0), lognormal(512.0, 0.6, 2048.0))
GRAPH = grpo(64, 8)
PINS = {"gen": Pin({"pp": 1, "tp": 1}), "train": Pin({"pp": 1, "micro_rows": 4, "zero": 1})}


def system(size: int = 2) -> System:
    return load_system(f"alps:{size}")


@pytest.fixture(scope="module")
def found() -> Outcome:
    return find_plans(GRAPH, LOAD, system(), Goal(max_staleness=1, pins=PINS))


@pytest.mark.parametrize("staleness", [0, 1])
def test_equals_brute_force(staleness: int) -> None:
    structure = next(each for each in structures(GRAPH, staleness) if each.staleness == staleness and each.firings == 1)
    market = Market.of(system(), software_for(), LOAD, PINS)
    posed = pose(structure, market, demands(structure.graph, LOAD)[0])
    best_s = float("inf")
    for rows in product(*(range(len(posed.candidates[call.name])) for call in posed.calls)):
        parts = (
            Assigned(call, posed.candidates[call.name].places[i], posed.candidates[call.name].rows[i])
            for call, i in zip(posed.calls, rows, strict=True)
        )
        try:
            priced = price_plan(structure.graph, draw_plan(structure.graph, market, tuple(parts)), market)
        except PlanError:
            continue
        best_s = min(best_s, priced.step_s)
    outcome = find_plans(GRAPH, LOAD, system(), Goal(staleness, pins=PINS, top=100))
    unstreamed = [f.step_s for f in outcome.plans if f.structure.firings == 1 and f.structure.staleness == staleness]
    assert min(unstreamed) == pytest.approx(best_s)


def test_the_same_every_time(found: Outcome) -> None:
    again = find_plans(GRAPH, LOAD, system(), Goal(max_staleness=1, pins=PINS))
    assert [f.priced.plan.digest() for f in again.plans] == [f.priced.plan.digest() for f in found.plans]
    assert again.bound_s == found.bound_s


def test_every_plan_keeps_the_rules_and_no_bound_is_above_it(found: Outcome) -> None:
    for each in found.plans:
        assert validate_plan(each.structure.graph, each.priced.plan) == []
        prediction = predict(each.structure.graph, each.priced.plan, LOAD, system())
        assert prediction.step_s == pytest.approx(each.step_s)
        assert found.bound_s <= each.step_s
    assert 0 <= found.gap < 1
    steps = [each.step_s for each in found.plans]
    assert steps == sorted(steps)


def test_more_leave_and_more_devices_are_never_worse(found: Outcome) -> None:
    strict = find_plans(GRAPH, LOAD, system(), Goal(pins=PINS))
    larger = find_plans(GRAPH, LOAD, system(4), Goal(max_staleness=1, pins=PINS))
    assert found.plans[0].step_s <= strict.plans[0].step_s
    assert larger.plans[0].step_s <= found.plans[0].step_s


def test_what_is_fixed_stays(found: Outcome) -> None:
    goal = Goal(pins={"gen": Pin({"tp": 1})}, regions={"train": "rack.node.gpu[0:1]"})
    (first, *_) = find_plans(GRAPH, LOAD, system(), goal).plans
    by_call = {assigned.call.name: assigned for assigned in first.assigned}
    assert by_call["gen"].row.choice.tp == 1
    assert by_call["train"].place.where == "rack.node.gpu[0:1]"


def test_what_does_not_fit_is_refused_with_the_shortfall() -> None:
    small = replace(system(1), device=replace(system(1).device, memory_bytes=8_000_000_000))
    with pytest.raises(PlanError, match="fits in no layout on any part of alps:1"):
        find_plans(GRAPH, replace(LOAD, shapes={"actor": shape_of("Qwen2.5-72B")}), small)


def test_as_text_and_as_data(found: Outcome) -> None:
    plans = ranked(found, LOAD, system(), software_for())
    text, record = as_text(found, plans), as_json(found, plans)
    assert "no plan of these takes less than" in text
    assert [each["step_s"] for each in record["plans"]] == [each.found.step_s for each in plans]
