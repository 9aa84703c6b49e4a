"""A mesh of several ranks in every home that has them: equal numbers, a killed rank is named, and nothing is left.

Every home is started once: its numbers after some steps are compared with those of local processes, then a rank of the
mesh that trains is killed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.runtime.conftest import tiny_recipe
from tests.runtime.homes.test_processes import running, wait_until
from tests.runtime.homes.test_ranked_home import begin, free_port
from tests.runtime.homes.test_ray_home import alive, below, clusters, listening
from tests.runtime.test_kill import command, lines
from tests.runtime.test_ranks_of_runs import APART, Bind, in_stages, in_tensors, trained_in_shares
from tests.runtime.test_run import tensors, untimed

from rpeg.observe.run_folder import RunFolder
from rpeg.observe.trace import read_spans
from rpeg.plan.plan import Home, Residency
from rpeg.recipe.graph import build_graph

pytestmark = pytest.mark.multiproc

STEPS = 3
LOOPBACK = {"0100007F", "0200007F", "0000000000000000FFFF00000100007F"}
"""127.0.0.1 and 127.0.0.2 as the system writes them, the first also within IPv6."""


AWAY = (
    Residency("actor.master", Home.HOST, (("old", "push"),)),
    Residency("actor.moments", Home.DISK, (("update", "update"),)),
)
"""What the ranks that train have on their devices only while they use it."""


def words(
    folder: Path,
    home: str,
    steps: int = 10_000,
    residencies: tuple[Residency, ...] = (),
    bind: Bind = trained_in_shares,
) -> list[str]:
    """Return the command of a run that samples on one rank and trains on two others, by ZeRO 3, from a file."""
    recipe = tiny_recipe(
        model=APART["model"],
        algorithm={"staleness": 1},
        run={"steps": steps, "home": home, "checkpoint_every_steps": 2, "keep_last": 1000},
    )
    (folder / "tiny.yaml").write_text(recipe.to_yaml())
    plan = replace(bind(build_graph(recipe)), residencies=residencies)
    (folder / "plan.json").write_text(plan.to_json())
    return command(folder / "tiny.yaml", folder / "run", "--plan", str(folder / "plan.json"))


@contextmanager
def endless(*commands: tuple[list[str], dict[str, str]], folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a run and wait until it has done some steps; whatever becomes of the test, it ends."""
    started = [begin(line, environment) for line, environment in commands]
    try:
        wait_until(lambda: started[0].poll() is not None or lines(folder / "run") > STEPS + 1, 600)
        assert started[0].poll() is None, started[0].communicate()
        yield started
    finally:
        for process in started:
            process.kill()
            with process:  # wait for its end and close what it wrote to
                pass


def kill(process: subprocess.Popen[str], victim: int) -> str:
    """Kill a rank, and return what the run says of it at its end."""
    os.kill(victim, signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Traceback" not in errors
    return errors


def assert_equal(folder: Path, reference: Path) -> None:
    """Metrics and weights are equal to the last bit, the run failed, and its spans tell ranks apart."""
    mine, theirs = RunFolder(folder / "run"), RunFolder(reference / "run")
    assert untimed(mine)[: STEPS + 1] == untimed(theirs)[: STEPS + 1]
    first, second = tensors(mine, 2), tensors(theirs, 2)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    trained = [span for span in read_spans(mine.spans) if span.stage == "train" and span.step <= STEPS]
    assert {tuple(rank.worker for rank in span.ranks) for span in trained} == {("trn/0", "trn/1")}
    assert all(span.end_s == max(rank.end_s for rank in span.ranks) for span in trained)


def assert_failed(folder: Path) -> None:
    assert json.loads((folder / "run" / "run.json").read_text())["status"] == "failed"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in local processes, which ended when one of its ranks was killed."""
    folder = tmp_path_factory.mktemp("processes")
    with endless((words(folder, "processes"), {}), folder=folder) as (process,):
        pids = below(process.pid)
        assert listening(pids) <= LOOPBACK
        (victim,) = (pid for pid, text in running(process.pid).items() if "'trn/1'" in text)
        errors = kill(process, victim)
    assert "error: worker trn/1 was killed by SIGKILL" in errors
    wait_until(lambda: not alive(pids), 30)  # with them the ports that they listened at
    assert_failed(folder)
    return folder


def test_a_killed_rank_ends_the_run_and_leaves_nothing(reference: Path) -> None:
    assert_equal(reference, reference)


@pytest.mark.slow
def test_actors_of_ray_compute_the_same_and_leave_nothing(reference: Path, tmp_path: Path) -> None:
    before = clusters()
    with endless((words(tmp_path, "ray"), {}), folder=tmp_path) as (process,):
        pids, folders = below(process.pid), clusters() - before
        assert listening(pids) <= LOOPBACK
        log = (tmp_path / "run" / "log.txt").read_text()
        said = re.search(r"worker trn/1 is on 127\.0\.0\.1, process (\d+), cpu", log)
        assert said is not None, log
        errors = kill(process, int(said[1]))
    text = (
        rf"^error: worker trn/1 died when it was to .*: its worker process has died \(process {said[1]} on 127.0.0.1\)"
    )
    assert re.search(text, errors, re.MULTILINE)
    assert not alive(pids)
    assert not any(folder.exists() for folder in folders)
    assert_failed(tmp_path)
    assert_equal(tmp_path, reference)


@pytest.mark.slow
def test_ranks_on_two_nodes_compute_the_same_and_leave_nothing(reference: Path, tmp_path: Path) -> None:
    """Two nodes are two names, and two addresses of the loopback device; the mesh that trains is on the second."""
    address = f"127.0.0.2:{free_port()}"
    shared = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NODELIST": "n[1-2]"}
    shared |= {"RPEG_ADDRESS": address, "RPEG_TOKEN": "s" * 32}
    own = [("n2", "0"), ("n1", "0"), ("n2", "1")]
    line = words(tmp_path, "processes")
    starts = [
        (line, {**shared, "SLURM_PROCID": str(number), "SLURMD_NODENAME": node, "SLURM_LOCALID": local})
        for number, (node, local) in enumerate(own)
    ]
    with endless(*starts, folder=tmp_path) as ranks:
        pids = set().union(*(below(rank.pid) for rank in ranks))
        assert listening(pids) <= LOOPBACK
        log = (tmp_path / "run" / "log.txt").read_text()
        assert "worker roll is on n1 (127.0.0.1), rank 1, cpu\n" in log
        assert "worker trn/1 is on n2 (127.0.0.1), rank 2, cpu\n" in log
        errors = kill(ranks[0], ranks[2].pid)
        outs = [rank.communicate(timeout=60) for rank in ranks[1:]]
    assert re.search(r"^error: worker trn/1 \(rank 2 on n2\) has ended or cannot be reached ", errors, re.MULTILINE)
    assert outs == [("", ""), ("", "")]
    wait_until(lambda: not alive(pids), 30)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", int(address.rpartition(":")[2])), 5)
    assert_failed(tmp_path)
    assert_equal(tmp_path, reference)


@pytest.mark.slow
def test_data_that_every_rank_has_away_at_times_changes_nothing(reference: Path, tmp_path: Path) -> None:
    process = begin(words(tmp_path, "processes", STEPS + 1, AWAY), {})
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert_equal(tmp_path, reference)
    moves = {span.stage: span for span in read_spans(tmp_path / "run" / "spans.jsonl") if span.step == STEPS}
    for name in ("load:actor.master.0", "store:actor.master.0", "load:actor.moments.0", "store:actor.moments.0"):
        assert [rank.worker for rank in moves[name].ranks] == ["trn/0", "trn/1"]
    assert moves["load:actor.moments.0"].bytes == 2 * moves["load:actor.master.0"].bytes
    assert not (tmp_path / "run" / "away").exists()


@pytest.mark.slow
@pytest.mark.parametrize("bind", [trained_in_shares, in_tensors, in_stages])
def test_every_home_trains_a_split_model_alike(tmp_path: Path, bind: Bind) -> None:
    """From the start of a command to its end: local processes, what torchrun started, and actors of Ray."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "--no-python"]
    starts: dict[str, tuple[list[str], str]] = {
        "processes": ([], "processes"),
        "torchrun": (torchrun, "processes"),
        "ray": ([], "ray"),
    }
    for name, (launcher, home) in starts.items():
        (tmp_path / name).mkdir()
        process = begin([*launcher, *words(tmp_path / name, home, STEPS + 1, bind=bind)], {})
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert_equal(tmp_path / name, tmp_path / "processes")
