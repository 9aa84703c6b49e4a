"""Rewards of whole runs: in processes, late, negative, punished for length, cut off."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.conftest import Recorder, tiny_recipe
from tests.runtime.test_run import assert_same, untimed

from rpeg.errors import InvalidInput, RunFault
from rpeg.observe.run_folder import RunFolder
from rpeg.recipe.sources import load_task
from rpeg.runtime.run import train

Run = Callable[..., RunFolder]

DIGITS = {"function": "tests.runtime.rewards:digits"}
ONE_STEP: dict[str, Any] = {"run": {"steps": 1}, "evaluation": {"every_steps": 0}}


def samples(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the samples of training."""
    found = [json.loads(line) for line in folder.samples.read_text().splitlines()]
    return [sample for sample in found if not sample["held_out"]]


def reward_processes() -> list[str]:
    """Return the command lines of this process's reward processes."""
    children = [pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
    commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in children]
    return [command for command in commands if "reward_process" in command]


def own(tmp_path: Path, body: str) -> dict[str, Any]:
    """Return the reward section with a function of this source, ``score``, in one process."""
    path = tmp_path / "own.py"
    path.write_text(body)
    return {"functions": [{"function": f"{path}:score"}], "processes": 1}


def test_rewards_in_processes_give_the_same_run(run_tiny: Run) -> None:
    inside = run_tiny("inside", run={"steps": 2})
    beside = run_tiny("beside", run={"steps": 2}, reward={"functions": [DIGITS], "processes": 2})
    assert_same(inside, beside, 2)
    assert not reward_processes()


def test_a_group_that_hangs_is_counted_named_and_left_out(tmp_path: Path) -> None:
    # The fourth prompt of the step hangs; the first three are those that functions are tried on before the run.
    prompt = load_task(tiny_recipe()).train(3).prompt
    body = "import time\ndef score(prompts, completions):\n"
    body += f"    if {prompt!r} in prompts:\n        time.sleep(60)\n    return [len(c) for c in completions]\n"
    folder, listener = RunFolder(tmp_path), Recorder()
    train(tiny_recipe(reward={**own(tmp_path, body), "timeout_s": 0.5}, **ONE_STEP), lambda: folder, listener)
    (step,) = untimed(folder)
    counts = {"rows/reward_timeouts": 4, "rows/reward_errors": 0, "rows/unscorable": 4, "reward/unscorable": 4}
    assert {name: step[name] for name in counts} == counts
    note = "step 1: score could not score 4 answers to arithmetic/train/3: took longer than reward.timeout_s 0.5"
    assert note in listener.messages
    assert [sample["reward"] is None for sample in samples(folder)] == [False] * 12 + [True] * 4


def for_prompts(rows: range, value: str) -> str:
    """Return a function that has ``value`` for the answers to these rows, and no opinion of others."""
    prompts = [load_task(tiny_recipe()).train(row).prompt for row in rows]
    body = f"ROWS = {prompts!r}\ndef score(prompts, completions):\n"
    return body + f"    return [{value} if p in ROWS else None for p, c in zip(prompts, completions)]\n"


def test_a_firing_in_which_nothing_can_be_scored_does_not_end_the_run(run_tiny: Run, tmp_path: Path) -> None:
    """Streamed, the first two prompts are firings of their own, and together all that one update has."""
    reward = {**own(tmp_path, for_prompts(range(2, 4), "sum(x.isdigit() for x in c)")), "processes": 0}
    found: list[dict[str, Any]] = []
    for name, rewrites in (("whole", ()), ("streamed", ("stream{producer=gen,firings=4}",))):
        algorithm = {"old_logprob": "recomputed", "rewrites": rewrites}
        (step,) = untimed(run_tiny(name, reward=reward, algorithm=algorithm, **ONE_STEP))
        found.append(step)
    names = ("reward/mean", "rows/unscorable", "reward/unscorable", "rows/trained", "loss/policy", "optim/grad_norm")
    whole, streamed = ([step[name] for name in names] for step in found)
    assert streamed == pytest.approx(whole, abs=2e-4, rel=2e-4)
    assert whole[1:3] == [8, 8]
    assert whole[5] > 0


@pytest.mark.parametrize("rewrites", [(), ("stream{producer=gen,firings=4}",)], ids=["whole", "streamed"])
def test_a_step_in_which_nothing_can_be_scored_ends_the_run(
    run_tiny: Run, tmp_path: Path, rewrites: tuple[str, ...]
) -> None:
    # The first step is judged, the second has prompts that the function has no opinion of.
    reward = {**own(tmp_path, for_prompts(range(4), "len(c)")), "processes": 0}
    sections: dict[str, Any] = {"algorithm": {"rewrites": rewrites}, "evaluation": {"every_steps": 0}}
    with pytest.raises(RunFault, match="no answer of step 2 could be scored: every reward function returned None"):
        run_tiny("nothing", reward=reward, **sections)


def test_a_function_that_hangs_at_once_is_refused_before_the_run(tmp_path: Path) -> None:
    body = "import time\ndef score(completions):\n    time.sleep(60)\n"
    with pytest.raises(InvalidInput, match=r"reward score: at arithmetic/train/0: took longer than reward\.timeout_s"):
        train(tiny_recipe(reward={**own(tmp_path, body), "timeout_s": 0.2}), lambda: RunFolder(tmp_path), Recorder())


def test_negative_rewards_are_learned_from_and_nan_is_counted(run_tiny: Run, tmp_path: Path) -> None:
    body = "def score(completions):\n"
    body += (
        "    return [float('nan') if c[:1] in '01234' else -float(sum(x.isdigit() for x in c)) for c in completions]\n"
    )
    folder = run_tiny("negative", reward={**own(tmp_path, body), "processes": 0}, **ONE_STEP)
    (step,) = untimed(folder)
    shown = samples(folder)
    is_nan = [sample["response"][:1] in "01234" for sample in shown]
    assert [sample["reward"] is None for sample in shown] == is_nan
    assert step["rows/unscorable"] == sum(is_nan) > 0
    assert step["reward/mean"] < 0 < step["rows/trained"]


def test_overlong_answers_lose_what_the_line_says(run_tiny: Run) -> None:
    section = {"functions": [DIGITS], "processes": 0, "overlong_buffer_tokens": 4, "overlong_penalty": 0.5}
    folder = run_tiny("long", reward=section, **ONE_STEP)
    shown = samples(folder)
    # By hand: 8 tokens at most, so from the fifth on each takes an eighth: half of a quarter.
    penalties = [-0.125 * max(0, sample["length"] - 4) for sample in shown]
    digits = [sum(c.isdigit() for c in sample["response"]) / 8 for sample in shown]
    assert [sample["reward"] for sample in shown] == [a + b for a, b in zip(digits, penalties, strict=True)]
    (step,) = untimed(folder)
    assert step["reward/overlong"] == pytest.approx(sum(penalties) / 16)
    assert len(set(penalties)) > 1


def test_answers_that_are_cut_off_are_counted_and_left_out_when_asked(run_tiny: Run) -> None:
    (plain,) = untimed(run_tiny("plain", **ONE_STEP))
    (masked,) = untimed(run_tiny("masked", algorithm={"mask_truncated": True}, **ONE_STEP))
    assert plain["rows/truncated"] == masked["rows/truncated"] == 16 * plain["length/truncated"] > 0
    assert (plain["rows/masked"], masked["rows/masked"]) == (0, plain["rows/truncated"])
    assert masked["rows/masked"] + masked["rows/trained"] + masked["rows/without_advantage"] == 16
    assert masked["reward/mean"] == plain["reward/mean"]  # the baseline has them all


@pytest.mark.parametrize("name", ["grpo", "ppo", "ppo_shared"])
def test_a_step_of_answers_that_are_all_cut_off_changes_nothing(run_tiny: Run, name: str) -> None:
    # BL-053: no token is left, so no loss, no gradient and no figure that is not a number.
    algorithm = {"name": name, "mask_truncated": True}
    (step,) = untimed(run_tiny("cut", sampling={"max_new_tokens": 1}, algorithm=algorithm, **ONE_STEP))
    assert step.get("critic/grad_norm", 0.0) == 0.0
    assert (step["rows/truncated"], step["rows/masked"], step["rows/trained"]) == (16, 16, 0)
    assert step["optim/grad_norm"] == 0.0
    assert [name for name, value in step.items() if value is None or value != value] == []
