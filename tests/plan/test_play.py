"""The interpreter: what may fire, cuts, resuming, stopping, and what it says when nothing can fire."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any

import pytest

from rpeg.errors import Stalled
from rpeg.plan.events import Arc, Event, EventGraph
from rpeg.plan.play import Firing, Player

SHIFTS = (0, 0, 1, 3)


class RandomClock:
    """Lets events end in any order, each its firings one after the other; checks at a start what it has to wait for."""

    def __init__(self, graph: EventGraph, seed: int, done: Iterable[Firing] = ()) -> None:
        self.graph, self.rng = graph, random.Random(seed)
        self.started: list[Firing] = []
        self.done = set(done)
        self.under_way: list[tuple[Firing, Sequence[int]]] = []
        self.on_wait: Callable[[], object] = lambda: None

    def start(self, firing: Firing, arcs: Sequence[int]) -> None:
        for index in self.graph.arcs_into[firing.event]:
            arc = self.graph.arcs[index]
            assert firing.index < arc.tokens or Firing(arc.src, firing.index - arc.tokens) in self.done
        assert list(arcs) == self.graph.arcs_out_of[firing.event]
        self.started.append(firing)
        self.under_way.append((firing, arcs))

    def wait(self) -> list[tuple[Firing, Sequence[int]]]:
        self.on_wait()
        ended: list[tuple[Firing, Sequence[int]]] = []
        for _ in range(self.rng.randint(1, min(2, len(self.under_way)))):
            event = self.rng.choice(self.under_way)[0].event
            oldest = next(i for i, (firing, _) in enumerate(self.under_way) if firing.event == event)
            ended.append(self.under_way.pop(oldest))
        self.done |= {firing for firing, _ in ended}
        return ended


def due(graph: EventGraph, cut: int) -> dict[str, int]:
    """Return how often each event has fired at a cut; at the cut 0 nothing has run ahead."""
    return {event.id: cut + event.shift if cut else 0 for event in graph.events}


def firings(graph: EventGraph, first: int, last: int) -> Counter[Firing]:
    """Return what happens between two cuts."""
    begin, end = due(graph, first), due(graph, last)
    return Counter(Firing(name, index) for name in begin for index in range(begin[name], end[name]))


def test_every_event_fires_once_per_step_and_ahead_by_its_shift(make: Any) -> None:
    for seed in range(100):
        graph = make.events(seed, SHIFTS)
        clock = RandomClock(graph, seed)
        player = Player(graph, clock)
        assert player.play(7) == 7
        assert Counter(clock.started) == firings(graph, 0, 7)
        assert player.fired == {event.id: 7 + event.shift for event in graph.events} == due(graph, 7)
        assert clock.under_way == []


def test_playing_from_cut_to_cut_equals_playing_through(make: Any) -> None:
    for seed in range(100):
        graph = make.events(seed, SHIFTS)
        clock = RandomClock(graph, seed)
        player = Player(graph, clock)
        assert [player.play(until) for until in (1, 4, 4, 7)] == [1, 4, 4, 7]
        assert Counter(clock.started) == firings(graph, 0, 7)


def test_resuming_at_a_cut_equals_playing_on(make: Any) -> None:
    for seed in range(100):
        graph = make.events(seed, SHIFTS)
        for cut in (1, 3):
            before = firings(graph, 0, cut)
            clock = RandomClock(graph, seed, before)
            player = Player(graph, clock, cut)
            assert player.play(cut) == cut
            assert clock.started == []
            assert player.play(7) == 7
            assert before + Counter(clock.started) == firings(graph, 0, 7)


def test_a_cut_that_has_been_passed_is_no_reason_to_act(make: Any) -> None:
    graph = make.events(1, SHIFTS)
    clock = RandomClock(graph, 1)
    player = Player(graph, clock, 5)
    assert player.play(3) == 5
    assert clock.started == []


def nearest_cut(graph: EventGraph, player: Player) -> int:
    return next(n for n in range(100) if all(player.fired[name] <= times for name, times in due(graph, n).items()))


def test_stopping_ends_at_the_nearest_cut_and_playing_on_equals_playing_through(make: Any) -> None:
    cuts = Counter[int]()
    for seed in range(300):
        graph = make.events(seed, SHIFTS)
        clock = RandomClock(graph, seed)
        player = Player(graph, clock)
        moment, waits = clock.rng.randint(1, 40), count(1)
        asked: list[int] = []
        expected: list[int] = []

        def stop(player: Player, graph: EventGraph, asked: list[int], expected: list[int]) -> None:
            expected.append(min(nearest_cut(graph, player), 7))
            asked.append(player.stop_at_nearest_cut())

        once = partial(stop, player, graph, asked, expected)
        clock.on_wait = lambda once=once, waits=waits, moment=moment: next(waits) == moment and once()
        reached = player.play(7)
        cuts[reached] += 1
        assert asked == expected
        assert asked in ([], [reached])
        assert player.fired == due(graph, reached)
        assert Counter(clock.started) == firings(graph, 0, reached)
        assert player.play(7) == 7
        assert Counter(clock.started) == firings(graph, 0, 7)
    assert set(cuts) == set(range(1, 8))


class Interrupted(dict[str, int]):
    """The counts of a player, into which a signal comes just before one of them is raised."""

    def __init__(self, player: Player, moment: int) -> None:
        super().__init__(player.fired)
        self.player, self.moment, self.asked = player, moment, list[int]()

    def __setitem__(self, name: str, times: int) -> None:
        self.moment -= 1
        if not self.moment:
            self.asked.append(self.player.stop_at_nearest_cut())
        super().__setitem__(name, times)


def test_a_signal_between_the_decision_to_fire_and_firing_does_no_harm(make: Any) -> None:
    later = 0
    for seed in range(300):
        graph = make.events(seed, SHIFTS)
        clock = RandomClock(graph, seed)
        player = Player(graph, clock)
        player.fired = counts = Interrupted(player, clock.rng.randint(1, 40))
        reached = player.play(7)
        assert dict(player.fired) == due(graph, reached)
        assert Counter(clock.started) == firings(graph, 0, reached)
        assert counts.asked in ([], [reached], [reached - 1])
        later += counts.asked == [reached - 1]
        assert player.play(7) == 7
        assert Counter(clock.started) == firings(graph, 0, 7)
    assert later > 20


def test_stopping_again_never_puts_the_end_off(make: Any) -> None:
    for seed in range(100):
        graph = make.events(seed, SHIFTS)
        clock = RandomClock(graph, seed)
        player = Player(graph, clock)
        asked: list[int] = []
        clock.on_wait = lambda player=player, asked=asked: asked.append(player.stop_at_nearest_cut())
        assert player.play(7) == asked[-1]
        assert len(set(asked)) == 1


def test_stopping_a_player_that_stands_returns_where_it_stands(make: Any) -> None:
    graph = make.events(2, SHIFTS)
    player = Player(graph, RandomClock(graph, 2), 4)
    assert player.stop_at_nearest_cut() == 4
    assert Player(graph, RandomClock(graph, 2)).stop_at_nearest_cut() == 0
    assert Player(EventGraph((), ()), RandomClock(graph, 2)).stop_at_nearest_cut() == 0


def test_nothing_fires_before_the_first_step_is_wanted(make: Any) -> None:
    for seed in range(20):
        graph = make.events(seed, SHIFTS)
        clock = RandomClock(graph, seed)
        assert Player(graph, clock).play(0) == 0
        assert clock.started == []


def test_a_stalled_player_names_each_waiting_event_and_the_arcs_it_lacks() -> None:
    events = (
        Event("gen.0", "gen", 0, 1.0, ("roll",)),
        Event("train.0", "train", 0, 1.0, ("trn",)),
        Event("pull.0", "pull", 0, 1.0, ("roll",)),
    )
    arcs = (
        Arc("gen.0", "train.0", 0, 0.0, "data:rollouts"),
        Arc("train.0", "pull.0", 0, 0.0, "state:staged"),
        Arc("pull.0", "gen.0", 1, 0.0, "state:rollout"),
        Arc("pull.0", "train.0", 0, 0.0, "keep:staged"),
        Arc("gen.0", "pull.0", 0, 0.0, "device:roll"),
    )
    graph = EventGraph(events, arcs)
    with pytest.raises(Stalled) as caught:
        Player(graph, RandomClock(graph, 0)).play(2)
    assert str(caught.value) == (
        "nothing can fire; each waits for:\n"
        "  gen.0 of step 2: pull.0 (state:rollout)\n"
        "  train.0 of step 1: pull.0 (keep:staged)\n"
        "  pull.0 of step 1: train.0 (state:staged)"
    )
    assert isinstance(caught.value, RuntimeError)


def test_an_event_that_needs_another_beyond_the_cut_stalls_there() -> None:
    arcs = (Arc("a", "a", 1, 0.0, "self"), Arc("b", "b", 1, 0.0, "self"), Arc("a", "b", 1, 0.0, "data:x"))
    graph = EventGraph((Event("a", "a", 0, 1.0, ("r",)), Event("b", "b", 0, 1.0, ("s",), 2)), arcs)
    with pytest.raises(Stalled, match=r"  b of step 4: a \(data:x\)$"):
        Player(graph, RandomClock(graph, 0)).play(2)


def test_what_a_worker_raises_comes_through() -> None:
    graph = EventGraph((Event("a", "a", 0, 1.0, ("r",)),), (Arc("a", "a", 1, 0.0, "self"),))
    clock = RandomClock(graph, 0)
    clock.on_wait = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        Player(graph, clock).play(1)


def test_tokens_of_one_firing_may_arrive_one_by_one() -> None:
    """An arc of its own latency gets its token later than the others."""

    class Trickle(RandomClock):
        def wait(self) -> list[tuple[Firing, Sequence[int]]]:
            firing, arcs = self.under_way[0]
            self.under_way[0] = (firing, arcs[1:])
            if not arcs[1:]:
                del self.under_way[0]
            self.done.add(firing)
            return [(firing, arcs[:1])]

    arcs = (Arc("a", "a", 1, 0.0, "self"), Arc("a", "b", 0, 5.0, "data:x"), Arc("b", "b", 1, 0.0, "self"))
    graph = EventGraph((Event("a", "a", 0, 1.0, ("r",)), Event("b", "b", 0, 1.0, ("s",))), arcs)
    clock = Trickle(graph, 0)
    assert Player(graph, clock).play(2) == 2
    assert clock.started == [Firing("a", 0), Firing("a", 1), Firing("b", 0), Firing("b", 1)]
