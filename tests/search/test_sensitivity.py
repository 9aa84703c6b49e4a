"""Slacks and derivatives: the worked example by hand, and against the period itself on random event graphs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plan.conftest import Make
from tests.plan.test_worked_example import SECONDS, colocated, disaggregated, grpo_by_hand
from tests.plan.test_worked_example import priced as by_hand
from tests.search.tiny import found, tiny

from rpeg.plan.events import Arc, Event, EventGraph, cycle_ratio
from rpeg.search.reprice import Step, priced, step_of
from rpeg.search.sensitivity import margins, token_worths


def step(k: int = 0, firings: int = 1, *, tail_s: float = 0.0) -> Step:
    """The worked example of the design, the generator apart."""
    graph = grpo_by_hand(k, firings)
    return step_of(graph, by_hand(graph, disaggregated(graph), tail_s=tail_s))


def longer(events: EventGraph, stage: str, more_s: Fraction) -> Fraction:
    """Return the period when every firing of a stage takes so much longer."""
    scale = more_s.denominator  # whole numbers stay exact as floats
    stretched = tuple(
        replace(e, occupancy_s=e.occupancy_s * scale + (more_s.numerator if e.stage == stage else 0))
        for e in events.events
    )
    arcs = tuple(replace(arc, latency_s=arc.latency_s * scale) for arc in events.arcs)
    return cycle_ratio(EventGraph(stretched, arcs))[0] / scale


def test_the_worked_example_synchronous() -> None:
    """69 s: gen 40, ref 6, train 20, update 1, publish 2; the reward has the 6 s of ref for its own 4."""
    known = {each.stage: each for each in margins(step())}
    assert {name: each.worth for name, each in known.items()} == {
        **dict.fromkeys(("gen", "ref", "train", "update", "publish"), 1.0),
        **{"reward": 0.0, "advantage": 0.0},
    }
    assert (known["reward"].slack_s, known["advantage"].slack_s, known["train"].slack_s) == (2.0, 2.0, 0.0)
    assert known["gen"].share == pytest.approx(40 / 69)
    assert sum(each.share for each in known.values()) == pytest.approx(1.0)
    assert [each.stage for each in margins(step())][:3] == ["gen", "train", "ref"]


def test_the_worked_example_one_step_ahead() -> None:
    """42 s on ``roll``; the trainer works 29 s of them, and the reward has a second batch to hide behind."""
    known = {each.stage: each.slack_s for each in margins(step(1))}
    assert known == {"gen": 0, "publish": 0, "ref": 13, "train": 13, "update": 13, "reward": 17, "advantage": 17}


def test_streamed_in_four_a_second_of_each_generation_counts_four_times() -> None:
    known = {each.stage: each.worth for each in margins(step(firings=4))}
    assert known == {"gen": 4, "train": 1, "ref": 1, "update": 1, "publish": 1, "reward": 0, "advantage": 0}


def test_a_tail_has_a_worth_of_its_own() -> None:
    generation, *_ = (each for each in margins(step(tail_s=14.0)) if each.stage == "gen")
    assert (generation.occupancy_s, generation.tail_s, generation.cycle_s) == (26.0, 14.0, 40.0)
    assert (generation.worth, generation.tail_worth, generation.tail_slack_s) == (1.0, 1.0, 0.0)


def test_colocated_everything_counts() -> None:
    graph = grpo_by_hand()
    known = {each.stage: each.worth for each in margins(step_of(graph, by_hand(graph, colocated(graph))))}
    assert all(known[name] == 1.0 for name in SECONDS)


def test_two_cycles_that_are_critical_alike() -> None:
    """Only one of them is found as the cycle, but a second more of the other costs a second as well."""
    events = (Event("a", "a", 0, 3.0, ("r",)), Event("b", "b", 0, 6.0, ("q",)), Event("c", "c", 0, 1.0, ("p",)))
    arcs = (Arc("a", "a", 1, 0.0, "self"), Arc("b", "b", 2, 0.0, "self"), Arc("c", "c", 1, 0.0, "self"))
    known = {each.stage: each for each in margins(step_of(grpo_by_hand(), EventGraph(events, arcs)))}
    assert (known["a"].worth, known["b"].worth, known["c"].worth) == (1.0, 0.5, 0.0)
    assert (known["a"].slack_s, known["b"].slack_s, known["c"].slack_s) == (0.0, 0.0, 2.0)


def test_what_is_on_no_cycle_may_take_any_time() -> None:
    events = (Event("a", "a", 0, 3.0, ("r",)), Event("b", "b", 0, 6.0, ("q",)))
    arcs = (Arc("a", "a", 1, 0.0, "self"), Arc("b", "a", 0, 0.0, "data:x"))
    known = {each.stage: each for each in margins(step_of(grpo_by_hand(), EventGraph(events, arcs)))}
    assert (known["b"].slack_s, known["b"].worth) == (inf, 0.0)


@given(st.integers(0, 4000))
def test_slack_and_worth_are_those_of_the_period(seed: int) -> None:
    events = Make.events(seed)
    known = step_of(grpo_by_hand(), events)
    for each in margins(known):
        if each.slack_s == inf:
            continue
        slack, epsilon = Fraction(each.slack_s).limit_denominator(10**6), Fraction(1, 10**6)
        assert longer(events, each.stage, slack) == known.period_s
        after = longer(events, each.stage, slack + epsilon)
        assert after > known.period_s
        if not slack:
            assert (after - known.period_s) / epsilon == Fraction(each.worth).limit_denominator(10**6)


@given(st.integers(0, 4000))
def test_shares_sum_to_one(seed: int) -> None:
    known = step_of(grpo_by_hand(), Make.events(seed))
    assert sum(each.share for each in margins(known)) == pytest.approx(1.0 if known.cycle else 0.0)


def test_tokens() -> None:
    """A step more between samples and training is worth what staleness is; elsewhere one more token does nothing."""
    found_s = {each.reason: each.step_s for each in token_worths(step())}
    assert found_s["data:rollouts"] == 42.0
    assert {reason for reason, step_s in found_s.items() if step_s < 69.0} == {"data:rollouts"}
    assert next(iter(token_worths(step()))).tokens == 0


def test_a_plan_of_the_model_follows_its_derivatives() -> None:
    """A hundredth more of every firing of a stage: what its share says, as long as its cycle stays the critical one."""
    best = found().plans[0]
    known = priced(tiny(), best.structure.graph, best.priced.plan)
    for each in margins(known):
        stretched = tuple(
            replace(e, occupancy_s=e.occupancy_s * 1.01) if e.stage == each.stage else e for e in known.events.events
        )
        after = cycle_ratio(EventGraph(stretched, known.events.arcs))[0]
        assert float(after) - known.seconds == pytest.approx(each.worth * each.occupancy_s * 0.01, abs=1e-9)
