"""The wall clock: events become calls, calls become tokens, and every wait has an end."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from tests.runtime.test_group import wide

from rpeg.algorithms.grpo import grpo
from rpeg.errors import WaitLimit
from rpeg.graph.contract import Logprob
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.observe.trace import Span
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import KnownCosts
from rpeg.plan.events import Event
from rpeg.plan.lower import lower
from rpeg.plan.plan import Plan
from rpeg.plan.play import Player
from rpeg.runtime.engine import WallClock
from rpeg.runtime.group import Groups
from rpeg.runtime.hauls import Hauls
from rpeg.runtime.rows import Rows
from rpeg.runtime.store import Store
from rpeg.runtime.task import Outcome, Progress, Task


class FakeHome:
    """One thread per worker; a task does nothing but take the time of its stage."""

    def __init__(self, seconds: dict[str, float] | None = None, fails: str = "") -> None:
        self.seconds, self.fails = seconds or {}, fails
        self.threads: dict[str, ThreadPoolExecutor] = {}
        self.tasks: list[Task] = []
        self.lock = threading.Lock()

    def call(self, name: str, method: str, *args: object) -> Future[Any]:
        assert method == "run"
        return self.threads.setdefault(name, ThreadPoolExecutor(1)).submit(self.run, args[0])  # type: ignore[arg-type]

    def run(self, task: Task) -> tuple[Outcome, float, float]:
        start_s = time.monotonic()
        with self.lock:
            self.tasks.append(task)
        if task.stage == self.fails:
            raise ArithmeticError("worker broke")
        time.sleep(self.seconds.get(task.stage, 0.0))
        return Outcome(num_rows=1), start_s, time.monotonic()

    def close(self) -> None:
        for thread in self.threads.values():
            thread.shutdown()


def play(
    home: FakeHome,
    steps: int,
    staleness: int = 0,
    every: int = 2,
    limit_s: float = 60.0,
    bind: Callable[[Graph], Plan] = bind_local,
) -> tuple[list[Span], list[int]]:
    """Play a GRPO graph on the fake home; return spans and closed steps."""
    old = Logprob.RECOMPUTED if staleness else Logprob.RECORDED
    graph = grpo(4, 4, staleness, old_logprob=old, evaluate_every_steps=every)
    plan = bind(graph)
    events = lower(graph, plan, KnownCosts({}))
    spans: list[Span] = []
    closed: list[int] = []
    hear = (lambda span, outcome: spans.append(span), closed.append)
    groups = Groups(home, graph, plan)  # type: ignore[arg-type]
    store, hauls = Store(graph, {}), Hauls(graph, plan)
    clock = WallClock(graph, events, groups, store, range(steps), hear, limit_s, hauls)
    try:
        Player(events, clock).play(steps)
    finally:
        home.close()
    return spans, closed


def test_a_synchronous_step_runs_in_the_order_of_its_graph() -> None:
    spans, closed = play(FakeHome(), 3)
    assert closed == [1, 2, 3]
    first = [span.event for span in spans if span.step == 1]
    assert first == ["gen.0", "reward.0", "advantage.0", "train.0", "update.0", "push.0", "pull.0"]
    assert [span.step for span in spans if span.stage == "eval"] == [2, 3]  # every second step, and the last
    assert all(a.end_s <= b.start_s for a, b in pairwise(spans))


class OnRanks(FakeHome):
    """Two calls for every update, the second 10 s after the first; rank 1 begins 2 s later and ends 3 s later."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def call(self, name: str, method: str, *args: object) -> Future[Any]:
        task = args[0]
        assert isinstance(task, Task)
        self.calls[name] += task.stage == "update"
        is_first = task.stage == "update" and self.calls[name] % 2
        start_s = 10.0 * (not is_first) + 2.0 * name.endswith("/1")
        outcome = Outcome(progress=Progress.UNDER_WAY if is_first else Progress.DONE)
        ran: Future[Any] = Future()
        ran.set_result((outcome, start_s, start_s + 5.0 + name.endswith("/1")))
        return ran


def test_a_firing_on_several_ranks_is_one_span_with_what_each_did() -> None:
    """By hand: rank 0 from 0, its first call, to 15, the end of its second; rank 1 from 2 to 18; the firing 0 to 18."""
    spans, _ = play(OnRanks(), 1, bind=lambda graph: wide(graph, 2))
    (update,) = (span for span in spans if span.stage == "update")
    zero_s = update.start_s
    assert [(rank.worker, rank.start_s - zero_s, rank.end_s - zero_s) for rank in update.ranks] == [
        ("all/0", 0.0, pytest.approx(15.0)),
        ("all/1", pytest.approx(2.0), pytest.approx(18.0)),
    ]
    assert update.duration_s == pytest.approx(18.0)
    (reward,) = (span for span in spans if span.stage == "reward")
    assert reward.ranks == ()  # the host is one worker
    assert reward.duration_s == pytest.approx(5.0)


def test_versions_follow_the_delays() -> None:
    home = FakeHome()
    play(home, 4, staleness=2)
    versions = {task.step: task.versions["actor.rollout"] for task in home.tasks if task.stage == "gen"}
    assert versions == {0: 0, 1: 0, 2: 0, 3: 1, 4: 2, 5: 3}
    assert {t.step: t.versions["actor.master"] for t in home.tasks if t.stage == "train"} == {0: 0, 1: 1, 2: 2, 3: 3}


def test_with_staleness_sampling_and_training_overlap() -> None:
    seconds = {"gen": 0.1, "train": 0.1}
    began_s = time.monotonic()
    play(FakeHome(seconds), 5, staleness=0, every=0)
    in_turn_s = time.monotonic() - began_s
    began_s = time.monotonic()
    play(FakeHome(seconds), 5, staleness=1, every=0)
    overlapped_s = time.monotonic() - began_s
    assert overlapped_s < 0.85 * in_turn_s  # 6 x 0.1 s against 10 x 0.1 s


def test_what_a_worker_raises_reaches_the_caller() -> None:
    with pytest.raises(ArithmeticError, match="worker broke"):
        play(FakeHome(fails="train"), 2)


def test_a_wait_has_a_limit_and_names_what_it_waits_for() -> None:
    with pytest.raises(WaitLimit, match=r"(?s)nothing finished for 0 s; still waiting for:\n  reward\.0 of step 1"):
        play(FakeHome({"reward": 1.0}), 2, limit_s=0.3)


@pytest.mark.parametrize(("made", "used"), [(1, 4), (4, 1), (4, 2), (2, 4), (4, 4), (2, 1)])
def test_every_reader_firing_gets_its_share_of_what_the_writer_firings_made(made: int, used: int) -> None:
    base = grpo(8, 2)
    counts = {"gen": made, "reward": made, "advantage": made, "train": used}
    stages = tuple(replace(s, firings=Dim(str(counts.get(s.name, 1)))) for s in base.stages)
    graph = replace(base, stages=stages)
    store = Store(graph, {})
    columns = ("tokens", "mask", "logp", "version", "finished")
    rows = [str(n) for n in range(16)]
    size = 16 // made
    for i in range(made):
        part = rows[i * size : (i + 1) * size]
        store.finish(Event(f"gen.{i}", "gen", i, 0.0, ()), 0, Outcome(Rows(dict.fromkeys(columns, part))))
    found = [store.task(Event(f"train.{j}", "train", j, 0.0, ()), 0).samples.texts("tokens") for j in range(used)]
    assert [len(part) for part in found] == [16 // used] * used
    assert [row for part in found for row in part] == rows


def test_rows_reach_their_readers_and_are_let_go() -> None:
    graph = grpo(4, 4)
    events = lower(graph, bind_local(graph), KnownCosts({}))
    store = Store(graph, {"prompts": lambda step: Rows({"row": [str(step)], "tokens": ["x"], "seed": ["7"]})})
    gen, reward, train = (events.event_of[name] for name in ("gen.0", "reward.0", "train.0"))
    assert store.task(gen, 5).groups.texts("row") == ["5"]
    columns = ("tokens", "mask", "logp", "version", "finished")
    store.finish(gen, 5, Outcome(Rows({name: ["a"] for name in columns})))
    assert sorted(store.waiting()) == ["rollouts/5/gen/0"]
    assert sorted(store.task(reward, 5).samples.columns) == ["finished", "mask", "tokens", "version"]
    store.finish(reward, 5, Outcome(Rows({"reward": ["1"]})))
    assert "advantage" not in store.task(train, 5).samples.columns  # not made yet
    store.finish(train, 5, Outcome())
    assert store.task(train, 5).samples.columns == {}  # reward and train were the readers of the rollouts
