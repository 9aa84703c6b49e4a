"""Models beside the policy: what a critic shares and trains, reward models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.runtime.conftest import TINY, Recorder, tiny_recipe
from tests.runtime.test_run import untimed
from transformers import AutoConfig, AutoModelForSequenceClassification

from rpeg.errors import InvalidInput, PlanError
from rpeg.graph.stage import StageKind
from rpeg.numerics.model import ScratchSpec, save_model, scratch_model
from rpeg.numerics.tokenizer import character_tokenizer
from rpeg.observe.run_folder import RunFolder
from rpeg.plan.bind import HOST
from rpeg.recipe.graph import build_graph
from rpeg.runtime.critic import Critic
from rpeg.runtime.origin import Origin
from rpeg.runtime.policy import Policy
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.run import train
from rpeg.runtime.task import Task

Run = Callable[..., RunFolder]

ONE: dict[str, Any] = {"run": {"steps": 1}, "optimizer": {"lr": 1e-2, "clip_norm": 1e9}}
DEEP = {"scratch": {**TINY["model"]["scratch"], "layers": 2}}


def shared(sharing: str, **critic: Any) -> dict[str, Any]:
    """Return the sections of PPO on a shared trunk of two layers; one update, so that nothing is clipped."""
    return {
        "model": DEEP,
        "algorithm": {"name": "ppo_shared", "updates_per_step": 1},
        "critic": {"sharing": sharing, **critic},
    }


def weights(folder: RunFolder, step: int) -> dict[str, torch.Tensor]:
    """Return the weights of the policy."""
    return load_file(folder.checkpoint(step) / "model" / "model.safetensors")


def valued_rows() -> Rows:
    """Return two rows without advantage, so that only the values have a gradient."""
    mask = [[False, True, True], [False, True, True]]
    per_token = Ragged.of([[0.0, -1.0, -2.0], [0.0, -3.0, -1.0]], torch.float32)
    return Rows(
        {
            "tokens": Ragged.of([[4, 5, 6], [7, 8, 9]], torch.int64),
            "mask": Ragged.of(mask, torch.bool),
            "logp": per_token,
            "old_logp": per_token,
            "version": Ragged.of([[0, 0, 0], [0, 0, 0]], torch.int32),
            "advantage": Ragged.of([[0.0] * 3] * 2, torch.float32),
            "return": Ragged.of([[0.0, 1.0, 1.0], [0.0, -1.0, 1.0]], torch.float32),
            "old_value": Ragged.of([[0.0] * 3] * 2, torch.float32),
        }
    )


@pytest.mark.parametrize(
    ("sharing", "trained"),
    [
        ("full", {"embed_tokens", "layers.0", "layers.1", "norm"}),
        ("detached", set()),
        ("lower", {"embed_tokens", "layers.0"}),
    ],
)
def test_what_the_values_train(tmp_path: Path, sharing: str, trained: set[str]) -> None:
    folder = other_model(tmp_path / "model", layers=2)
    recipe = tiny_recipe(**shared(sharing, value_clip=None))
    policy = Policy(recipe, build_graph(recipe).contract, Origin(folder, folder, None, 0))
    head = policy._head
    assert head is not None
    head.linear.weight.data.fill_(1.0)
    policy.train(Task("train", StageKind.TRAIN, 0, 0, Rows({}), valued_rows(), {}))
    moved = [name for name, each in policy.model.named_parameters() if each.grad is not None and each.grad.any()]
    parts = {part for name in moved for part in PARTS if name.startswith(f"model.{part}.")}
    assert parts == trained
    assert bool(head.linear.weight.grad is not None and head.linear.weight.grad.any())
    assert all(each.grad is not None and bool(each.grad.any()) for each in head.upper.parameters())
    assert (len(head.upper) == 1) == (sharing == "lower")


PARTS = ("embed_tokens", "layers.0", "layers.1", "norm")


@pytest.mark.parametrize("mask_truncated", [False, True])
def test_answers_that_were_cut_off_teach_a_critic_unless_masked(tmp_path: Path, mask_truncated: bool) -> None:
    """Of two answers the second was cut off: masked, the gradient and the tokens it is divided by are of the first."""
    folder = other_model(tmp_path / "model")
    recipe = tiny_recipe(
        algorithm={"name": "ppo", "updates_per_step": 1, "mask_truncated": mask_truncated},
        optimizer={"lr": 1e-2, "clip_norm": 1e9},
    )
    graph = build_graph(recipe)
    (columns,) = [read.columns for read in graph.reads("train_critic") if read.data == "rollouts"]
    assert ("finished" in columns) == mask_truncated
    found, alone = (Critic(recipe, Origin(folder, folder, None, 0)) for _ in range(2))
    rows = valued_rows().joined(Rows({"finished": torch.tensor([True, False])}))
    found.train(Task("train_critic", StageKind.TRAIN, 0, 0, Rows({}), rows, {}))
    alone.train(Task("train_critic", StageKind.TRAIN, 0, 0, Rows({}), rows.part(0, 1), {}))
    update = Task("update_critic", StageKind.UPDATE, 0, 0, Rows({}), Rows({}), {})
    norms = [each.update(update).metrics["critic/grad_norm"] for each in (found, alone)]
    assert (norms[0] == pytest.approx(norms[1], rel=1e-5)) == mask_truncated


def test_one_pass_for_scores_and_values(run_tiny: Run) -> None:
    plain = shared("full")
    fused = shared("full")
    fused["algorithm"] = {**fused["algorithm"], "rewrites": ("fuse_forward{a=old_logp,b=value}",)}
    first, second = (untimed(run_tiny(name, **each)) for name, each in (("two", plain), ("one", fused)))
    for expected, found in zip(first, second, strict=True):
        assert found == pytest.approx(expected, abs=2e-4, rel=2e-4)


def test_a_head_learns_at_its_own_rate(run_tiny: Run) -> None:
    """AdamW's first update moves every weight by its rate: the head's bias by 3e-2, the trunk's norm by 1e-2."""
    folder = run_tiny("rates", **shared("full", lr=3e-2), **ONE)
    head = load_file(folder.checkpoint(1) / "model" / "value_head.safetensors")
    assert head["linear.bias"].abs().item() == pytest.approx(3e-2, rel=1e-3)
    norm = weights(folder, 1)["model.norm.weight"]
    assert (norm - 1).abs().max().item() == pytest.approx(1e-2, rel=1e-3)


@pytest.fixture
def judge(tmp_path: Path) -> Path:
    """Return the folder of a reward model for the tiny policy."""
    tokenizer = character_tokenizer(TINY["model"]["scratch"]["characters"])
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model("qwen3", vocab_size=24, num_key_value_heads=2, head_dim=8, num_labels=1, **sizes)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config)
    model.score.weight.data.mul_(50)
    save_model(model, tokenizer, tmp_path / "judge")
    return tmp_path / "judge"


@pytest.mark.parametrize("name", ["ppo", "remax", "grpo"])
def test_a_reward_model_scores(run_tiny: Run, judge: Path, name: str) -> None:
    reward = {**TINY["reward"], "model": str(judge)}
    algorithm = {"name": name, "updates_per_step": 1}
    folder = run_tiny(name, algorithm=algorithm, reward=reward, run={"steps": 2})
    rows = untimed(folder)[1:]
    assert all(row["reward/std"] > 0 for row in rows)
    assert all(row["length/mean"] > 0 and row["optim/grad_norm"] > 0 for row in rows)
    assert ("greedy/reward" in rows[0]) == (name == "remax")


def test_runs_with_a_reward_model_tell_what_others_tell(run_tiny: Run, judge: Path) -> None:
    """Only who scored differs: the same keys of samples and figures of lengths, of the same answers in step 1."""
    one: dict[str, Any] = {"run": {"steps": 1}, "algorithm": {"updates_per_step": 1}, "evaluation": {"every_steps": 0}}
    folders = [run_tiny("judged", reward={**TINY["reward"], "model": str(judge)}, **one), run_tiny("counted", **one)]
    judged, counted = ([json.loads(line) for line in folder.samples.read_text().splitlines()] for folder in folders)
    scores = ("reward", "advantage")
    assert [{**each, **dict.fromkeys(scores)} for each in judged] == [
        {**each, **dict.fromkeys(scores)} for each in counted
    ]
    assert len(judged) == 16
    assert all(each["answer"] and each["row_id"].startswith("arithmetic/train/") for each in judged)
    assert [each["reward"] for each in judged] != [each["reward"] for each in counted]
    (first,), (second,) = (untimed(folder) for folder in folders)
    names = [name for name in second if name.startswith("length/") or name == "rows/truncated"]
    assert len(names) == 4
    assert [first[name] for name in names] == [second[name] for name in names]
    assert sum(each["reward"] for each in judged) / 16 == pytest.approx(first["reward/mean"])


def test_overlong_answers_are_punished_whoever_scores_them(run_tiny: Run, judge: Path) -> None:
    """Seven of the eight tokens are the buffer: an answer of n tokens loses (n - 1) / 7."""
    one: dict[str, Any] = {"run": {"steps": 1}, "algorithm": {"updates_per_step": 1}, "evaluation": {"every_steps": 0}}
    reward = {**TINY["reward"], "model": str(judge)}
    plain = run_tiny("plain", reward=reward, **one)
    punished = run_tiny("punished", reward={**reward, "overlong_buffer_tokens": 7}, **one)
    (first,), (second,) = (untimed(folder) for folder in (plain, punished))
    shown = [json.loads(line) for line in plain.samples.read_text().splitlines()]
    lost = sum((each["length"] - 1) / 7 for each in shown) / 16
    assert second["reward/overlong"] == pytest.approx(-lost)
    assert second["reward/mean"] == pytest.approx(first["reward/mean"] - lost, abs=1e-6)


def other_model(folder: Path, characters: str = "0123456789+-=;#.", layers: int = 1) -> Path:
    """Save another tiny model."""
    tokenizer = character_tokenizer(characters)
    spec = ScratchSpec("qwen3", layers=layers, hidden=16, heads=2, intermediate=32, vocabulary=24)
    save_model(scratch_model(spec, tokenizer, 0), tokenizer, folder)
    return folder


def test_a_critic_may_be_another_model_but_must_read_the_same_tokens(run_tiny: Run, tmp_path: Path) -> None:
    fits, other = other_model(tmp_path / "fits", layers=2), other_model(tmp_path / "other", "9876543210+-=;#.")
    algorithm = {"name": "ppo"}
    folder = run_tiny("fits", algorithm=algorithm, critic={"path": str(fits)}, run={"steps": 1})
    saved = load_file(folder.checkpoint(1) / "critic" / "model.safetensors")
    assert any(name.startswith("model.layers.1.") for name in saved)
    with pytest.raises(InvalidInput, match=r"critic\.path: has another vocabulary: 10 of 20 token ids differ"):
        run_tiny("other", algorithm=algorithm, critic={"path": str(other)})


def test_a_reward_model_gives_one_number(run_tiny: Run, tmp_path: Path) -> None:
    tokenizer = character_tokenizer(TINY["model"]["scratch"]["characters"])
    config = AutoConfig.for_model("qwen3", vocab_size=24, hidden_size=16, intermediate_size=32, num_hidden_layers=1)
    config.num_labels = 2
    save_model(AutoModelForSequenceClassification.from_config(config), tokenizer, tmp_path / "two")
    with pytest.raises(InvalidInput, match="classifies into 2 labels, of which none is the reward"):
        run_tiny("two", reward={**TINY["reward"], "model": str(tmp_path / "two")})


def test_stages_of_one_model_stay_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass of the policy on another mesh than its training would see other weights."""
    monkeypatch.setattr("rpeg.plan.bind._mesh", lambda stage, _: HOST if stage.name == "old_logp" else "all")
    with pytest.raises(PlanError, match=r"actor: old_logp, .* are on 2 meshes: all, host"):
        train(tiny_recipe(algorithm={"name": "ppo"}), lambda: RunFolder(tmp_path), Recorder())
