"""Lineage, critical cycle, busy share and memory of the worked example of the design, and of graphs without them."""

from __future__ import annotations

from dataclasses import replace

from rpeg.algorithms.grpo import grpo
from rpeg.graph.contract import Enforce
from rpeg.graph.graph import Graph
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import Duration, KnownCosts
from rpeg.plan.events import Arc, Event, EventGraph
from rpeg.plan.lower import lower
from rpeg.plan.timeline import Peak, Resident
from rpeg.view.overlays import Bars, Overlay, busy_share, critical_cycle, lineage, memory_at_peak

SECONDS = {"gen": 40.0, "train": 20.0, "update": 1.0, "push": 1.0, "pull": 2.0, "reward": 4.0}


def events_of(graph: Graph) -> EventGraph:
    return lower(graph, bind_local(graph), KnownCosts({name: Duration(s) for name, s in SECONDS.items()}))


def test_the_lineage_of_samples() -> None:
    found = lineage(grpo(8, 8, 1))
    assert found is not None
    assert ("pull", "actor.rollout", "gen") in found.edges
    assert found.stages >= {"gen", "train", "update", "push", "pull"}
    assert found.parts() > found.stages
    assert {("pull", "actor.rollout"), ("actor.rollout", "gen"), ("gen", "rollouts")} <= found.links()
    assert ("update", "actor.moments") not in found.links()
    assert found.text.startswith("Samples of gen are at most 1 version old: 2 steps back along gen → rollouts → ")
    assert found.text.endswith(" → push → actor.staged → pull → actor.rollout → gen, minus 1.")


def test_samples_that_are_carried_over_are_older() -> None:
    found = lineage(grpo(8, 8, 1, max_carry=2))
    assert found is not None
    assert found.text.startswith("Samples of gen are at most 3 versions old: 2 steps back along ")
    assert found.text.endswith(", minus 1, plus 2 carried over.")
    counted = lineage(grpo(8, 8, 1, max_carry=2, enforce=Enforce.COUNT))
    assert counted is not None
    assert counted.text.startswith("Samples of gen are at most 3 versions old on average: 2 steps back along ")


def test_a_graph_that_trains_on_nothing_has_no_lineage() -> None:
    graph = grpo(8, 8)
    assert lineage(replace(graph, accesses=tuple(a for a in graph.accesses if a.stage != "train"))) is None


def test_the_critical_cycle_of_the_disaggregated_example() -> None:
    found = critical_cycle(events_of(grpo(8, 8, 1)))
    assert found == Overlay(
        frozenset({("pull", "actor.rollout", "gen")}),
        (("gen", "pull", "device:roll"),),
        frozenset({"gen", "pull"}),
        "A step takes 42 s. The cycle that sets it, one step around: gen → pull (next on roll) → gen (actor.rollout).",
    )


def event(name: str, occupancy_s: float) -> Event:
    return Event(f"{name}.0", name, 0, occupancy_s, ("r",))


def test_what_waits_for_room_is_marked_on_the_way_of_the_data() -> None:
    arcs = (Arc("a.0", "b.0", 0, 0.0, "data:x"), Arc("b.0", "a.0", 2, 0.0, "room:x"))
    found = critical_cycle(EventGraph((event("a", 3.0), event("b", 5.0)), arcs))
    assert (found.edges, found.jumps) == (frozenset({("a", "x", "b")}), ())
    assert found.text == ("A step takes 4.00 s. The cycle that sets it, 2 steps around: a → b (x) → a (room for x).")


def test_one_stage_alone_and_no_time_at_all() -> None:
    alone = critical_cycle(EventGraph((event("a", 3.0),), (Arc("a.0", "a.0", 1, 0.0, "self"),)))
    assert (alone.stages, alone.edges, alone.jumps) == (frozenset({"a"}), frozenset(), ())
    assert alone.text == "A step takes 3.00 s. The cycle that sets it, one step around: a → a (one at a time)."
    idle = EventGraph((event("a", 0.0),), (Arc("a.0", "a.0", 1, 0.0, "self"),))
    assert critical_cycle(idle).text == "Nothing takes any time."
    assert busy_share(idle) is None


def test_busy_shares() -> None:
    found = busy_share(events_of(grpo(8, 8, 1)))
    assert found is not None
    assert found.of["gen"] == (40 / 42, "95.2%")
    assert found.of["train"] == (20 / 42, "47.6%")
    assert found.text == "Busy: roll 100.0%, host 9.5%, trn 52.4%."


def test_memory_at_the_peak_of_the_fullest_resource() -> None:
    held = (Resident("actor.master", 6_000, 0, 9), Resident("actor.master for ref", 3_000, 0, 9))
    peaks = {
        "trn": Peak(2.0, 10_000, (*held, Resident("train (working)", 1_000, 1, 3))),
        "roll": Peak(0.0, 500, (Resident("rollouts", 500, 0, 1),)),
        "host": Peak(0.0, 0, ()),
    }
    assert memory_at_peak(peaks) == Bars(
        {"actor.master": (0.9, "9.00 kB"), "train": (0.1, "1.00 kB")},
        "At most 10.0 kB on each device of trn: actor.master 6.00 kB, actor.master for ref 3.00 kB, "
        "train (working) 1.00 kB. At most 500 B on each device of roll: rollouts 500 B. "
        "At most 0 B on each device of host: nothing.",
    )
    assert memory_at_peak({"host": peaks["host"]}) is None
    many = Peak(0.0, 8, tuple(Resident(f"d{i}", 1, 0, 1) for i in range(8)))
    found = memory_at_peak({"all": many})
    assert found is not None
    assert found.text.endswith("d5 1 B and 2 more.")
