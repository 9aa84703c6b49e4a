"""Every algorithm by its recipe: a few real steps, what they say, and the same numbers however they are run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.runtime.conftest import Recorder, tiny_recipe
from tests.runtime.test_run import assert_same, untimed

from rpeg.errors import InvalidInput
from rpeg.observe.run_folder import RunFolder
from rpeg.observe.trace import read_spans
from rpeg.recipe.defaults import ALGORITHM_DEFAULTS
from rpeg.recipe.graph import build_graph
from rpeg.runtime.run import train
from rpeg.search.structures import structures

Run = Callable[..., RunFolder]

TWO_STEPS: dict[str, Any] = {"run": {"steps": 2}}


def settings(name: str, **more: Any) -> dict[str, Any]:
    """Return the section of an algorithm; REINFORCE has no ratio and makes one update."""
    updates = {"updates_per_step": 1} if ALGORITHM_DEFAULTS[name].objective == "reinforce" else {}
    return {"name": name, **updates, **more}


@pytest.mark.parametrize("name", ALGORITHM_DEFAULTS)
def test_every_algorithm_trains(run_tiny: Run, name: str) -> None:
    folder = run_tiny(name, algorithm=settings(name), **TWO_STEPS)
    first, last = untimed(folder)[1:]
    assert last["counters/samples"] == 32
    assert last["rows/trained"] + last["rows/without_advantage"] == 16
    assert first["optim/grad_norm"] > 0
    assert ("kl/coefficient" in last) == (ALGORITHM_DEFAULTS[name].kl_coefficient > 0)
    assert ("value/mean" in last) == ALGORITHM_DEFAULTS[name].has_critic
    assert ("critic/lr" in last) == (name == "ppo")
    assert ("greedy/reward" in last) == (name == "remax")


@pytest.mark.parametrize("name", ALGORITHM_DEFAULTS)
def test_every_algorithm_trains_on_stale_answers_as_plans_have_them(tmp_path: Path, name: str) -> None:
    """The search lets answers wait for their step, so the first step has none: nothing is learned, nothing fails."""
    recipe = tiny_recipe(algorithm=settings(name, staleness=1), run={"steps": 3}, evaluation={"every_steps": 0})
    graph = structures(build_graph(recipe), 1)[0].graph
    assert [text for text in map(str, graph.history) if "retime{stage=gen,r=-1}" in text]
    folder = RunFolder(tmp_path)
    train(recipe, lambda: folder, Recorder(), build=lambda _: graph)
    first, *later = untimed(folder)
    assert "rows/trained" not in first
    assert first["optim/grad_norm"] == 0.0
    assert [row["staleness/max"] for row in later] == [1.0, 1.0]
    assert all(row["optim/grad_norm"] > 0 for row in later)


def test_prompts_that_are_read_a_step_late_have_no_answers_at_first(run_tiny: Run) -> None:
    """Only one of two stages that sample is moved, so the other one has the prompts of the step before."""
    algorithm = settings("remax", staleness=1, rewrites=("retime{stage=gen,r=-1}",))
    first, *later = untimed(run_tiny("late", algorithm=algorithm, run={"steps": 3}))[1:]
    assert "greedy/reward" not in first
    assert [row["rows/trained"] + row["rows/without_advantage"] for row in later] == [16.0, 16.0]
    assert all("greedy/reward" in row for row in later)


@pytest.mark.parametrize("name", ALGORITHM_DEFAULTS)
def test_the_ratio_is_one_before_the_first_update(run_tiny: Run, name: str) -> None:
    recomputed = {"old_logprob": "recomputed", "updates_per_step": 1}
    (row,) = untimed(run_tiny(name, algorithm=settings(name, **recomputed), run={"steps": 1}))[1:]
    assert (row["policy/ratio_min"], row["policy/ratio_max"], row["policy/kl_old"]) == (1.0, 1.0, 0.0)
    # What the sampler recorded agrees with what the trainer computes.
    assert row["correction/ratio_min"] == pytest.approx(1.0, abs=1e-5)
    assert row["correction/ratio_max"] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", ["rloo", "reinforce_pp", "remax", "ppo", "ppo_shared"])
def test_the_distance_goes_into_the_reward(run_tiny: Run, name: str) -> None:
    algorithm = settings(name, kl_coefficient=0.5, updates_per_step=1)
    first, *later = untimed(run_tiny(name, algorithm=algorithm, run={"steps": 3}))[1:]
    assert first["kl/answer"] == pytest.approx(0.0, abs=1e-4)  # policy and reference are still the same
    assert all(abs(row["kl/answer"]) > 1e-3 for row in later)
    assert all(row["loss/kl"] == 0.0 for row in [first, *later])


INTERPOLATED: dict[str, Any] = {"staleness": 2, "correction": "decoupled", "old_logprob": "interpolated"}


@pytest.mark.parametrize("name", ["grpo", "ppo", "ppo_shared"])
def test_interpolated_scores_need_no_pass(run_tiny: Run, name: str) -> None:
    """The ratio is 1 in the first update of a step, and in the second leaves it as the policy moves on."""
    folder = run_tiny("between", algorithm=settings(name, **INTERPOLATED))
    stages = {span.stage for span in read_spans(folder.spans)}
    assert not stages & {"old", "old_logp"}
    last = untimed(folder)[-1]
    assert last["staleness/max"] == 2.0
    assert last["policy/kl_old"] > 0
    assert last["correction/kl"] > 1e-4


def test_interpolated_equals_recomputed_where_a_step_has_one_update(run_tiny: Run) -> None:
    """The only update begins with the policy before the step, so what is interpolated is what would be computed."""
    one = {**INTERPOLATED, "updates_per_step": 1}
    first = run_tiny("first", algorithm=settings("grpo", **one))
    second = run_tiny("second", algorithm=settings("grpo", **{**one, "old_logprob": "recomputed"}))
    assert_same(first, second, 4)


@pytest.mark.parametrize("moved", [False, True], ids=["fresh", "stale"])
def test_a_controller_steers_the_distance(run_tiny: Run, moved: bool) -> None:
    """Measured 0 at first, so with target 1 and 16 of 32 answers the error is -0.2: the factor is 1 - 0.2 * 16 / 32.

    Where answers wait for their step, the first has none, and the coefficient stays.
    """
    stale: dict[str, Any] = {"staleness": 1, "rewrites": ("retime{stage=gen,r=-1}",)} if moved else {}
    algorithm = settings("ppo", kl_coefficient=0.5, kl_target=1.0, kl_horizon=32, **stale)
    rows = untimed(run_tiny("steered", algorithm=algorithm, run={"steps": 2 + moved}))[1 + moved :]
    assert rows[0]["kl/coefficient"] == 0.5
    assert rows[1]["kl/coefficient"] == pytest.approx(0.5 * 0.9)


PPO = settings("ppo", kl_coefficient=0.5, kl_target=1.0, kl_horizon=32)


@pytest.mark.parametrize(
    "sections",
    [
        {"algorithm": PPO},
        {"algorithm": {**PPO, "staleness": 1, "reference": "ema"}},
        {"algorithm": {**PPO, "staleness": 1, "rewrites": ("retime{stage=gen,r=-1}",)}},
        {"algorithm": settings("grpo", **INTERPOLATED)},
        {"algorithm": settings("ppo_shared"), "critic": {"sharing": "full", "lr": 3e-2}},
        {"algorithm": settings("remax", kl_coefficient=0.1, reference="ema", reference_decay=0.5, staleness=1)},
    ],
    ids=["ppo", "stale", "waiting", "interpolated", "shared", "remax"],
)
def test_resumed_equals_uninterrupted(run_tiny: Run, sections: dict[str, Any]) -> None:
    whole = run_tiny("whole", **sections)
    run_tiny("parts", run={"steps": 2}, **sections)
    parts = run_tiny("parts", resume=True, **sections)
    assert_same(whole, parts, 4)
    for file in sorted(path.relative_to(whole.checkpoint(4)) for path in whole.checkpoint(4).rglob("*.safetensors")):
        first, second = (load_file(folder.checkpoint(4) / file) for folder in (whole, parts))
        assert first.keys() == second.keys()
        assert [name for name in first if not torch.equal(first[name], second[name])] == []


def test_a_checkpoint_holds_all_that_learns(run_tiny: Run) -> None:
    folder = run_tiny("all", algorithm={**PPO, "reference": "ema"}, run={"steps": 2})
    found = {path.name for path in folder.checkpoint(2).iterdir()}
    assert found == {
        "average.safetensors",
        "critic",
        "critic_moments.safetensors",
        "kl.json",
        "model",
        "moments.safetensors",
        "state.json",
    }


@pytest.mark.multiproc
def test_processes_equal_inline(run_tiny: Run) -> None:
    sections: dict[str, Any] = {"algorithm": PPO}
    inline = run_tiny("inline", run={"steps": 2}, **sections)
    processes = run_tiny("processes", run={"steps": 2, "home": "processes"}, **sections)
    assert_same(inline, processes, 2)


def test_whitened_over_the_batch_cannot_be_streamed_past(run_tiny: Run) -> None:
    algorithm = settings("reinforce_pp", rewrites=("stream{producer=gen,firings=4}",), updates_per_step=1)
    with pytest.raises(InvalidInput, match="stream"):
        run_tiny("streamed", algorithm=algorithm)
