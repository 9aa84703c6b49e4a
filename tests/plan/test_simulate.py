"""The virtual clock."""

from __future__ import annotations

from typing import Any

import pytest

from rpeg.errors import Stalled
from rpeg.plan.events import Arc, Event, EventGraph
from rpeg.plan.play import Firing
from rpeg.plan.simulate import SimulatedFiring, simulate


def pipeline(latency_s: float = 0.0) -> EventGraph:
    """Generation of 3 s and training of 2 s, on a device each; one batch may wait."""
    events = (Event("gen", "gen", 0, 3.0, ("roll",)), Event("train", "train", 0, 2.0, ("trn",)))
    arcs = (
        Arc("gen", "gen", 1, 0.0, "self"),
        Arc("train", "train", 1, 0.0, "self"),
        Arc("gen", "train", 0, latency_s, "data:rollouts"),
        Arc("train", "gen", 2, 0.0, "room:rollouts"),
    )
    return EventGraph(events, arcs)


def test_a_pipeline_by_hand() -> None:
    assert simulate(pipeline(), 3) == [
        SimulatedFiring("gen", 0, 0.0, 3.0),
        SimulatedFiring("gen", 1, 3.0, 6.0),
        SimulatedFiring("train", 0, 3.0, 5.0),
        SimulatedFiring("gen", 2, 6.0, 9.0),
        SimulatedFiring("train", 1, 6.0, 8.0),
        SimulatedFiring("train", 2, 9.0, 11.0),
    ]


def test_latency_delays_the_reader_but_not_the_device() -> None:
    firings = {(f.event, f.step): (f.start_s, f.end_s) for f in simulate(pipeline(latency_s=4.0), 3)}
    assert [firings["gen", step] for step in range(3)] == [(0.0, 3.0), (3.0, 6.0), (9.0, 12.0)]
    assert [firings["train", step] for step in range(3)] == [(7.0, 9.0), (10.0, 12.0), (16.0, 18.0)]


def test_durations_may_be_drawn() -> None:
    asked: list[tuple[Firing, float]] = []

    def draw(firing: Firing, expected_s: float) -> float:
        asked.append((firing, expected_s))
        return expected_s * (10 if firing == Firing("gen", 1) else 1)

    ends_s = {(f.event, f.step): f.end_s for f in simulate(pipeline(), 3, draw)}
    assert ends_s == {
        **{("gen", 0): 3.0, ("gen", 1): 33.0, ("gen", 2): 36.0},
        **{("train", 0): 5.0, ("train", 1): 35.0, ("train", 2): 38.0},
    }
    assert (Firing("train", 0), 2.0) in asked
    assert len(asked) == 6


def test_events_that_run_ahead_do_so_to_the_end() -> None:
    events = (Event("gen", "gen", 0, 3.0, ("roll",), shift=2), Event("train", "train", 0, 2.0, ("trn",)))
    arcs = (
        Arc("gen", "gen", 1, 0.0, "self"),
        Arc("train", "train", 1, 0.0, "self"),
        Arc("gen", "train", 0, 0.0, "data"),
    )
    firings = simulate(EventGraph(events, arcs), 1)
    assert [(f.event, f.step) for f in firings] == [("gen", 0), ("gen", 1), ("train", 0), ("gen", 2)]


def test_the_order_of_starting_is_the_order_of_time(make: Any) -> None:
    for seed in range(50):
        starts_s = [firing.start_s for firing in simulate(make.events(seed, (0, 1, 2)), 20)]
        assert starts_s == sorted(starts_s)


def test_the_same_graph_plays_the_same(make: Any) -> None:
    graph = make.events(7, (0, 1))
    assert simulate(graph, 30) == simulate(graph, 30)


def test_a_dead_graph_stalls() -> None:
    graph = EventGraph((Event("a", "a", 0, 1.0, ("r",)),), (Arc("a", "a", 0, 0.0, "self"),))
    with pytest.raises(Stalled, match=r"a of step 1: a \(self\)"):
        simulate(graph, 1)
