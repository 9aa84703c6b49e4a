"""Rewards in processes: the same numbers, a limit on every call, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.environments import pool_rewards

from rpeg.environments.problem import Problem
from rpeg.environments.reward_pool import RewardPool
from rpeg.environments.rewards import RewardSum
from rpeg.errors import RewardError, RunFault

LIMIT_S = 0.4

Open = Callable[..., RewardPool]


@pytest.fixture
def open_pool() -> Iterator[Open]:
    """Open pools that are closed at the end."""
    opened: list[RewardPool] = []

    def make(build: Callable[[], RewardSum], processes: int = 1, timeout_s: float = 60.0) -> RewardPool:
        opened.append(RewardPool(build, processes, timeout_s))
        return opened[-1]

    yield make
    for pool in opened:
        pool.close()


def rows(count: int) -> list[Problem]:
    """Return problems d:0, d:1, ..."""
    return [Problem(f"d:{i}", f"p{i}", "") for i in range(count)]


def is_alive(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_values_are_those_of_one_process_also_off_the_main_thread(open_pool: Open) -> None:
    answers = ["1.5", "nan", "negative", "2"]
    pool, found = open_pool(pool_rewards.at_once, processes=2), []
    thread = threading.Thread(target=lambda: found.append(pool.score(rows(4), answers)))
    thread.start()
    thread.join()
    # By hand: half the number plus its letters; what is no number is left out of the sum.
    assert found[0].totals == [0.75 + 3, 3.0, -1.25 + 8, 1.0 + 1]
    assert found[0].values == pool_rewards.at_once().score(rows(4), answers).values
    assert found[0].failures == ()


def test_hung_rows_are_late_and_their_processes_are_replaced(open_pool: Open) -> None:
    # BL-068: two processes, three answers whose check never ends, then ten good ones.
    pool = open_pool(pool_rewards.by_row, processes=2, timeout_s=LIMIT_S)
    first = {int(pid or 0) for pid in pool.score(rows(8), ["pid"] * 8).totals}
    scores = pool.score(rows(13), ["sleep", "regex", "sleep"] + [str(i) for i in range(10)])
    assert scores.totals == [None, None, None] + [float(i) for i in range(10)]
    assert [(f.row_ids, f.is_late) for f in scores.failures] == [((f"d:{i}",), True) for i in range(3)]
    assert {f.reason for f in scores.failures} == {"took longer than reward.timeout_s 0.4"}
    assert scores.slowest_s >= LIMIT_S
    second = {int(pid or 0) for pid in pool.score(rows(8), ["pid"] * 8).totals}
    assert not first & second
    assert not any(is_alive(pid) for pid in first)
    pool.close()
    assert not any(is_alive(pid) for pid in second)


def test_of_a_call_that_hangs_only_the_group_that_hangs_is_lost(open_pool: Open) -> None:
    # BL-069: one call for everything, one sample of which sleeps a minute.
    pool = open_pool(pool_rewards.at_once, processes=2, timeout_s=LIMIT_S)
    scores = pool.score(rows(6), ["1", "2", "3", "sleep", "5", "6"], group=2)
    assert scores.values["trick"] == [1.0, 2.0, None, None, 5.0, 6.0]
    assert scores.values["letters"] == [1.0, 1.0, 1.0, 5.0, 1.0, 1.0]
    # Half of the one and all of the other; what only the other has is no total.
    assert scores.totals == [1.5, 2.0, None, None, 3.5, 4.0]
    (failure,) = scores.failures
    assert (failure.function, failure.row_ids, failure.is_late) == ("trick", ("d:2", "d:3"), True)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("raise", "ZeroDivisionError: division by zero (pool_rewards.py:19)"),
        ("exit", "SystemExit: no more (pool_rewards.py:20)"),
        ("crash", "its process ended with exit code 3"),
        ("text", "value 1 is 'much' (str), expected a number or None; return one number (or None) per completion"),
    ],
)
def test_a_failure_is_counted_with_its_reason_and_the_rest_is_scored(open_pool: Open, answer: str, reason: str) -> None:
    scores = open_pool(pool_rewards.by_row).score(rows(3), ["1", answer, "3"])
    assert scores.totals == [1.0, None, 3.0]
    (failure,) = scores.failures
    assert (failure.row_ids, failure.is_late) == (("d:1",), False)
    assert failure.reason.startswith(reason)


def test_a_wrong_count_names_what_was_expected(open_pool: Open) -> None:
    scores = open_pool(pool_rewards.one_value).score(rows(3), ["", "", ""])
    assert scores.totals == [None, None, None]
    assert scores.failures[0].reason.startswith("expected 3 values, one per completion, got 1")


def test_functions_that_cannot_be_loaded_are_refused(open_pool: Open) -> None:
    with pytest.raises(RewardError, match=r"mine\.py:f: there is no such function"):
        open_pool(pool_rewards.refused).score(rows(1), [""])
    with pytest.raises(RunFault, match="loading the reward functions did not end well: its process ended with exit"):
        open_pool(pool_rewards.broken).score(rows(1), [""])


def test_an_interrupted_call_leaves_nothing(open_pool: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = open_pool(pool_rewards.by_row)
    (pid,) = pool.score(rows(1), ["pid"]).totals

    def press(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("rpeg.environments.reward_pool.wait", press)
        with pytest.raises(KeyboardInterrupt):
            pool.score(rows(1), ["sleep"])
    assert not is_alive(int(pid or 0))
    assert pool.score(rows(1), ["7"]).totals == [7.0]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process that hangs ends when its call does")
def test_a_killed_parent_takes_its_processes_along(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from pathlib import Path; from tests.environments import pool_rewards"
    )
    code += f"; pool_rewards.hang_under_a_parent(Path({str(told)!r}))"
    parent = subprocess.Popen([sys.executable, "-c", code])
    deadline_s = time.monotonic() + 30
    while not (told.exists() and told.read_text()):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    pid = int(told.read_text())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    while is_alive(pid):
        assert time.monotonic() < deadline_s, "a reward process outlives its parent"
        time.sleep(0.02)
