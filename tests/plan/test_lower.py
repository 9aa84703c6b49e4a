"""The lowering table, row by row, on graphs small enough to write all arcs down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rpeg.errors import PlanError
from rpeg.graph.access import Access, Bound, Mode, Refresh
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.plan.costs import Duration, KnownCosts
from rpeg.plan.events import Arc, EventGraph
from rpeg.plan.lower import lower
from rpeg.plan.plan import Plan, Slot

FREE = KnownCosts({})
TRAINING = {"train": StageKind.TRAIN, "update": StageKind.UPDATE}


def arcs(events: EventGraph, *reasons: str) -> list[str]:
    """Return the arcs of these kinds as text: ``a.0 -> b.0 1`` and the latency where there is one."""
    wanted = [arc for arc in events.arcs if arc.reason.split(":")[0] in reasons]
    return [f"{a.src} -> {a.dst} {a.tokens}" + (f" +{a.latency_s:g}s" if a.latency_s else "") for a in wanted]


def lowered(make: Any, graph: Graph, costs: KnownCosts = FREE, plan: Plan | None = None) -> EventGraph:
    return lower(graph, plan or make.alone(graph), costs)


@pytest.mark.parametrize(
    ("made", "used", "expected"),
    [
        (1, 1, ["w.0 -> r.0 1"]),
        (2, 4, ["w.0 -> r.0 1", "w.0 -> r.1 1", "w.1 -> r.2 1", "w.1 -> r.3 1"]),
        (4, 2, ["w.1 -> r.0 1", "w.3 -> r.1 1"]),
        (4, 1, ["w.3 -> r.0 1"]),
        (1, 2, ["w.0 -> r.0 1", "w.0 -> r.1 1"]),
        (3, 2, ["w.1 -> r.0 1", "w.2 -> r.1 1"]),
    ],
)
def test_a_stream_reaches_each_firing_with_the_last_rows_it_needs(
    make: Any, made: int, used: int, expected: list[str]
) -> None:
    graph = make.graph({"w": made, "r": used}, [make.stream("x")], [make.write("w", "x"), make.read("r", "x", 1)])
    assert arcs(lowered(make, graph), "data") == expected


def test_a_tail_delays_those_who_need_the_last_rows(make: Any) -> None:
    graph = make.graph({"w": 2, "r": 4}, [make.stream("x")], [make.write("w", "x"), make.read("r", "x")])
    found = arcs(lowered(make, graph, KnownCosts({"w": Duration(26.0, 14.0)})), "data")
    assert found == ["w.0 -> r.0 0", "w.0 -> r.1 0", "w.1 -> r.2 0 +14s", "w.1 -> r.3 0 +14s"]


def test_a_bounded_queue_has_room_for_its_batches(make: Any) -> None:
    accesses = [make.write("w", "x"), make.read("r", "x", 1), make.read("s", "x")]
    graph = make.graph({"w": 2, "r": 4, "s": 1}, [make.stream("x", versions=3)], accesses)
    assert arcs(lowered(make, graph), "room") == ["r.3 -> w.0 2", "s.0 -> w.0 3"]
    found = arcs(lowered(make, graph, KnownCosts({"s": Duration(1.0, 5.0)})), "room")
    assert found == ["r.3 -> w.0 2", "s.0 -> w.0 3 +5s"]


def test_an_unbounded_queue_needs_no_room(make: Any) -> None:
    graph = make.graph({"w": 1, "r": 1}, [make.stream("x")], [make.write("w", "x"), make.read("r", "x")])
    assert arcs(lowered(make, graph), "room") == []


def test_columns_that_are_not_read_are_not_waited_for(make: Any) -> None:
    accesses = [make.write("w", "x", "a"), make.write("v", "x", "b"), make.read("r", "x", 0, "b")]
    graph = make.graph({"w": 1, "v": 1, "r": 1}, [make.stream("x", versions=1)], accesses)
    assert arcs(lowered(make, graph), "data", "room") == ["v.0 -> r.0 0", "r.0 -> v.0 1"]


@pytest.mark.parametrize(("delay", "versions", "kept"), [(0, 1, 1), (1, 1, 0), (1, 3, 2), (3, 3, 0)])
def test_a_state_is_read_after_its_update_and_not_overwritten_before(
    make: Any, delay: int, versions: int, kept: int
) -> None:
    graph = make.graph(
        {"u": 2, "r": 3}, [make.state("x", versions)], [Access("u", "x", Mode.UPDATE), make.read("r", "x", delay)]
    )
    events = lowered(make, graph)
    assert arcs(events, "state", "keep") == [f"u.1 -> r.0 {delay}", f"r.2 -> u.0 {kept}"]
    assert {arc.reason for arc in events.arcs} >= {"state:x", "keep:x"}


def test_versions_are_kept_for_exact_readers_only(make: Any) -> None:
    read = replace(make.read("r", "x", 1), bound=Bound.AT_LEAST)
    graph = make.graph({"u": 1, "r": 1}, [make.state("x")], [Access("u", "x", Mode.UPDATE), read])
    assert arcs(lowered(make, graph), "state", "keep") == ["u.0 -> r.0 1"]


def test_keeping_too_few_versions_costs_tokens_and_may_be_legal(make: Any) -> None:
    """Two versions kept and three steps back: the reader has to be a step ahead of the writer, which it is here."""
    accesses = [Access("u", "x", Mode.UPDATE), make.read("r", "x", 3)]
    graph = make.graph({"u": 1, "r": 1}, [make.state("x", 2)], accesses)
    plan = make.plan(graph, u=[Slot("u")], r=[Slot("r", 0, 1)])
    assert arcs(lower(graph, plan, FREE), "state", "keep") == ["u.0 -> r.0 3", "r.0 -> u.0 -1"]


def test_tails_hold_on_to_weights_and_put_them_off(make: Any) -> None:
    graph = make.graph({"u": 1, "r": 1}, [make.state("x")], [Access("u", "x", Mode.UPDATE), make.read("r", "x", 1)])
    costs = KnownCosts({"u": Duration(1.0, 2.0), "r": Duration(26.0, 14.0)})
    assert arcs(lowered(make, graph, costs), "state", "keep") == ["u.0 -> r.0 1 +2s", "r.0 -> u.0 0 +14s"]


def learning(make: Any, trains: int, updates: int, kind: StageKind = StageKind.TRAIN) -> Graph:
    return make.graph(
        {"train": trains, "update": updates},
        [make.stream("grads"), make.state("weights")],
        [
            make.read("train", "weights", 1),
            make.write("train", "grads"),
            make.read("update", "grads"),
            Access("update", "weights", Mode.UPDATE),
        ],
        **{"train": kind, "update": StageKind.UPDATE},
    )


def test_optimizer_mini_batches_see_the_update_before_them(make: Any) -> None:
    events = lowered(make, learning(make, 2, 2))
    assert arcs(events, "data") == ["train.0 -> update.0 0", "train.1 -> update.1 0"]
    assert arcs(events, "state", "keep") == [
        *("update.1 -> train.0 1", "train.0 -> update.0 0"),
        *("update.0 -> train.1 0", "train.1 -> update.1 0"),
    ]


def test_optimizer_mini_batches_may_arrive_in_parts(make: Any) -> None:
    events = lowered(make, learning(make, 4, 2))
    assert arcs(events, "data") == ["train.1 -> update.0 0", "train.3 -> update.1 0"]
    assert arcs(events, "state", "keep") == [
        *("update.1 -> train.0 1", "train.1 -> update.0 0"),
        *("update.0 -> train.2 0", "train.3 -> update.1 0"),
    ]


def test_gradients_of_one_update_may_arrive_in_parts(make: Any) -> None:
    events = lowered(make, learning(make, 4, 1))
    assert arcs(events, "state", "keep") == ["update.0 -> train.0 1", "train.3 -> update.0 0"]


def test_only_training_follows_the_updates_within_a_step(make: Any) -> None:
    """A pass that recomputes log-probabilities in two parts sees the weights before the first update in both."""
    events = lowered(make, learning(make, 2, 2, StageKind.FORWARD))
    assert arcs(events, "state", "keep") == ["update.1 -> train.0 1", "train.1 -> update.0 0"]


def test_parts_that_do_not_divide_are_one_mini_batch(make: Any) -> None:
    graph = learning(make, 3, 2)
    plan = make.plan(graph, a=[Slot("train", j) for j in range(3)], b=[Slot("update", j) for j in range(2)])
    found = arcs(lower(graph, plan, FREE), "state", "keep")
    assert found == ["update.1 -> train.0 1", "train.2 -> update.0 0"]


def test_the_order_of_a_resource_is_a_ring(make: Any) -> None:
    graph = make.graph({"a": 2, "b": 1}, [], [])
    events = lower(graph, make.plan(graph, dev=[Slot("a", 0), Slot("b"), Slot("a", 1)]), FREE)
    assert arcs(events, "device") == ["a.0 -> b.0 0", "b.0 -> a.1 0", "a.1 -> a.0 1"]
    assert arcs(events, "self") == ["a.1 -> a.0 1", "b.0 -> b.0 1"]
    assert {arc.reason for arc in events.arcs} == {"device:dev", "self"}


def test_shifts_are_tokens_of_the_order(make: Any) -> None:
    graph = make.graph({"gen": 1, "pull": 1}, [], [])
    events = lower(graph, make.plan(graph, roll=[Slot("gen", 0, 2), Slot("pull")]), FREE)
    assert arcs(events, "device") == ["gen.0 -> pull.0 -2", "pull.0 -> gen.0 3"]
    assert [(event.id, event.shift) for event in events.events] == [("gen.0", 2), ("pull.0", 0)]


def test_a_resource_of_one_firing_and_one_of_none(make: Any) -> None:
    graph = make.graph({"a": 1}, [], [])
    plan = replace(make.plan(graph, dev=[Slot("a")]), order=(("dev", (Slot("a"),)), ("idle", ())))
    assert arcs(lower(graph, plan, FREE), "device") == ["a.0 -> a.0 1"]


def test_a_firing_in_two_orders_is_one_event_on_both(make: Any) -> None:
    graph = make.graph({"gen": 1, "train": 1, "publish": 1}, [], [])
    plan = make.plan(graph, trn=[Slot("train"), Slot("publish")], roll=[Slot("gen", 0, 1), Slot("publish")])
    events = lower(graph, plan, KnownCosts({"publish": Duration(2.0)}))
    assert [(event.id, event.resources, event.occupancy_s) for event in events.events] == [
        ("gen.0", ("roll",), 0.0),
        ("train.0", ("trn",), 0.0),
        ("publish.0", ("trn", "roll"), 2.0),
    ]
    assert arcs(events, "device") == [
        *("train.0 -> publish.0 0", "publish.0 -> train.0 1"),
        *("gen.0 -> publish.0 -1", "publish.0 -> gen.0 2"),
    ]


def sampling(make: Any, refresh: Refresh, delay: int = 1) -> Graph:
    read = replace(make.read("gen", "x", delay), bound=Bound.AT_LEAST, refresh=refresh)
    return make.graph({"gen": 2, "pull": 1, "eval": 1}, [make.state("x")], [read, make.write("pull", "x")])


@pytest.mark.parametrize("refresh", [Refresh.STEP, Refresh.REQUEST])
def test_weights_are_not_replaced_under_samples_that_are_still_running(make: Any, refresh: Refresh) -> None:
    graph = sampling(make, refresh, delay=2)
    costs = KnownCosts({"gen": Duration(26.0, 14.0), "eval": Duration(1.0)})
    order = [Slot("gen", 0, 1), Slot("gen", 1, 1), Slot("eval"), Slot("pull")]
    assert arcs(lower(graph, make.plan(graph, roll=order), costs), "drain") == ["gen.1 -> pull.0 -1 +14s"]
    order = [Slot("pull"), Slot("gen", 0), Slot("gen", 1), Slot("eval")]
    assert arcs(lower(graph, make.plan(graph, roll=order), costs), "drain") == ["gen.1 -> pull.0 1 +14s"]


def test_weights_replaced_in_flight_do_not_wait_for_the_tail(make: Any) -> None:
    graph = sampling(make, Refresh.TOKEN)
    plan = make.plan(graph, roll=[Slot("gen", 0), Slot("gen", 1), Slot("eval"), Slot("pull")])
    assert arcs(lower(graph, plan, KnownCosts({"gen": Duration(26.0, 14.0)})), "drain") == []


def test_without_a_tail_nothing_drains(make: Any) -> None:
    graph = sampling(make, Refresh.STEP)
    plan = make.plan(graph, roll=[Slot("gen", 0), Slot("gen", 1), Slot("eval"), Slot("pull")])
    assert arcs(lower(graph, plan, KnownCosts({"gen": Duration(26.0)})), "drain") == []


def test_events_carry_their_price(make: Any) -> None:
    graph = make.graph({"a": 2}, [], [])
    events = lower(graph, make.alone(graph), KnownCosts({"a": Duration(1.5)})).events
    assert [(e.id, e.stage, e.firing, e.occupancy_s, e.resources) for e in events] == [
        ("a.0", "a", 0, 1.5, ("a",)),
        ("a.1", "a", 1, 1.5, ("a",)),
    ]


def test_external_data_is_always_there(make: Any) -> None:
    graph = make.graph({"a": 1}, [], [])
    assert lowered(make, graph).arcs == (Arc("a.0", "a.0", 1, 0.0, "device:a"), Arc("a.0", "a.0", 1, 0.0, "self"))


def test_an_order_against_the_data_is_dead(make: Any) -> None:
    graph = make.graph({"w": 1, "r": 1}, [make.stream("x")], [make.write("w", "x"), make.read("r", "x")])
    with pytest.raises(PlanError) as caught:
        lower(graph, make.plan(graph, dev=[Slot("r"), Slot("w")]), FREE)
    text = str(caught.value)
    assert "0 tokens on the cycle" in text
    assert "data:x" in text
    assert "device:dev" in text


def test_a_shift_that_the_delays_do_not_allow_is_refused(make: Any) -> None:
    graph = make.graph({"u": 1, "r": 1}, [make.state("x")], [Access("u", "x", Mode.UPDATE), make.read("r", "x", 1)])
    with pytest.raises(PlanError) as caught:
        lower(graph, make.plan(graph, a=[Slot("u")], b=[Slot("r", 0, 2)]), FREE)
    assert str(caught.value) == (
        "event graph: 1 fault\n  1. u.0 -> r.0: 1 tokens (state:x) do not let r.0 run 2 steps ahead; "
        "lower its shift, or raise the delay or the room"
    )


def test_a_queue_without_room_for_the_shift_is_refused(make: Any) -> None:
    graph = make.graph({"w": 1, "r": 1}, [make.stream("x", versions=1)], [make.write("w", "x"), make.read("r", "x")])
    with pytest.raises(PlanError, match=r"1 tokens \(room:x\) do not let w\.0 run 2 steps ahead"):
        lower(graph, make.plan(graph, a=[Slot("w", 0, 2)], b=[Slot("r")]), FREE)
