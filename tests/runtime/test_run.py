"""Whole runs: they repeat, they resume bit for bit, they leave what they promise."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.runtime.conftest import TINY, Recorder, tiny_recipe
from transformers import AutoModelForCausalLM, AutoTokenizer

from rpeg.errors import InvalidInput, RunFault, RunFolderError
from rpeg.observe.run_folder import RunFolder
from rpeg.runtime.run import train

Run = Callable[..., RunFolder]

FAILING = """def sometimes(completions, **_):
    if len(completions) > 8:
        raise KeyError('lost')
    return [1.0] * len(completions)
"""
"""Works on the few rows it is tried on and on the 8 held-out ones, fails on the 16 samples of a step."""


def untimed(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the metrics without what a clock says."""
    rows = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "perf/"))} for row in rows]


def tensors(folder: RunFolder, step: int) -> dict[str, torch.Tensor]:
    """Return weights and moments of a checkpoint."""
    path = folder.checkpoint(step)
    return {**load_file(path / "model" / "model.safetensors"), **load_file(path / "moments.safetensors")}


def assert_same(a: RunFolder, b: RunFolder, step: int) -> None:
    """Weights, moments, metrics and samples are equal to the last bit."""
    first, second = tensors(a, step), tensors(b, step)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    assert untimed(a) == untimed(b)
    assert a.samples.read_text() == b.samples.read_text()


def test_a_run_leaves_what_it_promises(run_tiny: Run) -> None:
    folder = run_tiny("whole")
    rows = untimed(folder)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["step"] for row in rows if "eval/accuracy" in row] == [0, 2, 4]
    last = rows[-1]
    expected = {"steps": 4, "updates": 8, "prompts": 16, "samples": 64}
    assert {name: last[f"counters/{name}"] for name in expected} == expected
    model = AutoModelForCausalLM.from_pretrained(folder.model)
    assert AutoTokenizer.from_pretrained(folder.model)("12")["input_ids"] == [5, 6]
    assert torch.equal(model.state_dict()["model.norm.weight"], tensors(folder, 4)["model.norm.weight"])
    assert json.loads(folder.run.read_text())["status"] == "finished"
    assert json.loads(folder.trace.read_text())["traceEvents"]
    assert {path.name for path in folder.checkpoints.iterdir()} == {"step-000002", "step-000004"}


def test_every_row_is_accounted_for(run_tiny: Run) -> None:
    for row in untimed(run_tiny("books"))[1:]:
        assert row["rows/trained"] + row["rows/without_advantage"] + row["rows/unscorable"] == 16
        assert row["rows/trained"] > 0


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_equal_recipes_give_equal_runs(run_tiny: Run, staleness: int) -> None:
    sections = {"algorithm": {"staleness": staleness}}
    assert_same(run_tiny("a", **sections), run_tiny("b", **sections), 4)


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_resumed_equals_uninterrupted(run_tiny: Run, staleness: int) -> None:
    sections = {"algorithm": {"staleness": staleness}}
    whole = run_tiny("whole", **sections)
    run_tiny("parts", run={"steps": 2}, **sections)
    parts = run_tiny("parts", resume=True, **sections)
    # The last step of a run is evaluated, so a run of 2 steps and one of 4 agree in what both have done.
    assert_same(whole, parts, 4)


@pytest.mark.parametrize("staleness", [0, 1])
def test_control_c_saves_and_the_resumed_run_equals_the_uninterrupted(run_tiny: Run, staleness: int) -> None:
    sections: dict[str, Any] = {"algorithm": {"staleness": staleness}, "run": {"checkpoint_every_steps": 100}}
    whole = run_tiny("whole", **sections)

    def press(step: int) -> None:
        if step == 1:
            os.kill(os.getpid(), signal.SIGINT)

    parts = run_tiny("parts", at_step=press, **sections)
    assert json.loads(parts.run.read_text())["status"] == "interrupted"
    assert 1 <= untimed(parts)[-1]["step"] < 4
    assert_same(whole, run_tiny("parts", resume=True, **sections), 4)


@pytest.mark.parametrize("staleness", [0, 1, 2, 3])
def test_staleness_is_what_the_recipe_says(run_tiny: Run, staleness: int) -> None:
    rows = untimed(run_tiny("stale", algorithm={"staleness": staleness}))
    assert [row["staleness/max"] for row in rows[1:]] == [min(staleness, step) for step in range(4)]
    if staleness == 0:
        assert rows[1]["correction/ratio_max"] == pytest.approx(1.0, abs=1e-5)
        assert rows[1]["policy/ratio_mean"] != 1.0  # the second update of a step is off its proximal policy


def test_stale_runs_overlap_and_correct(run_tiny: Run) -> None:
    folder = run_tiny("overlap", algorithm={"staleness": 1}, run={"steps": 6})
    spans = [json.loads(line) for line in folder.spans.read_text().splitlines()]
    by_event = {(s["stage"], s["firing"], s["step"]): s for s in spans}
    ahead = [by_event["gen", 0, step + 1]["start_s"] < by_event["update", 1, step]["end_s"] for step in range(1, 6)]
    assert any(ahead), "no step was generated while the one before was trained"
    assert any(row["correction/ratio_mean"] != 1.0 for row in untimed(folder)[2:])


def test_a_reference_pulls_and_is_frozen(run_tiny: Run) -> None:
    rows = untimed(run_tiny("kl", algorithm={"kl_coefficient": 0.5, "updates_per_step": 1}))
    assert rows[1]["loss/kl"] == pytest.approx(0.0, abs=1e-6)  # policy and reference are still the same
    assert all(row["loss/kl"] > 1e-4 for row in rows[2:])
    assert all(row["rows/without_advantage"] == 0 for row in rows[1:])  # the reference pulls on every row


@pytest.mark.parametrize("seed", [20260101, 2**31 - 1])
def test_a_seed_may_be_a_date_or_large(run_tiny: Run, seed: int) -> None:
    carried = {"staleness": 1, "partial_rollouts": {"max_carry": 1, "budget_tokens": 4, "enforce": "count"}}
    sections: dict[str, Any] = {"algorithm": carried, "run": {"seed": seed, "steps": 1}}
    assert untimed(run_tiny("dated", **sections))[-1]["rows/trained"] > 0


def test_a_taken_folder_is_refused(run_tiny: Run) -> None:
    run_tiny("taken", run={"steps": 1})
    with pytest.raises(RunFolderError, match=r"holds a run already; add --resume"):
        run_tiny("taken", run={"steps": 1})


def test_another_recipe_cannot_resume(run_tiny: Run) -> None:
    run_tiny("other", run={"steps": 1})
    with pytest.raises(RunFolderError, match=r"optimizer\.lr: was 0\.01 in this run, is 0\.5 now"):
        run_tiny("other", resume=True, optimizer={"lr": 0.5})


def test_more_steps_can_be_asked_for_unless_the_rate_depends_on_them(run_tiny: Run) -> None:
    run_tiny("more", run={"steps": 1}, optimizer={"schedule": "cosine"})
    with pytest.raises(RunFolderError, match=r"run\.steps: was 1 in this run, is 2 now"):
        run_tiny("more", run={"steps": 2}, optimizer={"schedule": "cosine"}, resume=True)


def test_fewer_steps_than_are_done_are_refused(run_tiny: Run) -> None:
    run_tiny("fewer", run={"steps": 3})
    with pytest.raises(RunFolderError, match=r"run\.steps: 2, but this run has done 3; ask for 3 or more"):
        run_tiny("fewer", run={"steps": 2}, resume=True)


def test_what_cannot_be_built_is_refused_before_there_is_a_folder() -> None:
    scratch = {**TINY["model"]["scratch"], "characters": "abc", "architecture": "qwen33"}

    def no_folder() -> RunFolder:
        raise AssertionError("a folder was opened")

    with pytest.raises(InvalidInput) as refused:
        train(tiny_recipe(model={"scratch": scratch}, run={"device": "cuda"}), no_folder, Recorder())
    text = str(refused.value)
    assert "model.scratch.architecture: 'qwen33' is not a causal model type" in text
    assert "'+' is not in the vocabulary" in text
    assert torch.cuda.is_available() or "run.device: 'cuda' was asked for" in text


def test_a_report_that_fails_does_not_hide_how_the_run_ended(tmp_path: Path) -> None:
    listener = Recorder()

    def fail(folder: RunFolder) -> Path:
        raise OSError("disk full")

    folder = RunFolder(tmp_path)
    summary = train(tiny_recipe(run={"steps": 1}), lambda: folder, listener, fail)
    assert (summary.status, summary.report) == ("finished", None)
    assert listener.messages[-1] == "no report: OSError: disk full"


def test_a_broken_checkpoint_is_passed_over(run_tiny: Run, tmp_path: Path) -> None:
    whole = run_tiny("whole")
    parts = run_tiny("parts")
    weights = parts.checkpoint(4) / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    listener = Recorder()
    train(tiny_recipe(), lambda: parts, listener, resume=True)
    assert any("step-000004 is incomplete" in text and "model.safetensors" in text for text in listener.messages)
    assert "resuming after step 2" in listener.messages
    assert_same(whole, parts, 4)


def test_a_failing_reward_is_counted_and_named(run_tiny: Run, tmp_path: Path) -> None:
    source = tmp_path / "reward.py"
    source.write_text(FAILING)
    reason = r"no answer of step 1 could be scored: sometimes: KeyError: 'lost' \(reward\.py:3\)"
    with pytest.raises(RunFault, match=reason):
        run_tiny("failing", reward={"functions": [{"function": f"{source}:sometimes"}]})


def test_a_reward_with_the_wrong_count_is_refused_before_the_start(run_tiny: Run, tmp_path: Path) -> None:
    source = tmp_path / "reward.py"
    source.write_text("def one(completions, **_):\n    return [1.0]\n")
    with pytest.raises(InvalidInput, match=r"expected 3 values, one per completion, got 1"):
        run_tiny("count", reward={"functions": [{"function": f"{source}:one"}]})
    assert not (tmp_path / "count" / "recipe.yaml").exists()
