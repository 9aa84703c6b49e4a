"""Workers in processes: the same numbers as in one process, errors that arrive, and nothing left however it ends."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.conftest import tiny_recipe
from tests.runtime.test_kill import lines, start
from tests.runtime.test_run import assert_same

from rpeg.errors import Fault, InvalidInput, ModelError, RpegError, RunFault, WorkerDied
from rpeg.graph.stage import StageKind
from rpeg.numerics.model import save_model, scratch_model
from rpeg.numerics.tokenizer import character_tokenizer
from rpeg.observe.run_folder import RunFolder
from rpeg.recipe.graph import build_graph
from rpeg.runtime.homes.home import Home
from rpeg.runtime.homes.inline import InlineHome
from rpeg.runtime.homes.processes import ProcessHome
from rpeg.runtime.origin import Origin
from rpeg.runtime.prepare import ScratchSpec
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.task import Task
from rpeg.runtime.worker import WorkerSpec

pytestmark = pytest.mark.multiproc

Run = Callable[..., RunFolder]


def running(group: int) -> dict[int, str]:
    """Return the command lines of the processes of a group that have not ended, by process."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, _, of_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(of_group) == group and state != "Z":
                found[int(entry.name)] = (entry / "cmdline").read_text()
        except OSError:  # it has just ended
            continue
    return found


def wait_until(is_so: Callable[[], bool], limit_s: float) -> None:
    """Wait until something is so; the limit is for a busy machine."""
    started_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - started_s < limit_s
        time.sleep(0.02)


def shared_memory() -> set[str]:
    """Return the names of shared memory; locks come and go with whatever else runs on this machine."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


def start_endless(folder: Path) -> subprocess.Popen[str]:
    """Start a run in processes and wait until it has done two steps."""
    recipe = folder / "tiny.yaml"
    recipe.write_text(tiny_recipe(run={"steps": 10_000, "home": "processes"}).to_yaml())
    process = start(recipe, folder / "run")
    wait_until(lambda: process.poll() is not None or lines(folder / "run") >= 3, 120)
    assert len(running(process.pid)) == 3  # the run, and its workers all and host
    return process


def test_processes_equal_inline(run_tiny: Run) -> None:
    assert_same(run_tiny("inline"), run_tiny("processes", run={"home": "processes"}), 4)


def test_stale_processes_equal_inline_and_a_run_can_move(run_tiny: Run) -> None:
    sections: dict[str, Any] = {"algorithm": {"staleness": 1}, "model": {"scratch": WIDE}}
    whole = run_tiny("whole", run={"steps": 6}, **sections)
    run_tiny("parts", run={"steps": 4, "home": "processes"}, **sections)
    parts = run_tiny("parts", run={"steps": 6}, resume=True, **sections)
    assert_same(whole, parts, 6)
    spans = [json.loads(line) for line in parts.spans.read_text().splitlines()]
    begins = {(span["stage"], span["step"]): span["start_s"] for span in spans}
    assert begins["pull", 3] > begins["push", 3] > begins["update", 3]  # one clock for all processes


def test_a_killed_worker_ends_the_run(tmp_path: Path) -> None:
    process = start_endless(tmp_path)
    (trainer,) = (pid for pid, command in running(process.pid).items() if "'all'" in command)
    os.kill(trainer, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "error: worker all was killed by SIGKILL (the system does that when memory runs out)" in errors
    assert "Traceback" not in errors
    assert not running(process.pid)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"


def test_control_c_to_the_whole_group_ends_in_order(tmp_path: Path) -> None:
    process = start_endless(tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    assert not running(process.pid)
    saved = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1]
    assert int(saved.name.removeprefix("step-")) == lines(tmp_path / "run") - 1


@pytest.mark.slow
def test_a_killed_run_leaves_no_worker(tmp_path: Path) -> None:
    names = shared_memory()
    process = start_endless(tmp_path)
    process.kill()
    wait_until(lambda: not running(process.pid), 60)
    process.communicate()
    wait_until(lambda: shared_memory() <= names, 60)


def judge(folder: Path) -> WorkerSpec:
    """Return the worker that needs least: it loads the tokenizer of ``folder`` and the rewards."""
    recipe = tiny_recipe()
    return WorkerSpec(recipe, build_graph(recipe), ("reward",), Origin(folder, folder, None, 0), 1)


def test_errors_arrive_and_calls_keep_their_order(tmp_path: Path) -> None:
    scratch = tiny_recipe().model.scratch
    assert scratch is not None
    tokenizer = character_tokenizer(scratch.characters)
    spec = ScratchSpec(**{name: getattr(scratch, name) for name in ScratchSpec.__dataclass_fields__})
    save_model(scratch_model(spec, tokenizer, 0), tokenizer, tmp_path / "model")
    home = ProcessHome()
    try:
        good, bad = home.spawn("good", judge(tmp_path / "model")), home.spawn("bad", judge(tmp_path / "none"))
        check_a_failed_start(bad.exception(60), tmp_path / "none")
        assert good.result(60) is None
        check_order_and_errors(home, "good")
        check_death(home)
    finally:
        started_s = time.monotonic()
        home.close()
        assert time.monotonic() - started_s < 30  # otherwise it waits for a worker that is dead
    assert not [command for command in running(os.getpgrp()).values() if f"{os.getpid()}, 'good'" in command]


def check_a_failed_start(error: BaseException | None, folder: Path) -> None:
    """What the user gave wrong reads the same in every home."""
    home = InlineHome()
    expected = home.spawn("bad", judge(folder)).exception()
    home.close()
    assert isinstance(error, ModelError)
    assert isinstance(expected, ModelError)
    assert (str(error), error.faults) == (str(expected), expected.faults)


def verify(step: int, num_groups: int) -> Task:
    """Return a task of the judge: groups of 4 answers "1" each."""
    num = num_groups * 4
    tokens = Ragged.of([[5]] * num, torch.int64)
    version = Ragged.of([[0]] * num, torch.int32)
    columns = {"tokens": tokens, "mask": Ragged.of([[1]] * num, torch.bool), "version": version}
    samples = Rows({**columns, "finished": torch.ones(num, dtype=torch.bool)})
    return Task("reward", StageKind.VERIFY, step, 0, Rows({"row": torch.arange(num_groups)}), samples, {})


def check_order_and_errors(home: Home, name: str) -> None:
    """Many calls at once, some large and some wrong, are answered one by one."""
    sizes = [1, 600, 2, 500]
    calls = [home.call(name, "run", verify(step, size)) for step, size in enumerate(sizes)]
    wrong = home.call(name, "no_such_method")
    after = home.call(name, "run", verify(4, 3))
    outcomes = [call.result(60) for call in calls]
    assert [outcome.num_rows for outcome, _, _ in outcomes] == [4 * size for size in sizes]
    assert outcomes[1][0].rows.tensor("reward").tolist() == [1 / 8] * 2400
    starts = [start_s for _, start_s, _ in outcomes]
    assert starts == sorted(starts)
    error = wrong.exception(60)
    assert type(error) is RunFault
    head, *trace = str(error).splitlines()
    assert head == f"worker {name}: AttributeError: 'Worker' object has no attribute 'no_such_method'"
    assert trace[0] == "Traceback (most recent call last):"
    assert any("servant.py" in line for line in trace)
    assert after.result(60)[0].num_rows == 12
    with pytest.raises(TypeError, match="cannot pickle"):
        home.call(name, "run", (letter for letter in "ab"))


def check_death(home: ProcessHome) -> None:
    """A call under way, and every later one, says how the worker ended and what it was to do."""
    under_way = home.call("good", "run", verify(6, 5000))
    (pid,) = (pid for pid, text in running(os.getpgrp()).items() if f"{os.getpid()}, 'good'" in text)
    os.kill(pid, signal.SIGKILL)
    died = "worker good was killed by SIGKILL (the system does that when memory runs out)"
    with pytest.raises(WorkerDied) as caught:
        under_way.result(10)
    assert str(caught.value) == f"{died} when it was to do reward of step 7"
    with pytest.raises(WorkerDied) as caught:
        home.call("good", "save", Path("x")).result(10)
    assert str(caught.value) == f"{died} before it could save"


def every_error() -> list[type[RpegError]]:
    found, left = [], [RpegError]
    while left:
        found.append(left[-1])
        left.extend(left.pop().__subclasses__())
    return found


@pytest.mark.parametrize("kind", every_error())
def test_every_error_of_ours_survives_the_way(kind: type[RpegError]) -> None:
    faults = [Fault("a.b", "is 1", "make it 2"), Fault("c", "is 3")]
    error = kind("subject", faults) if issubclass(kind, InvalidInput) else kind("text")
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), getattr(back, "faults", ())) == (kind, str(error), getattr(error, "faults", ()))


WIDE = {
    "layers": 1,
    "hidden": 64,
    "heads": 2,
    "intermediate": 256,
    "vocabulary": 24,
    "max_positions": 64,
    "init_std": 0.1,
    "characters": "0123456789+-=;#.",
}
"""Wide enough that some of its weights travel through shared memory."""
