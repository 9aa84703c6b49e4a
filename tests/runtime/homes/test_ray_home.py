"""Workers in Ray: the same numbers, errors that arrive, a cluster of others left alone, and of ours nothing left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runtime.conftest import tiny_recipe
from tests.runtime.homes.test_processes import (
    check_a_failed_start,
    check_order_and_errors,
    judge,
    verify,
    wait_until,
)
from tests.runtime.test_kill import lines, start
from tests.runtime.test_run import assert_same

from rpeg.errors import RunFault, WaitLimit, WorkerDied
from rpeg.observe.run_folder import RunFolder
from rpeg.plan.bind import bind_local
from rpeg.plan.plan import Plan
from rpeg.recipe.graph import build_graph
from rpeg.recipe.schema import Recipe
from rpeg.runtime.homes.choose import home_faults, open_home
from rpeg.runtime.homes.home import LOOPBACK, Seat
from rpeg.runtime.homes.ray_cluster import LocalCluster

pytestmark = pytest.mark.multiproc

Run = Callable[..., RunFolder]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A cluster that tests join and leave."""
    started = LocalCluster(4)
    yield started
    started.stop()


def member(cluster: LocalCluster, **run: object) -> tuple[Recipe, Plan]:
    """Return a recipe and a plan for workers on a cluster."""
    recipe = tiny_recipe(run={"home": "ray", "address": cluster.address, **run})
    return recipe, bind_local(build_graph(recipe))


def hosted(pid: int) -> list[int]:
    """Return the processes of actors below a process: Ray gives each a group of its own."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cmdline").read_text().startswith("ray::Hosted") and pid in above(int(entry.name)):
                found.append(int(entry.name))
        except OSError:  # it has just ended
            continue
    return found


def above(pid: int) -> list[int]:
    """Return a process, its parent, and so on."""
    found = [pid]
    while found[-1] > 1:
        found.append(int(Path(f"/proc/{found[-1]}/stat").read_text().rpartition(")")[2].split()[1]))
    return found


def below(pid: int) -> set[int]:
    """Return a process and everything that it started, and so on."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if pid in above(int(entry.name)):
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def listening(pids: set[int]) -> set[str]:
    """Return the addresses that processes listen at, as the system writes them."""
    inodes = set()
    for pid in pids:
        for each in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):  # closed meanwhile
                inodes |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(each)))
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    return {row[1].rpartition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


def test_a_member_trains_like_one_process_and_leaves_the_cluster(run_tiny: Run, cluster: LocalCluster) -> None:
    sections = {"algorithm": {"staleness": 1}}
    member = run_tiny("member", run={"home": "ray", "address": cluster.address}, **sections)
    assert_same(run_tiny("inline", **sections), member, 4)
    wait_until(lambda: not hosted(cluster.pid), 15)
    assert alive({cluster.pid})


def test_errors_arrive_calls_keep_their_order_and_a_death_is_told(
    run_tiny: Run, cluster: LocalCluster, tmp_path: Path
) -> None:
    model = run_tiny("model", run={"steps": 1}).model
    home = open_home(*member(cluster), print)
    try:
        good, bad = home.spawn("host", judge(model)), home.spawn("all", judge(tmp_path / "none"))
        check_a_failed_start(bad.exception(120), tmp_path / "none")
        assert good.result(120) is None
        seats = home.seats()
        assert {replace(seat, process=None) for seat in seats.values()} == {Seat(LOOPBACK, "cpu")}
        assert sorted(seat.process or 0 for seat in seats.values()) == sorted(hosted(cluster.pid))
        assert seats["host"].text == f"{LOOPBACK}, process {seats['host'].process}, cpu"
        check_order_and_errors(home, "host")
        for pid in hosted(cluster.pid):
            os.kill(pid, signal.SIGKILL)
        under_way, later = home.call("host", "run", verify(6, 5000)), home.call("all", "save", Path("x"))
        died = r"its worker process has died \(process \d+ on 127.0.0.1\); the system does that when memory runs out"
        with pytest.raises(WorkerDied, match=f"^worker host died when it was to do reward of step 7: {died}$"):
            under_way.result(60)
        with pytest.raises(WorkerDied, match=f"^worker all died when it was to save: {died}$"):
            later.result(60)
    finally:
        home.close()
    wait_until(lambda: not hosted(cluster.pid), 15)


def test_what_cannot_be_is_said_before_anything_waits(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, plan = member(cluster, device="cuda")
    with pytest.raises(RunFault, match=r"^the plan needs 1 GPUs, the Ray cluster has 0$"):
        open_home(recipe, plan, print)
    first, second = open_home(*member(cluster), print), None  # the second shares the membership of the first
    try:
        monkeypatch.setattr("rpeg.runtime.homes.ray_home._ROOM_S", 0.5)
        recipe, plan = member(cluster, device="cpu")
        second = open_home(recipe, plan, print)  # four CPUs, two for each
        with pytest.raises(WaitLimit, match=r"after 0 s these meshes still wait for it: all, host$"):
            open_home(recipe, plan, print)
    finally:
        if second is not None:
            second.close()
        first.close()
    nobody = tiny_recipe(run={"home": "ray", "address": f"{LOOPBACK}:1"})
    with pytest.raises(RunFault, match=r"^the Ray cluster at 127.0.0.1:1 \(run.address\) cannot be joined: .*refused"):
        open_home(nobody, plan, print)


def test_ray_that_is_missing_is_one_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny_recipe(run={"home": "ray"})
    assert not list(home_faults(recipe))
    monkeypatch.setattr("rpeg.runtime.homes.choose.find_spec", lambda name: None)
    (fault,) = home_faults(recipe)
    assert str(fault) == "run.home: is ray, which is not installed; pip install 'rpeg[ray]'"
    assert not list(home_faults(tiny_recipe(run={"home": "processes"})))


def start_endless(folder: Path) -> tuple[subprocess.Popen[str], set[int], set[Path]]:
    """Start a run on a cluster of its own; return it with the processes and folders of the cluster."""
    before = clusters()
    recipe = folder / "tiny.yaml"
    recipe.write_text(tiny_recipe(run={"steps": 10_000, "home": "ray"}).to_yaml())
    process = start(recipe, folder / "run")
    wait_until(lambda: process.poll() is not None or lines(folder / "run") >= 3, 240)
    assert process.poll() is None, process.communicate()
    assert len(hosted(process.pid)) == 2  # all and host
    return process, below(process.pid), clusters() - before


def clusters() -> set[Path]:
    """Return the folders of clusters on this machine."""
    return set(Path(tempfile.gettempdir()).glob("rpeg-ray-*"))


def alive(pids: set[int]) -> set[int]:
    """Return which of the processes have not ended."""
    return {pid for pid in pids if Path(f"/proc/{pid}/stat").exists() and is_running(pid)}


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_control_c_to_the_whole_group_ends_in_order_and_leaves_nothing(tmp_path: Path) -> None:
    process, pids, folders = start_endless(tmp_path)
    assert listening(pids) <= {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1, as such and within IPv6
    assert listening(pids)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, "")
    assert not alive(pids)
    assert not any(folder.exists() for folder in folders)
    saved = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1]
    assert int(saved.name.removeprefix("step-")) == lines(tmp_path / "run") - 1


@pytest.mark.slow
def test_a_killed_run_leaves_nothing(tmp_path: Path) -> None:
    process, pids, folders = start_endless(tmp_path)
    process.kill()
    process.communicate()
    wait_until(lambda: not alive(pids), 60)
    wait_until(lambda: not any(folder.exists() for folder in folders), 60)


@pytest.mark.slow
def test_a_killed_actor_ends_the_run(tmp_path: Path) -> None:
    process, pids, _ = start_endless(tmp_path)
    os.kill(hosted(process.pid)[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert re.search(
        r"^error: worker \w+ died when it was to do \w+ of step \d+: its worker process has died", errors, re.M
    )
    assert "Traceback" not in errors
    assert not alive(pids)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"
