"""Weights that are trained, in bfloat16: what moves, what is saved, and what the passes and others read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.runtime.conftest import TINY, tiny_recipe
from tests.runtime.test_run import assert_same, untimed
from torch import nn
from transformers import AutoModelForCausalLM

from rpeg.observe.run_folder import RunFolder
from rpeg.perf.memory import StateBytes
from rpeg.runtime.learner import Learner

Run = Callable[..., RunFolder]

NARROW = {**TINY["model"], "dtype": "bfloat16", "weights": "bfloat16"}
DEEP = {**NARROW, "scratch": {**TINY["model"]["scratch"], "layers": 2}}
PLAIN: dict[str, Any] = {"algorithm": {"updates_per_step": 1}, "optimizer": {"lr": 1e-3, "clip_norm": 1e9}}


def layer(dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    """Return two weights of 1."""
    made = nn.Linear(2, 1, bias=False).to(dtype)
    nn.init.ones_(made.weight)
    return made


def taught(module: nn.Linear, learner: Learner, updates: int) -> nn.Linear:
    """Make updates with a gradient of 1 for both weights."""
    for _ in range(updates):
        module(torch.ones(1, 2, dtype=module.weight.dtype)).sum().backward()
        learner.update(1)
    return module


def test_updates_below_the_resolution_add_up(tmp_path: Path) -> None:
    """AdamW moves by the learning rate, 0.001; between 0.5 and 1 numbers of bfloat16 are 1 / 256 = 0.0039 apart.

    One update leaves the weight alone, two take it to the nearest number below, and ten take the master to 0.99.
    """
    module = layer()
    learner = Learner(module, tiny_recipe(**PLAIN), 1e-3, 0, None)
    seen = [taught(module, learner, 1).weight[0, 0].item() for _ in range(10)]
    assert [round((1 - each) * 256) for each in seen] == [0, 1, 1, 1, 1, 2, 2, 2, 2, 3]
    learner.save(tmp_path / "state")
    assert load_file(tmp_path / "state")["weight:master"].tolist() == [pytest.approx([0.99, 0.99], abs=1e-6)]
    assert module.weight.dtype == torch.bfloat16
    wide = layer(torch.float32)
    assert taught(wide, Learner(wide, tiny_recipe(**PLAIN), 1e-3, 0, None), 10).weight.tolist() == [
        pytest.approx([0.99, 0.99], abs=1e-6)
    ]


def test_masters_go_on_where_they_were(tmp_path: Path) -> None:
    """Five updates, a checkpoint and five more are ten; begun again from the parameters alone they are not."""
    whole, part = layer(), layer()
    whole_learner, part_learner = (Learner(each, tiny_recipe(**PLAIN), 1e-3, 0, None) for each in (whole, part))
    taught(whole, whole_learner, 10)
    taught(part, part_learner, 5)
    part_learner.save(tmp_path / "half")
    resumed = layer()
    learner = Learner(resumed, tiny_recipe(**PLAIN), 1e-3, 5, tmp_path / "half")
    assert torch.equal(resumed.weight, part.weight)
    taught(resumed, learner, 5)
    for name, each in (("whole", whole_learner), ("parts", learner)):
        each.save(tmp_path / name)
    first, second = load_file(tmp_path / "whole"), load_file(tmp_path / "parts")
    assert first.keys() == second.keys() == {"weight:exp_avg", "weight:exp_avg_sq", "weight:step", "weight:master"}
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_gradients_are_added_up_and_clipped_in_float32() -> None:
    """300 micro-batches with a gradient of 1 are 300, where bfloat16 stops at 256; the norm is that of two weights."""
    module = layer()
    learner = Learner(module, tiny_recipe(**PLAIN), 1e-3, 0, None)
    for _ in range(300):
        module(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
    norm, _ = learner.update(100)
    assert norm == pytest.approx(3 * 2**0.5)


def test_nothing_is_saved_before_the_first_update(tmp_path: Path) -> None:
    Learner(layer(), tiny_recipe(**PLAIN), 1e-3, 0, None).save(tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_the_memory_model_counts_what_is_kept(tmp_path: Path) -> None:
    """Weights, gradients, masters and two moments of every parameter: 18 bytes."""
    module = layer()
    learner = Learner(module, tiny_recipe(**PLAIN), 1e-3, 0, None)
    taught(module, learner, 1)
    learner.save(tmp_path / "state")
    state = {key: each.nbytes for key, each in load_file(tmp_path / "state").items() if not key.endswith(":step")}
    module(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
    gradients = [each.grad.nbytes for each in (*module.parameters(), *learner._named.values()) if each.grad is not None]
    kept = module.weight.nbytes + sum(gradients) + sum(state.values())
    assert kept == StateBytes.of("bfloat16", "float32").total * module.weight.numel()


SHARED = {"name": "ppo_shared"}
CASES: dict[str, dict[str, Any]] = {
    "grpo": {"model": NARROW},
    "stale": {"model": NARROW, "algorithm": {"staleness": 1, "kl_coefficient": 0.1, "reference": "ema"}},
    "ppo": {"model": NARROW, "algorithm": {"name": "ppo"}},
    "full": {"model": NARROW, "algorithm": SHARED, "critic": {"sharing": "full"}},
    "lower": {"model": DEEP, "algorithm": SHARED, "critic": {"sharing": "lower"}},
    "adapter": {"model": {**NARROW, "adapter": {"rank": 4, "alpha": 8.0}}},
}


@pytest.mark.parametrize("name", CASES)
def test_resumed_equals_uninterrupted(run_tiny: Run, name: str) -> None:
    whole = run_tiny("whole", **CASES[name])
    run_tiny("parts", run={"steps": 2}, **CASES[name])
    parts = run_tiny("parts", resume=True, **CASES[name])
    assert_same(whole, parts, 4)
    for file in sorted(path.relative_to(whole.checkpoint(4)) for path in whole.checkpoint(4).rglob("*.safetensors")):
        first, second = (load_file(folder.checkpoint(4) / file) for folder in (whole, parts))
        assert first.keys() == second.keys()
        assert [key for key in first if not torch.equal(first[key], second[key])] == []


def test_a_run_learns_and_its_model_is_half_as_large(run_tiny: Run) -> None:
    """The reward is the share of digits, which the policy finds out; the model loads elsewhere as it is."""
    sections = {
        "algorithm": {"prompts": 8, "updates_per_step": 1},
        "run": {"steps": 30},
        "evaluation": {"every_steps": 0},
    }
    folder = run_tiny("narrow", model=NARROW, **sections)
    rewards = [row["reward/mean"] for row in untimed(folder)]
    assert sum(rewards[-5:]) / 5 > 1.5 * sum(rewards[:3]) / 3
    saved = load_file(folder.model / "model.safetensors")
    assert {each.dtype for each in saved.values()} == {torch.bfloat16}
    assert AutoModelForCausalLM.from_pretrained(folder.model).dtype == torch.bfloat16
    state = load_file(folder.checkpoint(30) / "moments.safetensors")
    masters = {key.removesuffix(":master"): each for key, each in state.items() if key.endswith(":master")}
    assert {each.dtype for each in masters.values()} == {torch.float32}
    assert all(torch.equal(masters[key].bfloat16(), saved[key]) for key in masters)
    assert any(not torch.equal(masters[key], saved[key].float()) for key in masters)


def test_an_adapter_has_no_masters(run_tiny: Run) -> None:
    """Its matrices are float32 themselves, on frozen weights in bfloat16."""
    folder = run_tiny("adapter", **CASES["adapter"], run={"steps": 2})
    state = load_file(folder.checkpoint(2) / "moments.safetensors")
    assert {key.rpartition(":")[2] for key in state} == {"exp_avg", "exp_avg_sq", "step"}
    adapter = load_file(folder.checkpoint(2) / "adapter" / "adapter_model.safetensors")
    assert {each.dtype for each in adapter.values()} == {torch.float32}
