"""Changes of one thing at a time: which are tried, how each is computed, whose leave it takes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from tests.search.tiny import found, goal, tiny

from rpeg.graph.lineage import age
from rpeg.hardware.catalog import load_system
from rpeg.search.answer import what_if
from rpeg.search.case import Case
from rpeg.search.figures import figures
from rpeg.search.find import Found, find_plans
from rpeg.search.reprice import priced
from rpeg.search.single_changes import Effect, How, Leave, single_changes


def best(max_staleness: int = 0) -> Found:
    return found(max_staleness).plans[0]


@cache
def effects(max_staleness: int = 0) -> dict[str, Effect]:
    plan = best(max_staleness)
    tried = single_changes(tiny(max_staleness), plan.structure.graph, plan.priced.plan)
    return {each.change: each for each in tried}


def test_the_shortest_comes_first_and_none_twice() -> None:
    steps = [each.step_s for each in effects().values()]
    assert steps == sorted(steps)
    assert len(effects()) == len({each.change for each in effects().values()})


def test_staleness_is_searched_or_moved_whichever_is_better() -> None:
    effect = effects()["allowing staleness 1"]
    assert (effect.option, effect.leave) == ("--staleness-max 1", Leave.LEARNING)
    assert effect.step_s == pytest.approx(found(1).plans[0].step_s)
    now = best()
    moved = what_if(tiny(), ["staleness=1"], now.structure.graph, now.priced.plan, same_plan=True)
    assert effect.step_s <= moved.after.step_s + 1e-9


def test_what_is_allowed_already_is_free() -> None:
    """A plan without staleness where a step of it is allowed."""
    now = best()
    tried = single_changes(tiny(1), now.structure.graph, now.priced.plan)
    leaves = {each.change: each.leave for each in tried}
    assert leaves["allowing staleness 1"] is Leave.FREE
    assert leaves["allowing in_flight"] is Leave.LEARNING


def test_another_machine_is_not_the_users_to_take() -> None:
    machines = {each.change for each in effects().values() if each.leave is Leave.MACHINE}
    assert machines == {"8 devices", "memory 1.5x", "hbm 2x", "flops 2x", "nvlink 2x", "host 2x"}, "one node has no nic"
    assert {each.how for each in effects().values() if each.change.endswith(" 2x")} == {How.PRICED}


def test_figures_are_priced_as_a_what_if_prices_them() -> None:
    now = best()
    answer = what_if(tiny(), ["hbm=2x"], now.structure.graph, now.priced.plan, same_plan=True)
    assert effects()["hbm 2x"].step_s == answer.after.step_s


def test_more_devices_are_searched() -> None:
    effect = effects()["8 devices"]
    assert (effect.how, effect.devices, effect.option) == (How.SEARCHED, 8, "--what-if gpus=8")


def test_streaming_keeps_the_layouts() -> None:
    streamed = {each.change: each for each in effects().values() if "part" in each.change}
    assert {each.how for each in streamed.values()} == {How.MOVED}
    assert {each.leave for each in streamed.values()} == {Leave.FREE}
    assert "streaming in 8 parts" in streamed


def apart(gen: str, train: str, cluster: str = "alps:4") -> tuple[Case, Found]:
    """Return the generator and training on devices of their own."""
    case = replace(tiny(1), system=load_system(cluster))
    wanted = goal(1, gen, train)
    return case, find_plans(case.graph, case.workload, case.system, wanted, case.software).plans[0]


def test_other_splits() -> None:
    """A device from one group to the other, with the layouts that a search finds there, if it finds any."""
    case, now = apart("rack.node.gpu[0:2]", "rack.node.gpu[2:4]")
    graph, plan = now.structure.graph, now.priced.plan
    tried = {each.change: each for each in single_changes(case, graph, plan) if " : " in each.change}
    names = "rack.node.gpu[0:2] : rack.node.gpu[2:4]"
    places = {
        f"3 : 1 devices for {names}": ("rack.node.gpu[0:3]", "rack.node.gpu[3:4]"),
        f"1 : 3 devices for {names}": ("rack.node.gpu[0:1]", "rack.node.gpu[1:4]"),
    }
    assert {*tried} & {*places}
    assert {*tried} <= {*places}
    for change, effect in tried.items():
        wanted = goal(age(graph), *places[change])
        again = find_plans(graph, case.workload, case.system, wanted, case.software).plans[0]
        assert effect.step_s == pytest.approx(again.step_s)
        assert (effect.leave, effect.how, effect.devices) == (Leave.FREE, How.SEARCHED, 4)


def test_figures_are_first_order() -> None:
    """A percent of each is what two steps of half a percent are; more of the machine never costs."""
    now = best()
    graph, plan = now.structure.graph, now.priced.plan
    slopes = {each.figure: each for each in figures(tiny(), graph, plan)}
    assert {*slopes} == {"hbm", "flops", "host", "nvlink", "response.mean", "prompt.mean"}
    assert all(slopes[name].elasticity <= 1e-9 for name in ("hbm", "flops", "host", "nvlink"))
    assert slopes["response.mean"].elasticity > 0
    before_s = priced(tiny(), graph, plan).seconds
    for name in ("hbm", "flops", "response.mean"):
        half = what_if(tiny(), [f"{name}=1.005x"], graph, plan, same_plan=True).after.step_s
        assert slopes[name].step_s - before_s == pytest.approx(2 * (half - before_s), rel=0.05)
    assert sum(abs(slopes[name].elasticity) for name in ("hbm", "flops", "nvlink", "host")) <= 1.0 + 1e-6


def test_ages() -> None:
    assert age(best(1).structure.graph) == 1
