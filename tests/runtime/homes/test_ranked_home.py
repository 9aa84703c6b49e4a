"""Ranks of a launcher as workers: the same numbers, who is missing or dead is named, and nothing is left running."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runtime.conftest import tiny_recipe
from tests.runtime.homes.test_processes import running, wait_until
from tests.runtime.test_kill import ROOT, command, lines
from tests.runtime.test_run import assert_same

from rpeg.errors import PlanError, RunFault, WaitLimit
from rpeg.observe.run_folder import RunFolder
from rpeg.plan.bind import bind_local
from rpeg.plan.plan import Plan
from rpeg.recipe.graph import build_graph
from rpeg.runtime.homes import ranked_home
from rpeg.runtime.homes.choose import home_faults
from rpeg.runtime.homes.meeting import join
from rpeg.runtime.homes.messages import pack, send_whole
from rpeg.runtime.homes.ranked_home import RankedHome, _Hello
from rpeg.runtime.homes.ranks import Rank

pytestmark = pytest.mark.multiproc

Run = Callable[..., RunFolder]

STALE = {"algorithm": {"staleness": 1}}
"""Two workers with a device: roll and trn."""
NODES = ("n1", "n2")
RANK = Rank(0, 2, 0, "n2", NODES, "")


def free_port() -> int:
    with socket.create_server(("127.0.0.2", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> str:
    """Name a place to meet and keep waits short; return the place."""
    monkeypatch.setenv("RPEG_ADDRESS", f"127.0.0.2:{free_port()}")
    monkeypatch.setenv("RPEG_TOKEN", "s" * 32)
    monkeypatch.setattr(ranked_home, "_ALL_THERE_S", 1.0)
    monkeypatch.setattr(ranked_home, "own_device", lambda: "cuda GPU-a")
    return os.environ["RPEG_ADDRESS"]


def plan() -> Plan:
    return bind_local(build_graph(tiny_recipe(**STALE)))


def come(hello: _Hello) -> None:
    """Join as another rank, on a thread, and stay until rank 0 closes."""

    def stay() -> None:
        with suppress(OSError), join(os.environ, hello.rank) as end:
            send_whole(end, pack(hello))
            end.recv(1)

    threading.Thread(target=stay, daemon=True).start()


OTHER = _Hello(ranked_home.__version__, replace(RANK, number=1, node="n1"), "cuda GPU-b", 0.0)


def test_who_is_missing_is_named(meeting: str) -> None:
    with pytest.raises(WaitLimit, match=r"^1 of 2 ranks have joined after 1 s; missing: rank 1 on n2$"):
        RankedHome(RANK, plan(), "auto", print)
    with pytest.raises(
        PlanError, match=r"has 2 workers with a device \(roll, trn\), 3 processes were started; start 2"
    ):
        RankedHome(replace(RANK, size=3), plan(), "auto", print)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (replace(OTHER, version="0"), r"^rank 1 on n1 runs rpeg 0, rank 0 runs "),
        (replace(OTHER, rank=replace(OTHER.rank, number=0)), "^there are two ranks 0: on n2 and on n1$"),
        (replace(OTHER, rank=replace(OTHER.rank, size=3)), "^rank 1 on n1 is one of 3 ranks, rank 0 one of 2$"),
        (replace(OTHER, device="cpu"), "different kinds of devices .*: rank 0 on n2: cuda GPU-a; rank 1 on n1: cpu$"),
        (
            replace(OTHER, rank=replace(OTHER.rank, node="n2"), device="cuda GPU-a"),
            "^ranks share a device .*: rank 0 on n2: cuda GPU-a; rank 1 on n2: cuda GPU-a$",
        ),
    ],
)
def test_ranks_that_do_not_fit_are_refused(
    meeting: str, monkeypatch: pytest.MonkeyPatch, other: _Hello, message: str
) -> None:
    monkeypatch.setattr(ranked_home, "_ALL_THERE_S", 30.0)
    come(other)
    with pytest.raises(RunFault, match=message):
        RankedHome(RANK, plan(), "auto", print)
    with pytest.raises(ConnectionRefusedError):  # nothing listens any more
        socket.create_connection(("127.0.0.2", int(meeting.rpartition(":")[2])), 5)


def test_workers_follow_nodes_and_strangers_are_counted(meeting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranked_home, "_ALL_THERE_S", 30.0)
    heard: list[str] = []
    host, _, port = meeting.rpartition(":")

    def intrude() -> None:
        wait_until(lambda: _knock(host, int(port)), 20)
        come(OTHER)

    threading.Thread(target=intrude, daemon=True).start()
    home = RankedHome(RANK, plan(), "auto", heard.append)
    home.close()
    assert {name: seat.text for name, seat in home.seats().items()} == {
        "roll": "n1 (127.0.0.1), rank 1, cuda GPU-b",
        "trn": "n2 (127.0.0.2), rank 0, cuda GPU-a",
        "host": "n2 (127.0.0.2), rank 0, cpu",
    }
    assert heard == [f"1 connections of strangers to {meeting} were refused"]


def _knock(host: str, port: int) -> bool:
    """Send what is no greeting and wait for the door to be shut; whether there was a door."""
    try:
        with socket.create_connection((host, port), 5) as end:
            end.sendall(b"GET / HTTP/1.1\r\n".ljust(64, b"."))
            while end.recv(64):
                pass
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return True


def test_a_launcher_needs_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    (fault,) = home_faults(tiny_recipe())
    assert str(fault).startswith("run.home: is inline, and a launcher started 2 processes, one for each worker; set it")
    assert not list(home_faults(tiny_recipe(run={"home": "processes"})))


def written(folder: Path, **run: object) -> Path:
    """Write the recipe of a run in ranks."""
    recipe = folder / "tiny.yaml"
    recipe.write_text(tiny_recipe(run={"home": "processes", **run}, **STALE).to_yaml())
    return recipe


def begin(words: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start something in a process group of its own."""
    return subprocess.Popen(
        words,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_two_nodes_train_like_one_process(run_tiny: Run, tmp_path: Path) -> None:
    """Two nodes are two names, and two addresses of the loopback device."""
    recipe = written(tmp_path)
    shared = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_LOCALID": "0"}
    shared |= {"RPEG_ADDRESS": f"127.0.0.2:{free_port()}", "RPEG_TOKEN": "s" * 32}
    words = [word for word in command(recipe, tmp_path / "ranks") if word != "--quiet"]
    ranks = [
        begin(words, {**shared, "SLURM_PROCID": str(number), "SLURMD_NODENAME": node})
        for number, node in enumerate(("n2", "n1"))
    ]
    outs = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outs
    assert "worker roll is on n1 (127.0.0.1), rank 1, cpu\n" in outs[0][0]
    assert outs[1] == ("", "")
    assert_same(run_tiny("inline", **STALE), RunFolder(tmp_path / "ranks"), 4)
    assert not any(running(rank.pid) for rank in ranks)


@pytest.mark.slow
def test_torchrun_trains_like_one_process(run_tiny: Run, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    process = begin([*torchrun, *command(written(tmp_path), tmp_path / "ranks")], {})
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert_same(run_tiny("inline", **STALE), RunFolder(tmp_path / "ranks"), 4)


def launched(folder: Path) -> subprocess.Popen[str]:
    """Start an endless run with ``rpeg launch`` and wait until it has done two steps."""
    recipe = written(folder, steps=10_000)
    words = [sys.executable, "-m", "rpeg", "launch", str(recipe), "--local", "2", "--run-dir", str(folder / "run")]
    process = begin(words, {})
    wait_until(lambda: process.poll() is not None or lines(folder / "run") >= 3, 300)
    assert process.poll() is None, process.communicate()
    return process


def ranks_of(process: subprocess.Popen[str]) -> dict[int, int]:
    """Return the processes that ``rpeg launch`` has started, by rank."""
    found = {}
    for pid in running(process.pid):
        with suppress(OSError):
            environment = (Path(f"/proc/{pid}/environ")).read_text().split("\0")
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if parent == process.pid:
                found |= {int(text.removeprefix("RANK=")): pid for text in environment if text.startswith("RANK=")}
    return found


@pytest.mark.slow
def test_control_c_to_all_saves_and_leaves_nothing(tmp_path: Path) -> None:
    process = launched(tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    assert not running(process.pid)
    saved = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1]
    assert int(saved.name.removeprefix("step-")) == lines(tmp_path / "run") - 1


@pytest.mark.slow
def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    process = launched(tmp_path)
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    node = re.escape(socket.gethostname())
    assert re.search(rf"^error: worker trn \(rank 1 on {node}\) has ended or cannot be reached ", errors, re.MULTILINE)
    assert "Traceback" not in errors
    assert not running(process.pid)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"


@pytest.mark.slow
def test_when_rank_0_is_killed_the_others_end(tmp_path: Path) -> None:
    process = launched(tmp_path)
    os.kill(ranks_of(process)[0], signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert not running(process.pid)
