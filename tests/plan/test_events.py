"""The period is the largest cycle ratio: by hand, by counting all cycles, and by playing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.algorithms.ppo import ppo
from rpeg.errors import PlanError
from rpeg.graph.dim import Dim
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import Duration, KnownCosts
from rpeg.plan.events import (
    Arc,
    Event,
    EventGraph,
    beyond_cut,
    cycle_ratio,
    dead_cycle,
    tokenless_cycle,
    unreachable_cut,
)
from rpeg.plan.lower import lower
from rpeg.plan.simulate import simulate


def event(name: str, occupancy_s: float, shift: int = 0) -> Event:
    return Event(name, name, 0, occupancy_s, ("r",), shift)


def simple_cycles(graph: EventGraph) -> Iterator[list[Arc]]:
    """Yield every cycle that visits no event twice, each from its event of the lowest number."""
    number = {event.id: i for i, event in enumerate(graph.events)}

    def extend(path: list[Arc], seen: frozenset[str]) -> Iterator[list[Arc]]:
        for arc in (graph.arcs[i] for i in graph.arcs_out_of[path[-1].dst]):
            if arc.dst == path[0].src:
                yield [*path, arc]
            elif arc.dst not in seen and number[arc.dst] > number[path[0].src]:
                yield from extend([*path, arc], seen | {arc.dst})

    for arc in graph.arcs:
        if arc.src == arc.dst:
            yield [arc]
        elif number[arc.dst] > number[arc.src]:
            yield from extend([arc], frozenset({arc.src, arc.dst}))


def ratio(graph: EventGraph, cycle: list[Arc]) -> Fraction:
    length = sum(Fraction(graph.event_of[arc.src].occupancy_s) + Fraction(arc.latency_s) for arc in cycle)
    return length / sum(arc.tokens for arc in cycle)


def test_a_cycle_by_hand() -> None:
    arcs = (Arc("a", "b", 0, 0.5, "data:x"), Arc("b", "a", 2, 0.0, "state:y"), Arc("a", "a", 1, 0.0, "self"))
    graph = EventGraph((event("a", 3.0), event("b", 4.0)), arcs)
    assert cycle_ratio(graph) == (Fraction(15, 4), [arcs[0], arcs[1]])


def test_the_slowest_event_alone_may_be_critical() -> None:
    arcs = (Arc("a", "b", 0, 0.0, "data:x"), Arc("b", "a", 5, 0.0, "state:y"), Arc("a", "a", 1, 0.0, "self"))
    assert cycle_ratio(EventGraph((event("a", 3.0), event("b", 4.0)), arcs)) == (3, [arcs[2]])


def test_what_takes_no_time_has_no_critical_cycle() -> None:
    assert cycle_ratio(EventGraph((event("a", 0.0),), (Arc("a", "a", 1, 0.0, "self"),))) == (0, [])
    assert cycle_ratio(EventGraph((event("a", 1.0),), ())) == (0, [])


def test_negative_tokens_count_along_the_cycle() -> None:
    arcs = (Arc("gen", "pull", -2, 0.0, "device:roll"), Arc("pull", "gen", 3, 0.0, "state:w"))
    assert cycle_ratio(EventGraph((event("gen", 40.0), event("pull", 2.0)), arcs)) == (42, list(arcs))


def test_seconds_are_exact() -> None:
    period, _ = cycle_ratio(EventGraph((event("a", 0.1),), (Arc("a", "a", 3, 0.2, "self"),)))
    assert period == (Fraction(0.1) + Fraction(0.2)) / 3


NUM_RANDOM_GRAPHS = 1000


def test_seconds_of_every_size_are_exact_on_random_graphs(make: Any) -> None:
    for seed in range(100):
        rng, graph = random.Random(seed), make.events(seed, shifts=(0, 0, 1, 3))
        events = tuple(replace(e, occupancy_s=rng.random() * 10.0 ** rng.randint(-9, 4)) for e in graph.events)
        arcs = tuple(replace(a, latency_s=rng.choice([0.0, rng.random()])) for a in graph.arcs)
        graph = EventGraph(events, arcs)
        assert cycle_ratio(graph)[0] == max(ratio(graph, cycle) for cycle in simple_cycles(graph)), seed


def test_the_largest_ratio_of_all_cycles_on_random_graphs(make: Any) -> None:
    for seed in range(NUM_RANDOM_GRAPHS):
        graph = make.events(seed, shifts=(0, 0, 1, 3))
        period, critical = cycle_ratio(graph)
        assert period == max(ratio(graph, cycle) for cycle in simple_cycles(graph)), seed
        if period:
            assert ratio(graph, critical) == period
            assert [arc.dst for arc in critical] == [arc.src for arc in [*critical[1:], critical[0]]]
            assert len({arc.src for arc in critical}) == len(critical)


def test_the_cycle_ratio_costs_a_fraction_of_playing_long_enough() -> None:
    """Measured 120 times less than 240 steps of PPO in 4 micro-batches; a tenth of that is asked for."""
    graph = ppo(64)
    streamed = {"gen", "old_logp", "value", "reward", "ref", "gae", "train_actor", "train_critic"}
    stages = (replace(s, firings=Dim("4")) if s.name in streamed else s for s in graph.stages)
    graph = replace(graph, stages=tuple(stages))
    costs = KnownCosts({stage.name: Duration(0.37 * (i + 1)) for i, stage in enumerate(graph.stages)})
    events = lower(graph, bind_local(graph), costs)
    assert len(events.events) == 36

    def processor_s(work: Callable[[], object]) -> float:
        start_s = process_time()
        work()
        return process_time() - start_s

    ratio_s = min(processor_s(lambda: cycle_ratio(EventGraph(events.events, events.arcs))) for _ in range(9))
    assert min(processor_s(lambda: simulate(events, 240)) for _ in range(3)) > 12 * ratio_s


def settles(ends_s: list[float], period: Fraction) -> bool:
    """Whether some q steps take exactly q periods, again and again to the end."""
    last = len(ends_s) - 1
    return any(
        all(Fraction(ends_s[t]) - Fraction(ends_s[t - q]) == q * period for t in range(last - 2 * q, last + 1))
        for q in range(1, 25)
    )


def test_the_period_that_playing_settles_to_on_random_graphs(make: Any) -> None:
    for seed in range(NUM_RANDOM_GRAPHS):
        graph = make.events(seed, shifts=(0, 0, 1, 3))
        steps, ends_s = 120, [0.0] * 124
        for firing in simulate(graph, steps):
            ends_s[firing.step] = max(ends_s[firing.step], firing.end_s)
        assert settles(ends_s[:steps], cycle_ratio(graph)[0]), seed


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 3))
def test_more_tokens_are_never_slower(make: Any, seed: int, pick: int, more: int) -> None:
    graph = make.events(seed)
    index = pick % len(graph.arcs)
    arcs = list(graph.arcs)
    arcs[index] = replace(arcs[index], tokens=arcs[index].tokens + more)
    assert cycle_ratio(EventGraph(graph.events, tuple(arcs)))[0] <= cycle_ratio(graph)[0]


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 9))
def test_longer_work_is_never_faster(make: Any, seed: int, pick: int, longer_s: int) -> None:
    graph = make.events(seed)
    index = pick % len(graph.events)
    events = list(graph.events)
    events[index] = replace(events[index], occupancy_s=events[index].occupancy_s + longer_s)
    assert cycle_ratio(EventGraph(tuple(events), graph.arcs))[0] >= cycle_ratio(graph)[0]


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 9))
def test_longer_latency_is_never_faster(make: Any, seed: int, pick: int, longer_s: int) -> None:
    graph = make.events(seed)
    index = pick % len(graph.arcs)
    arcs = list(graph.arcs)
    arcs[index] = replace(arcs[index], latency_s=arcs[index].latency_s + longer_s)
    assert cycle_ratio(EventGraph(graph.events, tuple(arcs)))[0] >= cycle_ratio(graph)[0]


@given(st.integers(0, 5000), st.lists(st.integers(0, 4), min_size=6, max_size=6))
def test_shifting_events_changes_neither_period_nor_liveness(make: Any, seed: int, shifts: list[int]) -> None:
    graph = make.events(seed)
    shift = dict(zip((each.id for each in graph.events), shifts, strict=False))
    arcs = tuple(replace(a, tokens=a.tokens + shift[a.dst] - shift[a.src]) for a in graph.arcs)
    shifted = EventGraph(tuple(replace(e, shift=shift[e.id]) for e in graph.events), arcs)
    assert cycle_ratio(shifted)[0] == cycle_ratio(graph)[0]
    assert tokenless_cycle(shifted) is None
    assert beyond_cut(shifted) == []


def test_live_graphs_are_live_and_dead_ones_dead(make: Any) -> None:
    found = 0
    for seed in range(300):
        graph = make.events(seed)
        assert tokenless_cycle(graph) is None
        rng = random.Random(seed)
        index = rng.randrange(len(graph.arcs))
        arcs = list(graph.arcs)
        arcs[index] = replace(arcs[index], tokens=arcs[index].tokens - rng.randint(1, 3))
        changed = EventGraph(graph.events, tuple(arcs))
        is_dead = any(sum(arc.tokens for arc in cycle) <= 0 for cycle in simple_cycles(changed))
        cycle = tokenless_cycle(changed)
        assert (cycle is not None) is is_dead
        if cycle is not None:
            found += 1
            assert sum(arc.tokens for arc in cycle) <= 0
            assert [arc.dst for arc in cycle] == [arc.src for arc in [*cycle[1:], cycle[0]]]
    assert found > 50


def test_a_dead_cycle_without_any_length_is_seen_by_the_liveness_check_only() -> None:
    arcs = (Arc("a", "b", 0, 0.0, "data:x"), Arc("b", "a", 0, 0.0, "data:y"))
    graph = EventGraph((event("a", 0.0), event("b", 0.0)), arcs)
    assert cycle_ratio(graph) == (0, [])
    assert tokenless_cycle(graph) is not None


def test_the_message_of_a_dead_cycle() -> None:
    arcs = (Arc("gen.0", "pull.0", -2, 0.0, "device:roll"), Arc("pull.0", "gen.0", 2, 0.0, "state:actor.rollout"))
    graph = EventGraph((event("gen.0", 40.0), event("pull.0", 2.0)), arcs)
    with pytest.raises(PlanError) as caught:
        cycle_ratio(graph)
    assert str(caught.value) == (
        "event graph: 1 fault\n"
        "  1. gen.0 -> pull.0 -> gen.0: 0 tokens on the cycle (device:roll, state:actor.rollout), so it never starts; "
        "shift the order or keep more versions"
    )
    assert str(dead_cycle(arcs)) == str(caught.value)


def test_a_cut_that_cannot_be_reached() -> None:
    arcs = (Arc("a", "b", 1, 0.0, "data:x"), Arc("b", "a", 2, 0.0, "room:x"), Arc("a", "a", 1, 0.0, "self"))
    graph = EventGraph((event("a", 1.0), event("b", 1.0, shift=2)), arcs)
    assert tokenless_cycle(graph) is None
    assert beyond_cut(graph) == [arcs[0]]
    assert str(unreachable_cut(graph, [arcs[0]])) == (
        "event graph: 1 fault\n  1. a -> b: 1 tokens (data:x) do not let b run 2 steps ahead; "
        "lower its shift, or raise the delay or the room"
    )


def test_the_order_of_arcs_in_the_index(make: Any) -> None:
    """Arcs without tokens run forward, counted at a cut: an event that runs ahead has taken tokens already."""
    arcs = (Arc("b", "a", 2, 0.0, "state:y"), Arc("a", "b", -1, 0.0, "data:x"), Arc("a", "a", 1, 0.0, "self"))
    index = EventGraph((event("a", 1.0, shift=1), event("b", 1.0)), arcs).index
    assert index.arcs == [arcs[1], arcs[2], arcs[0]]
    assert index.ends == [(0, 1), (0, 0), (1, 0)]
    assert index.tokens == [0, 1, 1]
    assert index.is_live
    assert sum(make.events(seed, shifts=(0, 0, 1, 3)).index.is_live for seed in range(50)) == 50


def test_a_live_graph_with_negative_tokens_at_a_cut_needs_a_look() -> None:
    arcs = (Arc("a", "b", -1, 0.0, "data:x"), Arc("b", "a", 2, 0.0, "state:y"))
    graph = EventGraph((event("a", 1.0), event("b", 1.0)), arcs)
    assert not graph.index.is_live
    assert tokenless_cycle(graph) is None


def test_look_ups() -> None:
    arcs = (Arc("a", "b", 0, 0.0, "data:x"), Arc("b", "b", 1, 0.0, "self"), Arc("b", "a", 1, 0.0, "state:y"))
    graph = EventGraph((event("a", 1.0), event("b", 2.0)), arcs)
    assert graph.event_of["b"].occupancy_s == 2.0
    assert graph.arcs_into == {"a": [2], "b": [0, 1]}
    assert graph.arcs_out_of == {"a": [0], "b": [1, 2]}
