"""Values that the sampler records: those of the trainer's pass, under the same weights, in every kind of sharing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.runtime.conftest import tiny_recipe
from tests.runtime.test_models import DEEP, other_model, shared, valued_rows
from tests.runtime.test_run import assert_same, untimed

from rpeg.graph.stage import StageKind
from rpeg.observe.run_folder import RunFolder
from rpeg.recipe.graph import build_graph
from rpeg.runtime.generator import Generator
from rpeg.runtime.origin import Origin
from rpeg.runtime.policy import Policy
from rpeg.runtime.roles import Roles
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.task import Staged, Task

Run = Callable[..., RunFolder]

SHARINGS = ["full", "detached", "lower"]


def recorded(sharing: str = "full", **algorithm: Any) -> dict[str, Any]:
    """Return the sections of PPO without a pass for values."""
    sections = shared(sharing, values="recorded")
    return {**sections, "algorithm": {**sections["algorithm"], **algorithm}}


def roles(tmp_path: Path, sharing: str) -> tuple[Policy, Generator, Roles]:
    """Return the two that share a head, as a worker of this graph builds them."""
    folder = other_model(tmp_path / "model", layers=2)
    recipe = tiny_recipe(**recorded(sharing), sampling={"slots": 3})
    made = Roles(recipe, build_graph(recipe), Origin(folder, folder, None, 0))
    return made.policy, made.generator, made


def prompts() -> Rows:
    """Return four prompts, each to be answered four times."""
    tokens = Ragged.of([[4, 5, 6], [7, 8], [9, 10, 11, 12], [5]], torch.int64)
    return Rows({"row": torch.arange(4), "tokens": tokens, "seed": 100 * torch.arange(1, 5)})


def generated(generator: Generator, version: int) -> Rows:
    task = Task("gen", StageKind.GENERATE, version, 0, prompts(), Rows({}), {"actor.rollout": version})
    rows = generator.generate(task).rows
    assert rows is not None
    return rows


@pytest.mark.parametrize("sharing", SHARINGS)
def test_recorded_values_are_those_of_the_pass_before_and_after_an_update(tmp_path: Path, sharing: str) -> None:
    """Three slots for sixteen answers; what is pushed after an update brings the trained head to the sampler."""
    policy, generator, made = roles(tmp_path, sharing)
    assert not generated(generator, 0).ragged("value").values_S.any()
    for _ in range(3):
        policy.train(Task("train", StageKind.TRAIN, 0, 0, Rows({}), valued_rows(), {}))
        policy.update(Task("update", StageKind.UPDATE, 0, 0, Rows({}), Rows({}), {}))
    pushed = made.method("publish")(Task("publish", StageKind.PUSH, 0, 0, Rows({}), Rows({}), {}))
    assert isinstance(pushed.weights, Staged)
    assert sum(name.startswith("value_head.") for name in pushed.weights.whole or ()) == (
        2 if sharing != "lower" else 14
    )
    generator.pull(Task("pull", StageKind.PULL, 0, 0, Rows({}), Rows({}), {}, pushed.weights))
    rows = generated(generator, 1)
    _, expected = policy.score_and_value(rows)
    assert expected.values_S.abs().max() > 1e-2
    torch.testing.assert_close(rows.ragged("value").values_S, expected.values_S, atol=1e-5, rtol=0)
    assert not rows.ragged("value").values_S[~rows.ragged("mask").values_S].any()


def test_held_out_answers_take_no_values(tmp_path: Path) -> None:
    _, generator, _ = roles(tmp_path, "full")
    task = Task("gen", StageKind.GENERATE, 0, 0, prompts(), Rows({}), {"actor.rollout": 0})
    answered = generator.answer(task).rows
    assert answered is not None
    assert "value" not in answered.columns


def test_without_the_rewrite_no_head_is_pushed(tmp_path: Path) -> None:
    folder = other_model(tmp_path / "model", layers=2)
    recipe = tiny_recipe(**shared("full"))
    made = Roles(recipe, build_graph(recipe), Origin(folder, folder, None, 0))
    pushed = made.method("publish")(Task("publish", StageKind.PUSH, 0, 0, Rows({}), Rows({}), {}))
    assert isinstance(pushed.weights, Staged)
    assert (pushed.weights.whole or {}).keys() == dict(made.policy.model.named_parameters()).keys()
    assert "value" not in generated(made.generator, 0).columns


@pytest.mark.parametrize("sharing", SHARINGS)
def test_a_run_is_that_with_the_pass(run_tiny: Run, sharing: str) -> None:
    first = untimed(run_tiny("pass", **shared(sharing)))
    second = untimed(run_tiny("recorded", **recorded(sharing)))
    assert any(row.get("value/mean", 0.0) != 0.0 for row in first)
    for expected, found in zip(first, second, strict=True):
        assert found == pytest.approx(expected, abs=2e-4, rel=2e-4)


def test_no_pass_before_the_training_is_left(run_tiny: Run) -> None:
    """Values and old log-probabilities are recorded: what runs on the trunk is the sampler and the training."""
    sections = recorded(old_logprob="recorded", kl_coefficient=0.0)
    graph = build_graph(tiny_recipe(**sections))
    assert not [stage.name for stage in graph.stages if stage.kind is StageKind.FORWARD]
    row = untimed(run_tiny("none", **sections, run={"steps": 1}))[-1]
    assert row["policy/ratio_min"] == pytest.approx(1.0, abs=1e-5)
    assert row["optim/grad_norm"] > 0


@pytest.mark.parametrize(
    "sections",
    [recorded(), recorded("lower"), {**recorded(staleness=1), "critic": {**recorded()["critic"], "value_clip": None}}],
    ids=["full", "lower", "stale"],
)
def test_resumed_equals_uninterrupted(run_tiny: Run, sections: dict[str, Any]) -> None:
    """The head comes back with the weights; values of answers made ahead are in the checkpoint."""
    whole = run_tiny("whole", **sections)
    run_tiny("parts", run={"steps": 2}, **sections)
    parts = run_tiny("parts", resume=True, **sections)
    assert_same(whole, parts, 4)
    heads = [load_file(folder.checkpoint(4) / "model" / "value_head.safetensors") for folder in (whole, parts)]
    assert all(torch.equal(heads[0][name], heads[1][name]) for name in heads[0])


@pytest.mark.multiproc
@pytest.mark.slow
def test_processes_equal_inline(run_tiny: Run) -> None:
    sections = recorded("lower", old_logprob="recorded")
    inline = run_tiny("inline", run={"steps": 2}, **sections)
    processes = run_tiny("processes", run={"steps": 2, "home": "processes"}, **sections)
    assert_same(inline, processes, 2)


def test_a_sampler_in_bfloat16_records_nearly_the_same(run_tiny: Run) -> None:
    model = {**DEEP, "dtype": "bfloat16"}
    first, second = ({**each, "model": model} for each in (shared("full"), recorded()))
    rows = [untimed(run_tiny(name, **each, run={"steps": 2}))[-1] for name, each in (("p", first), ("r", second))]
    assert rows[1]["value/mean"] == pytest.approx(rows[0]["value/mean"], abs=0.02)
