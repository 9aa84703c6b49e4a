"""Runs that train an adapter: alone or beside a value head, held to the model below, and left behind for others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from tests.runtime.conftest import TINY, tiny_recipe
from tests.runtime.test_models import DEEP, other_model, valued_rows
from tests.runtime.test_run import assert_same, untimed
from transformers import AutoModelForCausalLM

from rpeg.errors import InvalidInput
from rpeg.graph.stage import StageKind
from rpeg.observe.run_folder import RunFolder
from rpeg.recipe.graph import build_graph
from rpeg.runtime.origin import Origin
from rpeg.runtime.policy import Policy
from rpeg.runtime.rows import Rows
from rpeg.runtime.task import Task

Run = Callable[..., RunFolder]

ADAPTER = {"adapter": {"rank": 4, "alpha": 8.0}}
PENALTY = {"kl_coefficient": 0.5, "reference": "adapter_off"}


def shared(sharing: str, **algorithm: Any) -> dict[str, Any]:
    """Return the sections of PPO with a value head on a trunk of two layers that has an adapter."""
    return {
        "model": {**DEEP, **ADAPTER},
        "algorithm": {"name": "ppo_shared", "updates_per_step": 1, **algorithm},
        "critic": {"sharing": sharing},
    }


def moments(folder: RunFolder, step: int) -> set[str]:
    """Return the parameters that the optimizer keeps something of."""
    return {name.rpartition(":")[0] for name in load_file(folder.checkpoint(step) / "moments.safetensors")}


def test_an_adapter_is_trained_alone_and_its_reference_is_the_model_below(run_tiny: Run) -> None:
    algorithm = {**PENALTY, "updates_per_step": 1}
    folder = run_tiny("adapter", model={**TINY["model"], **ADAPTER}, algorithm=algorithm, run={"steps": 3})
    rows = untimed(folder)[1:]
    assert rows[0]["loss/kl"] == 0.0  # a new adapter changes nothing
    assert all(row["loss/kl"] > 1e-5 for row in rows[1:])
    before = load_file(folder.path / "reference" / "model.safetensors")
    after = load_file(folder.model / "model.safetensors")
    assert before.keys() == after.keys()
    linear = {name for name in before if name.split(".")[-2].endswith("_proj")}
    assert {name for name in before if not torch.equal(before[name], after[name])} == linear
    matrices = load_file(folder.adapter / "adapter_model.safetensors")
    name = "model.layers.0.mlp.up_proj"
    low, high = (matrices[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
    torch.testing.assert_close(after[f"{name}.weight"], before[f"{name}.weight"] + 2.0 * high @ low)
    assert moments(folder, 3) == {
        f"{name.removesuffix('.weight')}.lora_{part}.default.weight" for name in linear for part in "AB"
    }


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
def test_peft_puts_the_adapter_of_a_run_on_the_first_model(run_tiny: Run) -> None:
    model = {**TINY["model"], "adapter": {**ADAPTER["adapter"], "target": ("q_proj", "up_proj")}}
    folder = run_tiny("left", model=model, run={"steps": 2})
    base, whole = (AutoModelForCausalLM.from_pretrained(path) for path in (folder.path / "reference", folder.model))
    tokens = torch.tensor([[4, 5, 6, 7, 8, 9]])
    with torch.no_grad():
        before = base(tokens).logits.clone()
        found = PeftModel.from_pretrained(base, str(folder.adapter))(tokens).logits
        torch.testing.assert_close(found, whole(tokens).logits, atol=1e-5, rtol=1e-4)
    assert (found - before).abs().max() > 1e-3
    last = folder.checkpoint(2) / "adapter" / "adapter_model.safetensors"
    assert last.read_bytes() == (folder.adapter / "adapter_model.safetensors").read_bytes()


def test_an_adapter_resumes_bit_for_bit(run_tiny: Run) -> None:
    sections: dict[str, Any] = {"model": {**TINY["model"], **ADAPTER}, "algorithm": PENALTY}
    whole = run_tiny("whole", **sections)
    run_tiny("parts", run={"steps": 2}, **sections)
    resumed = run_tiny("parts", resume=True, **sections)
    assert_same(whole, resumed, 4)
    files = [folder.adapter / "adapter_model.safetensors" for folder in (whole, resumed)]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    ("sharing", "layers"),
    [("full", {"layers.0", "layers.1"}), ("detached", set()), ("lower", {"layers.0"})],
)
def test_what_the_values_train_beside_an_adapter(tmp_path: Path, sharing: str, layers: set[str]) -> None:
    """The matrices B of the layers that are shared, the head, and its own layers whole."""
    folder = other_model(tmp_path / "model", layers=2)
    sections = shared(sharing)
    policy = Policy(recipe := tiny_recipe(**sections), build_graph(recipe).contract, Origin(folder, folder, None, 0))
    head = policy._head
    assert head is not None
    head.linear.weight.data.fill_(1.0)
    policy.train(Task("train", StageKind.TRAIN, 0, 0, Rows({}), valued_rows(), {}))
    moved = [name for name, each in policy.model.named_parameters() if each.grad is not None and each.grad.any()]
    assert all(".lora_B." in name for name in moved)
    assert {part for name in moved for part in ("layers.0", "layers.1") if name.startswith(f"model.{part}.")} == layers
    assert bool(head.linear.weight.grad is not None and head.linear.weight.grad.any())
    assert all(each.grad is not None and bool(each.grad.any()) for each in head.upper.parameters())
    assert not any("lora" in name for name, _ in head.named_parameters())


@pytest.mark.parametrize("sharing", ["full", "lower"])
def test_an_adapter_and_a_value_head_resume_bit_for_bit(run_tiny: Run, sharing: str) -> None:
    sections = shared(sharing, kl_coefficient=0.1, reference="adapter_off")
    whole = run_tiny("whole", **sections)
    run_tiny("parts", run={"steps": 2}, **sections)
    assert_same(whole, run_tiny("parts", resume=True, **sections), 4)
    assert {name.split(".")[0] for name in moments(whole, 4)} == {"model", "value_head"}
    assert all(".lora_" in name for name in moments(whole, 4) if name.startswith("model."))
    heads = [load_file(whole.checkpoint(step) / "model" / "value_head.safetensors") for step in (2, 4)]
    assert all(not torch.equal(heads[0][name], heads[1][name]) for name in heads[0])


def test_one_pass_for_scores_and_values_of_an_adapter(run_tiny: Run) -> None:
    penalty = {"kl_coefficient": 0.1, "reference": "adapter_off"}
    plain, fused = shared("full", **penalty), shared("full", **penalty, rewrites=("fuse_forward{a=old_logp,b=value}",))
    first, second = (untimed(run_tiny(name, **each)) for name, each in (("two", plain), ("one", fused)))
    for expected, found in zip(first, second, strict=True):
        assert found == pytest.approx(expected, abs=2e-4, rel=2e-4)


@pytest.mark.parametrize("is_folder", [True, False], ids=["folder", "scratch"])
def test_unknown_layers_are_refused_before_anything_starts(run_tiny: Run, tmp_path: Path, is_folder: bool) -> None:
    where = {"path": str(other_model(tmp_path / "model")), "scratch": None} if is_folder else TINY["model"]
    message = r"model\.adapter\.target: 'query' is no linear layer of model type qwen3; choose among down_proj, gate"
    with pytest.raises(InvalidInput, match=message):
        run_tiny("wrong", model={**where, "adapter": {"target": ("query",)}})
    assert not (tmp_path / "wrong" / "checkpoints").exists()
