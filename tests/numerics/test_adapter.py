"""Adapters: nothing at first, the product by hand, off, merged into a copy, and what peft makes of the folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import PreTrainedModel

from rpeg.numerics.adapter import Adapter, adapter_faults, add_adapter, load_adapter
from rpeg.numerics.model import ScratchSpec, load_model, model_outline, save_model, scratch_model
from rpeg.numerics.tokenizer import character_tokenizer

TOKENS = torch.tensor([[4, 5, 6, 7], [8, 9, 4, 4]])
ARCHITECTURES = ("qwen3", "gpt2", "qwen3_moe")


def model(architecture: str = "qwen3") -> PreTrainedModel:
    """Return a tiny model."""
    spec = ScratchSpec(architecture, layers=2, hidden=16, heads=2, intermediate=32, vocabulary=24, init_std=0.3)
    return scratch_model(spec, character_tokenizer("0123456789"), seed=0)


def logits(found: torch.nn.Module) -> torch.Tensor:
    """Return what a model says of the tokens."""
    with torch.no_grad():
        return found(input_ids=TOKENS).logits


def trained(found: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """Return what has a gradient, by name."""
    return {name: each for name, each in found.named_parameters() if each.requires_grad}


def adapted(architecture: str = "qwen3", target: tuple[str, ...] = ()) -> tuple[PreTrainedModel, Adapter]:
    """Return a model whose adapter has learned something."""
    found = model(architecture)
    adapter = add_adapter(found, rank=2, alpha=4.0, target=target, seed=1)
    draw = torch.Generator().manual_seed(0)
    for name, each in trained(found).items():
        if ".lora_B." in name:
            each.data.normal_(0.0, 0.1, generator=draw)
    return found, adapter


def test_the_product_by_hand() -> None:
    """Rank 2 and alpha 4: with ones in both matrices, every weight grows by 4 / 2 * (1 * 1 + 1 * 1) = 4."""
    found, adapter = adapted()
    for each in trained(found).values():
        each.data.fill_(1.0)
    before, after = model().state_dict(), adapter.merged().state_dict()
    layers = {name for name in before if name.split(".")[-2].endswith("_proj")}
    assert len(layers) == 2 * 7
    for name in before:
        expected = before[name] + 4.0 if name in layers else before[name]
        torch.testing.assert_close(after[name], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_new_adapter_changes_nothing_and_trains_alone(architecture: str) -> None:
    found = model(architecture)
    add_adapter(found, rank=2, alpha=4.0, target=(), seed=1)
    assert torch.equal(logits(model(architecture)), logits(found))
    names = trained(found)
    assert all(".lora_A." in name or ".lora_B." in name for name in names)
    # Two matrices in each of two layers: for seven linear layers; for four; for four, two of experts and a router.
    assert len(names) == 2 * 2 * {"qwen3": 7, "gpt2": 4, "qwen3_moe": 7}[architecture]
    found(input_ids=TOKENS).logits.square().sum().backward()
    assert all(bool(each.grad is not None and each.grad.any()) == (".lora_B." in name) for name, each in names.items())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_off_and_merged(architecture: str) -> None:
    plain, (found, adapter) = model(architecture), adapted(architecture)
    moved = logits(found)
    assert not torch.allclose(moved, logits(plain), atol=1e-2)
    with adapter.off():
        assert torch.equal(logits(found), logits(plain))
    merged = adapter.merged()
    assert merged.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(logits(merged), moved, atol=2e-5, rtol=1e-4)
    assert torch.equal(logits(found), moved)
    assert trained(found).keys() == trained(adapted(architecture)[0]).keys()


def test_merging_leaves_no_rounding_behind() -> None:
    found, adapter = adapted()
    before = {name: each.clone() for name, each in found.state_dict().items()}
    first, moved = adapter.merged_weights(), logits(found)
    for _ in range(3):
        again = adapter.merged_weights()
    assert again.keys() == {name for name, _ in model().named_parameters()}
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert all(torch.equal(before[name], each) for name, each in found.state_dict().items())
    assert torch.equal(logits(found), moved)
    again["model.norm.weight"].zero_()
    assert torch.equal(logits(found), moved)  # what was published is a copy


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
def test_peft_reads_the_folder(tmp_path: Path) -> None:
    found, adapter = adapted()
    adapter.save(tmp_path / "adapter")
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["task_type"]) == (2, 4.0, "CAUSAL_LM")
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert tensors["base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"].shape == (2, 16)
    assert torch.equal(logits(PeftModel.from_pretrained(model(), str(tmp_path / "adapter"))), logits(found))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_adapter_is_read_to_be_trained_further(tmp_path: Path, architecture: str) -> None:
    found, adapter = adapted(architecture)
    adapter.save(tmp_path / "adapter")
    again, before = model(architecture), torch.random.get_rng_state()
    load_adapter(again, tmp_path / "adapter")
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(logits(again), logits(found))
    assert list(trained(again)) == list(trained(found))


def test_the_merged_model_is_an_ordinary_folder(tmp_path: Path) -> None:
    _, adapter = adapted()
    merged = adapter.merged()
    save_model(merged, character_tokenizer("0123456789"), tmp_path)
    assert not list(tmp_path.glob("adapter*"))
    assert torch.equal(logits(load_model(tmp_path, torch.float32, torch.device("cpu"))), logits(merged))


def test_matrices_are_decided_by_the_seed_alone() -> None:
    drawn = []
    for seed, stir in ((1, 0), (1, 5), (2, 0)):
        torch.rand(stir)
        before, found = torch.random.get_rng_state(), model()
        add_adapter(found, rank=2, alpha=4.0, target=(), seed=seed)
        assert torch.equal(before, torch.random.get_rng_state())
        drawn.append(torch.cat([each.detach().flatten() for each in trained(found).values()]))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_matrices_on_narrow_weights_are_float32(tmp_path: Path) -> None:
    narrow = model().bfloat16()
    adapter = add_adapter(narrow, rank=2, alpha=4.0, target=(), seed=1)
    assert {each.dtype for each in trained(narrow).values()} == {torch.float32}
    assert {each.dtype for each in adapter.merged().parameters()} == {torch.bfloat16}
    for each in trained(narrow).values():
        each.data.add_(1e-5)  # less than bfloat16 could tell
    adapter.save(tmp_path / "adapter")
    again = model().bfloat16()
    load_adapter(again, tmp_path / "adapter")
    assert all(torch.equal(each, trained(again)[name]) for name, each in trained(narrow).items())
    assert logits(again).dtype == torch.bfloat16
    assert torch.equal(logits(again), logits(narrow))


def test_layers_may_be_chosen() -> None:
    names = trained(adapted(target=("q_proj", "v_proj"))[0])
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in names} == {"q_proj", "v_proj"}
    assert len(names) == 2 * 2 * 2


def test_layers_that_do_not_exist_are_refused_with_those_that_do() -> None:
    known = "choose among down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj; leave it out for all"
    assert [str(fault) for fault in adapter_faults(model(), ["q_proj", "q", "lm_head"])] == [
        f"model.adapter.target: 'q' is no linear layer of model type qwen3; {known}",
        f"model.adapter.target: 'lm_head' is no linear layer of model type qwen3; {known}",
    ]
    (fault,) = adapter_faults(model("gpt2"), ["q_proj"])
    assert fault.remedy == "choose among c_attn, c_fc, c_proj; leave it out for all"


def test_an_outline_has_the_layers_and_no_weights(tmp_path: Path) -> None:
    save_model(model(), character_tokenizer("0123456789"), tmp_path)
    outline = model_outline(tmp_path)
    assert [name for name, _ in outline.named_modules()] == [name for name, _ in model().named_modules()]
    assert all(each.is_meta for each in outline.parameters())
