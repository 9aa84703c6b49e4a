"""Making, finding, resuming in and holding run folders."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from rpeg.errors import RunFolderError
from rpeg.observe.json_files import JsonLines, read_json_lines
from rpeg.observe.run_folder import RunFolder

NOW = datetime(2025, 1, 2, 3, 4, 5)


def test_create_names_the_folder_by_time_and_never_shares_it(tmp_path: Path) -> None:
    names = [RunFolder.create(tmp_path / "runs", "toy", NOW).path.name for _ in range(3)]
    assert names == ["toy-20250102-030405", "toy-20250102-030405-2", "toy-20250102-030405-3"]


def test_newest_goes_by_time_then_by_number(tmp_path: Path) -> None:
    for name in (
        "toy-20250102-030405-2",
        "toy-20250102-030405-10",
        "toy-20241231-235959",
        "toy-x",
        "toy-two-20260101-000000",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "toy-20270101-000000").write_text("a file")
    assert RunFolder.newest(tmp_path, "toy").path.name == "toy-20250102-030405-10"
    assert RunFolder.newest(tmp_path, "toy-two").path.name == "toy-two-20260101-000000"


@pytest.mark.parametrize("root", ["", "nowhere"])
def test_newest_says_what_it_looked_for(tmp_path: Path, root: str) -> None:
    with pytest.raises(RunFolderError, match=r"toy-\*: no such run; start one with 'rpeg train'"):
        RunFolder.newest(tmp_path / root, "toy")


def test_require(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).require().path == tmp_path
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="file: is a file, not a folder"):
        RunFolder(tmp_path / "file").require()
    with pytest.raises(RunFolderError, match="none: does not exist; name a folder under runs/"):
        RunFolder(tmp_path / "none").require()


def test_every_path_is_inside_and_none_twice(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    names = [name for name, value in vars(RunFolder).items() if isinstance(value, property)]
    paths = [getattr(folder, name) for name in names]
    assert len(names) == 18
    assert len(set(paths)) == 18
    assert {path.parent for path in paths} == {tmp_path}
    assert folder.checkpoint(10) == tmp_path / "checkpoints" / "step-000010"


def test_truncate_after_forgets_later_steps_only(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for path in (folder.metrics, folder.samples, folder.spans):
        with JsonLines(path) as lines:
            lines.extend({"step": step, "place": place} for step in range(5) for place in range(2))
        path.write_bytes(path.read_bytes() + b'{"step": 5, "pl')
    folder.warmup.write_text('{"update": 9}\n')
    folder.truncate_after(2)
    for path in (folder.metrics, folder.samples, folder.spans):
        assert [row["step"] for row in read_json_lines(path)] == [0, 0, 1, 1, 2, 2]
        assert path.read_bytes().endswith(b"\n")
    assert folder.warmup.read_text() == '{"update": 9}\n'


def test_truncate_after_forgets_samples_that_had_waited_for_their_rewards(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for path in (folder.metrics, folder.samples):
        with JsonLines(path) as lines:
            lines.extend({"step": step, "held_out": held_out} for step in (1, 2, 3) for held_out in (False, True))
    folder.truncate_after(2, {2})
    kept = [(row["step"], row["held_out"]) for row in read_json_lines(folder.samples)]
    assert kept == [(1, False), (1, True), (2, True)]
    assert [row["step"] for row in read_json_lines(folder.metrics)] == [1, 1, 2, 2]


def test_truncate_after_does_nothing_where_nothing_is(tmp_path: Path) -> None:
    RunFolder(tmp_path).truncate_after(3)
    assert list(tmp_path.iterdir()) == []


def test_lock_names_the_process_that_holds_the_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.lock():
        with pytest.raises(RunFolderError, match=rf"process {os.getpid()} is using it; wait for it, or end it with"):
            with folder.lock():
                pass
        # The failed attempt must not have let go of the lock, nor of the pid in it.
        with pytest.raises(RunFolderError, match=str(os.getpid())):
            with folder.lock():
                pass
    with folder.lock():
        pass


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from rpeg.observe.run_folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).lock():\n    print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(RunFolderError, match=f"process {process.pid} is using it"):
            with RunFolder(tmp_path).lock():
                pass
        process.kill()
    with RunFolder(tmp_path).lock():
        pass


def test_lock_needs_the_folder(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="does not exist"):
        with RunFolder(tmp_path / "none").lock():
            pass
