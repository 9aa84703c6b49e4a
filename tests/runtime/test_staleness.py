"""Staleness under adversarial timings: inside the contract whatever work takes, and as the simulator says."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any

import pytest
from tests.runtime.test_engine import FakeHome

from rpeg.algorithms.critic_free import KvPolicy
from rpeg.algorithms.grpo import grpo
from rpeg.graph.contract import Logprob
from rpeg.graph.graph import Graph
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import KnownCosts
from rpeg.plan.events import EventGraph
from rpeg.plan.lower import lower
from rpeg.plan.play import Player
from rpeg.plan.simulate import simulate
from rpeg.runtime.engine import WallClock
from rpeg.runtime.group import Groups
from rpeg.runtime.hauls import Hauls
from rpeg.runtime.store import Store
from rpeg.runtime.task import Outcome, Task

STEPS = 8
APART_S = 0.012
"""Which of two events comes first must not hang on what a thread switch takes."""

_TRIES = 3


class DrawnHome(FakeHome):
    """Work takes what was drawn for it; a pull installs weights, a generator notes which it finds."""

    def __init__(self, seconds_of: dict[tuple[str, int], float]) -> None:
        super().__init__()
        self.seconds_of = seconds_of
        self.installed = 0
        self.behind: Counter[int] = Counter()
        self.guard = threading.Lock()

    def run(self, task: Task) -> tuple[Outcome, float, float]:
        start_s = time.monotonic()
        if task.stage == "gen":
            with self.guard:
                self.behind[task.step - self.installed] += 1
        time.sleep(self.seconds_of[f"{task.stage}.{task.firing}", task.step])
        if task.stage == "pull":
            with self.guard:
                self.installed = task.step + 1
        return Outcome(), start_s, time.monotonic()


def drawn(events: EventGraph, seed: int) -> dict[tuple[str, int], float]:
    """Return seconds of every firing: mostly short, some many times as long."""
    draw = random.Random(seed)
    kinds = {"gen": (0.02, 0.15), "train": (0.03, 0.12), "pull": (0.005, 0.03), "push": (0.005, 0.03)}
    found: dict[tuple[str, int], float] = {}
    for event in events.events:
        short_s, long_s = kinds.get(event.stage, (0.002, 0.004))
        for step in range(2 * STEPS):
            found[event.id, step] = long_s if draw.random() < 0.3 else short_s * draw.uniform(0.5, 1.5)
    return found


def predicted(events: EventGraph, seconds_of: dict[tuple[str, int], float]) -> tuple[Counter[int], float]:
    """Return how far behind the simulator has each generator, and the least time between a start and a pull's end."""
    firings = simulate(events, STEPS, lambda firing, _: seconds_of[firing.event, firing.index])
    pulls = [(each.end_s, each.step + 1) for each in firings if each.event == "pull.0"]
    behind: Counter[int] = Counter()
    nearest_s = 1.0
    for each in (each for each in firings if each.event == "gen.0"):
        installed = max((version for end_s, version in pulls if end_s <= each.start_s), default=0)
        behind[each.step - installed] += 1
        waited = [abs(end_s - each.start_s) for end_s, _ in pulls if end_s != each.start_s]
        nearest_s = min([nearest_s, *waited])
    return behind, nearest_s


def played(graph: Graph, events: EventGraph, seconds_of: dict[tuple[str, int], float]) -> Counter[int]:
    home, plan = DrawnHome(seconds_of), bind_local(graph)
    groups = Groups(home, graph, plan)  # type: ignore[arg-type]
    hear = (lambda span, outcome: None, lambda step: None)
    store = Store(graph, {})
    clock = WallClock(graph, events, groups, store, range(STEPS), hear, 60.0, Hauls(graph, plan))
    try:
        Player(events, clock).play(STEPS)
    finally:
        home.close()
    return home.behind


def settings(staleness: int, in_flight: bool) -> dict[str, Any]:
    old = Logprob.RECOMPUTED if staleness else Logprob.RECORDED
    return {"old_logprob": old, "in_flight": KvPolicy.KEEP if in_flight else None}


@pytest.mark.parametrize(
    ("staleness", "in_flight", "max_carry"),
    [*((k, in_flight, 0) for k in (1, 2, 3) for in_flight in (False, True)), (1, False, 2)],
)
def test_the_histogram_is_inside_the_contract_and_the_simulators(
    staleness: int, in_flight: bool, max_carry: int
) -> None:
    """Where samples are carried over, this is how far ahead they are continued; their own ages are lengths' to say."""
    graph = grpo(4, 4, staleness, max_carry=max_carry, **settings(staleness, in_flight))
    events = lower(graph, bind_local(graph), KnownCosts({}))
    draws = (drawn(events, seed) for seed in range(200))
    seconds_of = next(each for each in draws if predicted(events, each)[1] > APART_S)
    expected, _ = predicted(events, seconds_of)
    assert max(expected) <= staleness
    found: Counter[int] = Counter()
    for _ in range(_TRIES):  # a machine that stops a thread for longer than events are apart plays other durations
        found = played(graph, events, seconds_of)
        assert max(found) <= staleness
        if found == expected:
            break
    assert found == expected
