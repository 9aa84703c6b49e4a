"""Workers in threads: a call that hangs holds up neither the end of the home nor the end of the process."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rpeg.runtime.homes import inline
from rpeg.runtime.homes.strand import Strand

LIMIT_S = 60.0
"""Far more than anything here takes."""
HANGS_IN_TORCH = """
import sys, threading, torch
import rpeg.cli.main as command
from rpeg.runtime.homes.strand import Strand

def hang():
    values = torch.ones(200, 200)
    while True:
        began.set()
        values @ values

def app():
    Strand("hung").submit(hang)
    began.wait()
    print("said")
    sys.exit(130)

began = threading.Event()
command.app = app
command.main()
"""


class Stuck:
    """A worker with a call that returns when it is allowed to."""

    gate = threading.Event()
    began = threading.Event()
    closed_on: ClassVar[list[str]] = []

    def __init__(self, spec: object) -> None: ...

    def hang(self) -> str:
        self.began.set()
        self.gate.wait(LIMIT_S)
        return "at last"

    def close(self) -> None:
        self.closed_on.append(threading.current_thread().name)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Stuck]]:
    """Build such workers, and let their calls go in the end."""
    monkeypatch.setattr(inline, "Worker", Stuck)
    monkeypatch.setattr(inline, "GRACE_S", 0.1)
    yield Stuck
    Stuck.gate.set()


def test_calls_keep_their_order_and_what_they_raise_is_told() -> None:
    strand, done = Strand("order"), list[int]()
    calls = [strand.submit(lambda number=number: done.append(number)) for number in range(5)]
    broken = strand.submit(lambda: 1 // 0)
    assert isinstance(broken.exception(LIMIT_S), ZeroDivisionError)
    assert all(call.done() for call in calls)
    assert strand.finish(lambda: sum(done)).result(LIMIT_S) == 10
    strand.join(LIMIT_S)
    assert not strand.is_alive()


def test_a_home_does_not_wait_for_a_call_that_hangs(stuck: type[Stuck]) -> None:
    home = inline.InlineHome()
    spec: Any = None
    for name in ("hung", "idle"):
        home.spawn(name, spec).result(LIMIT_S)
    hangs, waits = home.call("hung", "hang"), home.call("hung", "hang")
    assert stuck.began.wait(LIMIT_S)
    home.close()
    assert not hangs.done()
    assert waits.cancelled()
    assert stuck.closed_on == ["idle"]
    stuck.gate.set()
    assert hangs.result(LIMIT_S) == "at last"
    deadline_s = time.monotonic() + LIMIT_S
    while len(stuck.closed_on) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert stuck.closed_on == ["idle", "hung"]  # by itself, on its own thread


def test_a_process_ends_with_its_status_while_a_call_hangs(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS_IN_TORCH], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (130, "said\n"), ended.stderr
