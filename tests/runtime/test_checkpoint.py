from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rpeg.observe.run_folder import RunFolder
from rpeg.runtime.checkpoint import State, newest, save
from rpeg.runtime.rows import Ragged, Rows

WAITING = {
    "rollouts/4": Rows(
        {"tokens": Ragged.of([[1, 2], [3]], torch.int64), "finished": torch.tensor([True, False])},
    )
}


def write_model(draft: Path) -> None:
    """Stand in for the trainer."""
    (draft / "model").mkdir()
    (draft / "model" / "weights").write_bytes(b"1234")


def silent(text: str) -> None:
    """Expect no warning."""
    raise AssertionError(text)


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    state = State(4, "digest", {"steps": 4, "tokens": 99}, unread=({"step": 4, "reward": 1.0},))
    save(folder, state, WAITING, 2, write_model)
    found = newest(folder, silent)
    assert found is not None
    assert found.state == state
    assert found.names == {"rollouts/4"}
    rows = found.waiting()["rollouts/4"]
    assert [row.tolist() for row in rows.ragged("tokens").rows()] == [[1, 2], [3]]
    assert rows.tensor("finished").tolist() == [True, False]


def test_old_ones_go_and_drafts_never_show(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        save(folder, State(step, "", {}), {}, 2, write_model)
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["step-000002", "step-000003"]


def test_broken_ones_do_not_count_and_go_when_enough_newer_ones_are_complete(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (1, 4, 8, 9):
        save(folder, State(step, "", {}), {}, 4, write_model)
    for step in (4, 8, 9):
        (folder.checkpoint(step) / "model" / "weights").unlink()
    left: list[list[int]] = []
    for step in (0, 2, 5, 8):  # a run that started anew below what is broken
        save(folder, State(step, "", {}), {}, 2, write_model)
        left.append([int(path.name.removeprefix("step-")) for path in folder.all_checkpoints()])
    assert left == [[0, 1, 4, 8, 9], [1, 2, 4, 8, 9], [2, 4, 5, 8, 9], [5, 8, 9]]
    assert folder.checkpoint(8).joinpath("model", "weights").exists()


def test_the_one_just_written_stays_whatever_is_above_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (4, 2):
        save(folder, State(step, "", {}), {}, 1, write_model)
    assert [path.name for path in folder.all_checkpoints()] == ["step-000002", "step-000004"]


def test_steps_of_seven_digits_are_newer_than_those_of_six(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (999_998, 999_999, 1_000_000):
        save(folder, State(step, "", {}), {}, 2, write_model)
    found = newest(folder, silent)
    assert found is not None
    assert found.state.step == 1_000_000
    assert [path.name for path in folder.all_checkpoints()] == ["step-999999", "step-1000000"]


def test_a_save_that_fails_leaves_the_last_one(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    save(folder, State(1, "", {}), {}, 2, write_model)

    def fail(draft: Path) -> None:
        write_model(draft)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        save(folder, State(2, "", {}), {}, 2, fail)
    found = newest(folder, silent)
    assert found is not None
    assert found.state.step == 1
    save(folder, State(2, "", {}), {}, 2, write_model)  # the leftover is in nobody's way
    assert newest(folder, silent).state.step == 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda path: (path / "model" / "weights").unlink(), "model/weights: has None bytes, was written with 4"),
        (lambda path: (path / "model" / "weights").write_bytes(b"12"), "model/weights: has 2 bytes"),
        (lambda path: (path / "state.json").unlink(), "state.json: is missing"),
        (lambda path: (path / "state.json").write_text("{"), "state.json: not JSON"),
    ],
)
def test_incomplete_ones_are_named_and_passed_over(tmp_path: Path, damage: object, named: str) -> None:
    folder = RunFolder(tmp_path)
    save(folder, State(1, "", {}), {}, 5, write_model)
    save(folder, State(2, "", {}), {}, 5, write_model)
    damage(folder.checkpoint(2))  # type: ignore[operator]
    warnings: list[str] = []
    found = newest(folder, warnings.append)
    assert found is not None
    assert found.state.step == 1
    assert len(warnings) == 1
    assert "step-000002 is incomplete" in warnings[0]
    assert named in warnings[0]


def test_no_checkpoint(tmp_path: Path) -> None:
    assert newest(RunFolder(tmp_path), silent) is None
