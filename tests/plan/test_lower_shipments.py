"""Transfers in the event graph: arcs written down, order on links, and what they do to the period."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plan.test_shipments import SPLIT, laid_out, learning, on_one, weights

from rpeg.graph.access import Access, Mode
from rpeg.graph.graph import Graph
from rpeg.plan.costs import Duration, KnownCosts
from rpeg.plan.events import EventGraph, beyond_cut, cycle_ratio, tokenless_cycle
from rpeg.plan.lower import lower
from rpeg.plan.plan import Home, Layout, Plan, Residency, Slot
from rpeg.plan.simulate import simulate

FREE = KnownCosts({})


def arcs(events: EventGraph, *reasons: str) -> list[str]:
    """Return the arcs of these kinds as text: ``a.0 -> b.0 1``, and the latency where there is one."""
    wanted = [arc for arc in events.arcs if arc.reason.split(":")[0] in reasons]
    return [f"{a.src} -> {a.dst} {a.tokens}" + (f" +{a.latency_s:g}s" if a.latency_s else "") for a in wanted]


def test_a_reshard_stands_between_an_update_and_its_reader(make: Any) -> None:
    graph = learning(make)
    plan = laid_out(on_one(make, graph), old=Layout("trn", SPLIT))
    events = lower(graph, plan, KnownCosts({"update": Duration(1.0, 2.0)}, {"reshard:master>old": 3.0}))
    event = events.event_of["reshard:master>old.0"]
    assert (event.stage, event.occupancy_s, event.resources, event.shift) == (
        *("reshard:master>old", 3.0, ("net:trn",), 0),
    )
    assert arcs(events, "state", "keep") == [
        *("reshard:master>old.0 -> old.0 1", "old.0 -> reshard:master>old.0 0"),
        *("update.0 -> value.0 1 +2s", "value.0 -> update.0 0"),
        *("update.0 -> train.0 1 +2s", "train.0 -> update.0 0"),
    ]
    assert arcs(events, "transfer") == [
        "update.0 -> reshard:master>old.0 0 +2s",
        "reshard:master>old.0 -> update.0 1",
    ]


def test_a_reshard_after_every_update(make: Any) -> None:
    """The trainer turns to each version within the step, and no version is replaced before it was sent."""
    graph = learning(make, 4, 2)
    plan = laid_out(on_one(make, graph), train=Layout("trn", SPLIT))
    plan = replace(plan, order=(("trn", tuple(_alternating())),))
    events = lower(graph, plan, FREE)
    t = "reshard:master>train"
    assert [arc for arc in arcs(events, "state", "keep") if "train" in arc] == [
        *(f"{t}.1 -> train.0 1", f"train.1 -> {t}.0 0", f"{t}.0 -> train.2 0", f"train.3 -> {t}.1 0"),
    ]
    assert [arc for arc in arcs(events, "transfer") if "master" in arc] == [
        *(f"update.0 -> {t}.0 0", f"{t}.0 -> update.1 0", f"update.1 -> {t}.1 0", f"{t}.1 -> update.0 1"),
    ]
    g = "reshard:grads>update"
    assert [arc for arc in arcs(events, "data", "transfer") if "grads" in arc] == [
        *(f"train.1 -> {g}.0 0", f"train.3 -> {g}.1 0", f"{g}.0 -> update.0 0", f"{g}.1 -> update.1 0"),
    ]
    assert arcs(events, "device")[-4:] == [
        f"{g}.0 -> {t}.0 0",
        f"{t}.0 -> {g}.1 0",
        f"{g}.1 -> {t}.1 0",
        f"{t}.1 -> {g}.0 1",
    ]


def _alternating() -> list[Slot]:
    names = ["old", "value", "train", "train", "update", "train", "train", "update"]
    return [Slot(name, names[:i].count(name)) for i, name in enumerate(names)]


def test_more_versions_let_the_update_go_ahead(make: Any) -> None:
    graph = make.graph(
        {"old": 1, "update": 1},
        [weights("master", 3)],
        [make.read("old", "master", 2), Access("update", "master", Mode.UPDATE)],
    )
    plan = laid_out(on_one(make, graph), old=Layout("trn", SPLIT))
    assert arcs(lower(graph, plan, FREE), "state", "keep", "transfer") == [
        "reshard:master>old.0 -> old.0 2",
        "old.0 -> reshard:master>old.0 1",
        "update.0 -> reshard:master>old.0 0",
        "reshard:master>old.0 -> update.0 3",
    ]


def resting(make: Any, lead: int = 0, *pairs: tuple[str, str]) -> tuple[Graph, Plan]:
    """``b`` and ``c`` use weights that rest on the host; ``a`` and ``d`` do not."""
    accesses = [make.read("b", "w", 1), Access("c", "w", Mode.UPDATE)]
    graph = make.graph({"a": 1, "b": 1, "c": 1, "d": 1}, [weights("w")], accesses)
    plan = make.plan(graph, trn=[Slot(name) for name in "abcd"])
    return graph, replace(plan, residencies=(Residency("w", Home.HOST, pairs or (("b", "c"),), lead),))


def test_loads_and_stores(make: Any) -> None:
    graph, plan = resting(make)
    events = lower(graph, plan, KnownCosts({"c": Duration(1.0, 0.5)}))
    assert arcs(events, "transfer") == [
        "load:w.0.0 -> b.0 0",
        "a.0 -> load:w.0.0 0",
        "c.0 -> store:w.0.0 0 +0.5s",
        "store:w.0.0 -> load:w.0.0 1",
    ]
    assert events.event_of["load:w.0.0"].resources == ("home:trn",)
    assert arcs(events, "device")[-2:] == ["load:w.0.0 -> store:w.0.0 0", "store:w.0.0 -> load:w.0.0 1"]


@pytest.mark.parametrize(
    ("lead", "anchor"), [(0, "a.0 -> load:w.0.0 0"), (1, "d.0 -> load:w.0.0 1"), (3, "b.0 -> load:w.0.0 1")]
)
def test_a_load_may_begin_after_an_earlier_firing(make: Any, lead: int, anchor: str) -> None:
    graph, plan = resting(make, lead)
    assert arcs(lower(graph, plan, FREE), "transfer")[1] == anchor


def test_what_did_not_change_is_given_up(make: Any) -> None:
    """Two times on the device: nothing is stored after the first, in which the weights are only read."""
    graph, plan = resting(make, 0, ("b", "b"), ("c", "d"))
    assert arcs(lower(graph, plan, FREE), "transfer") == [
        *("load:w.0.0 -> b.0 0", "a.0 -> load:w.0.0 0", "b.0 -> load:w.1.0 0"),
        *("load:w.1.0 -> c.0 0", "b.0 -> load:w.1.0 0", "d.0 -> store:w.1.0 0", "store:w.1.0 -> load:w.0.0 1"),
    ]


@pytest.mark.parametrize(
    ("lead", "load_s", "expected"),
    [
        (0, 0.0, 40),
        (0, 6.0, 46),  # in the way of b
        (1, 6.0, 40),  # while a runs, from the end of d on
        (1, 12.0, 42),  # a takes 10 s of it
        (2, 12.0, 40),  # from the end of c on there are 20 s, of which the store takes 5
        (2, 17.0, 42),
    ],
)
def test_overlap(make: Any, lead: int, load_s: float, expected: int) -> None:
    """Each stage takes 10 s and the store 5 s, which is hidden behind d."""
    graph, plan = resting(make, lead)
    costs = KnownCosts({name: Duration(10.0) for name in "abcd"}, {"load:w.0": load_s, "store:w.0": 5.0})
    period, _ = cycle_ratio(lower(graph, plan, costs))
    assert period == expected


def test_a_shift_on_the_way(make: Any) -> None:
    """The generator runs a step ahead; its weights are loaded for the step that it works on."""
    graph, plan = resting(make)
    slots = (Slot("a"), Slot("b", 0, 1), Slot("c"), Slot("d"))
    graph = replace(graph, accesses=(replace(graph.accesses[0], delay=2), graph.accesses[1]))
    graph = replace(graph, data=(weights("w", 2),))
    plan = replace(plan, graph=graph.digest(), order=(("trn", slots),))
    events = lower(graph, plan, FREE)
    assert arcs(events, "transfer") == [
        *("load:w.0.0 -> b.0 0", "a.0 -> load:w.0.0 1"),
        *("c.0 -> store:w.0.0 0", "store:w.0.0 -> load:w.0.0 2"),
    ]
    assert [events.event_of[e].shift for e in ("load:w.0.0", "store:w.0.0")] == [1, 0]


def test_several_servers_have_several_firings_under_way(make: Any) -> None:
    graph = make.graph({"reward": 1, "advantage": 1}, [], [])
    plan = make.plan(graph, host=[Slot("reward")], dev=[Slot("advantage")])
    plan = replace(plan, bindings=tuple(replace(b, servers=4 if b.stage == "reward" else 1) for b in plan.bindings))
    events = lower(graph, plan, KnownCosts({"reward": Duration(8.0)}))
    assert arcs(events, "device", "self") == [
        *("reward.0 -> reward.0 4", "advantage.0 -> advantage.0 1"),
        *("reward.0 -> reward.0 4", "advantage.0 -> advantage.0 1"),
    ]
    assert cycle_ratio(events)[0] == 2


def test_a_server_farm_is_as_wide_as_its_narrowest_stage(make: Any) -> None:
    graph = make.graph({"reward": 1, "judge": 1}, [], [])
    plan = make.plan(graph, host=[Slot("reward"), Slot("judge")])
    plan = replace(plan, bindings=tuple(replace(b, servers={"reward": 4, "judge": 2}[b.stage]) for b in plan.bindings))
    assert arcs(lower(graph, plan, FREE), "device") == ["reward.0 -> judge.0 0", "judge.0 -> reward.0 2"]


STAGES = ("old", "value", "train", "update")


@given(
    st.lists(st.sampled_from([None, SPLIT, (("layers", "pp"),)]), min_size=4, max_size=4),
    st.sampled_from([(1, 1), (2, 1), (4, 2), (2, 2)]),
    st.lists(st.integers(0, 9), min_size=8, max_size=8),
    st.sampled_from([(), (("old", "update"),), (("old", "value"), ("train", "update"))]),
    st.integers(0, 3),
)
def test_with_any_transfers_a_plan_stays_alive_and_plays_at_its_period(
    make: Any, shards: list[Any], rates: tuple[int, int], seconds: list[int], pairs: Any, lead: int
) -> None:
    graph = learning(make, *rates)
    layouts = {stage: Layout("trn", shard) for stage, shard in zip(STAGES, shards, strict=True) if shard}
    plan = laid_out(on_one(make, graph), **layouts)
    plan = replace(
        plan, order=(("trn", tuple(_in_turn(rates))),), residencies=(Residency("master", Home.HOST, pairs, lead),)
    )
    durations = {stage: Duration(float(s)) for stage, s in zip(STAGES, seconds, strict=False)}
    events = lower(graph, plan, FREE)
    moves = [event.stage for event in events.events if ":" in event.stage]
    costs = KnownCosts(durations, {name: float(seconds[4 + i % 4]) for i, name in enumerate(moves)})
    events = lower(graph, plan, costs)
    assert tokenless_cycle(events) is None
    assert beyond_cut(events) == []
    period, _ = cycle_ratio(events)
    ends_s = [firing.end_s for firing in simulate(events, 30) if firing.event == "update.0"]
    assert Fraction(ends_s[-1] - ends_s[-13]) == 12 * period


def _in_turn(rates: tuple[int, int]) -> list[Slot]:
    trains, updates = rates
    slots = [Slot("old"), Slot("value")]
    for n in range(updates):
        slots += [Slot("train", j) for j in range(n * trains // updates, (n + 1) * trains // updates)]
        slots.append(Slot("update", n))
    return slots
