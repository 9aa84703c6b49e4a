"""Every wait of a run has a limit: whatever hangs, the run ends, says what it waited for, and can be resumed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.conftest import Recorder, tiny_recipe
from tests.runtime.test_run import assert_same

from rpeg.errors import WaitLimit
from rpeg.observe.run_folder import RunFolder
from rpeg.runtime.homes import inline
from rpeg.runtime.homes.strand import Strand
from rpeg.runtime.run import train
from rpeg.runtime.waiting import awaited
from rpeg.runtime.worker import Worker

Run = Callable[..., RunFolder]

FAR_S = 60.0
"""Far more than anything here takes."""
LIMIT = {"wait_limit_s": 3.0}
"""More than a step takes, also on a busy machine."""


class Gate:
    """What a call hangs at; ``at`` is asked before, with the number of answers or the step."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.at: Callable[[int], bool] = lambda number: False
        self.before: Callable[[], None] = lambda: None

    def pass_or_hang(self, number: int) -> None:
        if self.at(number):
            self.before()
            self.opened.wait(FAR_S)


GATE = [Gate()]


def held(completions: list[str], **_: object) -> list[float]:
    """Reward that may hang, and is then away for as long as nobody opens the gate."""
    GATE[0].pass_or_hang(len(completions))
    return [sum(c.isdigit() for c in text) / 8 for text in completions]


REWARD = {"functions": [{"function": "tests.runtime.test_limits:held"}], "processes": 0}


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Give calls little time to end; open the gate in the end, and wait until nobody works any more."""
    monkeypatch.setattr(inline, "GRACE_S", 0.1)
    GATE[0] = Gate()
    yield GATE[0]
    GATE[0].opened.set()
    for thread in threading.enumerate():
        if isinstance(thread, Strand):
            thread.join(FAR_S)


def test_a_wait_tells_a_limit_from_what_the_call_raises() -> None:
    late, broken = Future[int](), Future[int]()
    broken.set_exception(TimeoutError("of its own"))
    with pytest.raises(WaitLimit, match=r"after 0 s \(run\.wait_limit_s\) for a, b"):
        awaited(late, 0.01, lambda: ["a", "b"])
    with pytest.raises(TimeoutError, match="of its own"):
        awaited(broken, 0.01, list)


def test_a_step_that_hangs_ends_the_run(run_tiny: Run, gate: Gate) -> None:
    gate.at = lambda number: number == 16  # the answers of a step; fewer are held out
    with pytest.raises(WaitLimit, match=r"reward\.0 of step 1"):
        run_tiny("step", reward=REWARD, run=LIMIT)
    assert not gate.opened.is_set()  # and yet the run is over


def test_an_evaluation_that_hangs_ends_the_run(run_tiny: Run, gate: Gate) -> None:
    gate.at = lambda number: number == 8  # held-out problems
    with pytest.raises(WaitLimit, match=r"still waiting after 3 s \(run\.wait_limit_s\) for eval before step 1"):
        run_tiny("evaluation", reward=REWARD, run=LIMIT)


def test_workers_that_never_start_end_the_run(run_tiny: Run, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    gate.at = lambda number: True
    monkeypatch.setattr(inline, "Worker", lambda spec: gate.pass_or_hang(0))
    with pytest.raises(WaitLimit, match="for worker all to start, worker host to start"):
        run_tiny("start", run={"wait_limit_s": 0.2})


def test_a_save_that_hangs_ends_the_run_and_leaves_nothing_half_written(
    run_tiny: Run, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Worker.save

    def save(worker: Worker, folder: Path) -> None:
        gate.pass_or_hang(int(folder.name.split(".")[1].removeprefix("step-")))
        write(worker, folder)

    monkeypatch.setattr(Worker, "save", save)
    gate.at = lambda step: step == 4
    parts = RunFolder(tmp_path / "parts")
    with pytest.raises(WaitLimit, match="for all to save what it has learned until step 4"):
        run_tiny("parts", run=LIMIT)
    assert [path.name for path in parts.all_checkpoints()] == ["step-000000", "step-000002"]
    gate.at = lambda step: False

    def let_go(step: int) -> None:
        """Let what hangs go on while the resumed run saves the same step."""
        if step == 4:
            gate.opened.set()

    run_tiny("parts", resume=True, at_step=let_go)
    assert_same(run_tiny("whole"), parts, 4)


def test_a_second_control_c_does_not_wait_for_a_call_that_hangs(tmp_path: Path, gate: Gate) -> None:
    listener, folder = Recorder(), RunFolder(tmp_path)

    def press_twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        deadline_s = time.monotonic() + FAR_S
        while not listener.messages and time.monotonic() < deadline_s:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    gate.at, gate.before = lambda number: number == 16, press_twice
    recipe: Any = tiny_recipe(reward=REWARD)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, lambda: folder, listener)
    assert listener.messages == ["ending after step 1, then saving; once more to end at once"]
    assert not gate.opened.is_set()
