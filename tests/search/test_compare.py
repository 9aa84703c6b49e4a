"""Two plans side by side."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.search.tiny import found, tiny

from rpeg.errors import PlanError
from rpeg.graph.dim import Dim
from rpeg.plan.plan import Home, Plan, Recompute, Residency
from rpeg.search.compare import Comparison, compare, differences
from rpeg.search.compare_text import as_json, as_text
from rpeg.search.reprice import transplanted
from rpeg.search.structures import structures


def both() -> Comparison:
    """The best plan with a step of staleness, and the algorithm's own graph in the same layouts."""
    best = found(1).plans[0]
    own = structures(tiny(1).graph, 1)[0].graph
    plan = transplanted(tiny(1), best.priced.plan, own).plan
    return compare(("best.json", tiny(1), best.structure.graph, best.priced.plan), ("own.json", tiny(1), own, plan))


def test_what_differs() -> None:
    found_here = both()
    assert found_here.ratio == pytest.approx(found_here.b.prediction.step_s / found_here.a.prediction.step_s)
    assert found_here.ratio >= 1.0
    assert next(iter(found_here.differences)).part == "rewrites"
    assert found_here.b.rewrites == ()
    assert "over 1 step" in found_here.b.limit


def test_text() -> None:
    lines = as_text(both()).splitlines()
    assert lines[0].split() == ["a:", "best.json", "b:", "own.json", "b", "/", "a"]
    heads = [line.split("  ")[0] for line in lines if line]
    assert heads[1:9] == [
        *("step", "step, mean of drawn lengths", "devices", "tokens/s", "tokens/s per device"),
        *("GPU-hours per 1,000 steps", "MFU", "staleness, at most"),
    ]
    assert {"gen", "train", "push"} <= {*heads}
    assert any(line.startswith("a is limited: ") for line in lines)
    assert any(line.startswith("b is limited: ") for line in lines)
    assert any(line.startswith("rewrites:") for line in lines)
    assert "*" in next(line for line in lines if line.startswith("gen "))


def test_json() -> None:
    record = json.loads(json.dumps(as_json(both()), allow_nan=False))
    assert {*record} == {"a", "b", "ratio", "differences"}
    assert record["a"]["name"] == "best.json"
    assert record["a"]["prediction"]["step_s"] > 0
    assert record["differences"][0]["part"] == "rewrites"


def test_equal_plans() -> None:
    best = found(1).plans[0]
    side = ("a", tiny(1), best.structure.graph, best.priced.plan)
    same = compare(side, side)
    assert (same.differences, same.ratio) == ((), 1.0)
    assert as_text(same).splitlines()[-1] == "the plans are the same"


def test_every_kind_of_difference() -> None:
    best = found().plans[0]
    graph, plan = best.structure.graph, best.priced.plan
    train = plan.binding_of["train"]
    other = replace(
        plan,
        bindings=tuple(
            replace(each, recompute=Recompute.FULL, micro_rows=Dim("2"), servers=2) if each is train else each
            for each in plan.bindings
        ),
        residencies=(Residency("actor.moments", Home.HOST, (("train", "update"),)),),
    )
    parts = {each.part: each for each in differences((graph, plan), (graph, other))}
    assert {*parts} == {"train", "actor.moments"}
    assert parts["train"].b.endswith("2 rows at a time, recompute full, 2 servers")
    assert (parts["actor.moments"].a, parts["actor.moments"].b) == ("stays on its devices", "rests on host")
    (order,) = differences((graph, plan), (graph, reordered(plan)))
    assert order.part == "order"


def reordered(plan: Plan) -> Plan:
    """Return a plan whose devices do the last thing first."""
    (name, slots), *rest = plan.order
    return replace(plan, order=((name, (slots[-1], *slots[:-1])), *rest))


def test_a_plan_that_does_not_hold_is_refused() -> None:
    best = found().plans[0]
    graph, plan = best.structure.graph, best.priced.plan
    broken = replace(plan, bindings=plan.bindings[1:])
    with pytest.raises(PlanError, match="P1"):
        compare(("a", tiny(), graph, plan), ("b", tiny(), graph, broken))
