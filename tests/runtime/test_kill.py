"""kill -9 at any moment, then --resume: the run ends as if nothing had happened. Started the way a user starts it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.runtime.conftest import tiny_recipe
from tests.runtime.test_run import assert_same

from rpeg.observe.run_folder import RunFolder

pytestmark = pytest.mark.multiproc

ROOT = Path(__file__).parents[2]


def command(recipe: Path, folder: Path, *more: str) -> list[str]:
    """Return the command line of a run."""
    return [sys.executable, "-m", "rpeg", "train", str(recipe), "--run-dir", str(folder), "--quiet", *more]


def start(recipe: Path, folder: Path, *more: str) -> subprocess.Popen[str]:
    """Start a run in a process group of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command(recipe, folder, *more), cwd=ROOT, env=environment, start_new_session=True, **pipes)


def finish(process: subprocess.Popen[str]) -> None:
    """Wait for a run that must succeed."""
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


def lines(folder: Path) -> int:
    """Return how many steps are written."""
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


@pytest.mark.parametrize("staleness", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path, staleness: int) -> None:
    recipe = tmp_path / "tiny.yaml"
    sections = {"run": {"steps": 12, "checkpoint_every_steps": 3}, "algorithm": {"staleness": staleness}}
    recipe.write_text(tiny_recipe(**sections).to_yaml())
    whole = start(recipe, tmp_path / "whole")
    draw = random.Random(staleness)
    more: tuple[str, ...] = ()
    for target in (2, 7):
        process = start(recipe, tmp_path / "parts", *more)
        while process.poll() is None and lines(tmp_path / "parts") <= target:
            time.sleep(0.01)
        time.sleep(draw.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        more = ("--resume",)
    finish(start(recipe, tmp_path / "parts", "--resume"))
    finish(whole)
    assert_same(RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "parts"), 12)


def test_killed_before_the_first_checkpoint_starts_from_the_beginning(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(tiny_recipe(warmup={"steps": 400, "batch_size": 4}, run={"steps": 2}).to_yaml())
    process = start(recipe, tmp_path / "run")
    while process.poll() is None and not (tmp_path / "run" / "warmup.jsonl").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finish(start(recipe, tmp_path / "run", "--resume"))
    updates = [json.loads(line)["update"] for line in (tmp_path / "run" / "warmup.jsonl").read_text().splitlines()]
    assert updates == list(range(1, 401))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_ends_and_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(tiny_recipe(run={"steps": 10_000}).to_yaml())
    process = start(recipe, tmp_path / "run")
    while process.poll() is None and lines(tmp_path / "run") < 3:
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    saved = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1]
    assert int(saved.name.removeprefix("step-")) == lines(tmp_path / "run") - 1
    assert (tmp_path / "run" / "report.html").exists()
