"""Rewards that never differ: said once, after a while, with what is to blame."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime.conftest import Recorder, tiny_recipe
from tests.runtime.test_run import untimed

from rpeg.observe.run_folder import RunFolder
from rpeg.runtime.run import train
from rpeg.runtime.spread_watch import PATIENCE_STEPS, SpreadWatch

FLAT = {"group/zero_spread": 1.0, "reward/std": 0.5}
SAME = "the problems are too easy or too hard, or the reward does not tell their answers apart"


def test_it_is_said_once_after_five_steps() -> None:
    watch = SpreadWatch()
    notes = [watch.note(FLAT) for _ in range(3 * PATIENCE_STEPS)]
    assert PATIENCE_STEPS == 5
    assert [number for number, note in enumerate(notes, 1) if note] == [5]
    assert str(notes[4]).endswith(SAME)


def test_one_group_with_spread_begins_the_count_anew() -> None:
    watch = SpreadWatch()
    shares = [1.0] * 4 + [0.75] + [1.0] * 5
    assert [bool(watch.note({"group/zero_spread": share})) for share in shares] == [False] * 9 + [True]


def test_algorithms_without_groups_have_nothing_to_say() -> None:
    watch = SpreadWatch()
    assert not any(watch.note({"reward/std": 0.0}) for _ in range(10))


@pytest.mark.parametrize(("second", "cause"), [("-", "cancel"), ("0 * ", "apart")])
def test_bl_026_functions_that_cancel_are_named(tmp_path: Path, second: str, cause: str) -> None:
    """Two rewards of 5 and -5 whose sum is always 0, and two of which neither differs."""
    body = "def first(completions):\n    return [5.0 * (-1) ** i for i in range(len(completions))]\n"
    body = body if cause == "cancel" else body.replace("5.0", "0.0")
    (tmp_path / "own.py").write_text(
        f"{body}def second(completions):\n    return [{second}x for x in first(completions)]\n"
    )
    functions = [{"function": f"{tmp_path / 'own.py'}:{name}"} for name in ("first", "second")]
    folder, listener = RunFolder(tmp_path), Recorder()
    sections = {"run": {"steps": 6}, "evaluation": {"every_steps": 0}, "algorithm": {"updates_per_step": 1}}
    train(tiny_recipe(reward={"functions": functions, "processes": 0}, **sections), lambda: folder, listener)
    (note,) = [text for text in listener.messages if "group/zero_spread" in text]
    assert note.startswith("step 5: in the last 5 steps all answers of every group had the same reward")
    assert note.endswith(
        "; of the functions first (standard deviation 5), second (standard deviation 5) differ by themselves, "
        "and not in the weighted sum: look at the weights of reward.functions"
        if cause == "cancel"
        else SAME
    )
    last = untimed(folder)[-1]
    assert (last["group/zero_spread"], last["reward/std"], last["optim/grad_norm"]) == (1.0, 0.0, 0.0)
    assert last["reward/first_std"] == last["reward/second_std"] == (5.0 if cause == "cancel" else 0.0)
