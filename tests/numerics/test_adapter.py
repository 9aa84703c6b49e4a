"""Adapters: nothing at first, the product by hand, off and merged and back to the last bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from rpeg.errors import ModelError
from rpeg.numerics.adapter import LowRank, add_adapter
from rpeg.numerics.model import ScratchSpec, scratch_model
from rpeg.numerics.tokenizer import character_tokenizer

TOKENS = torch.tensor([[4, 5, 6, 7], [8, 9, 4, 4]])


def model() -> PreTrainedModel:
    """Return a tiny model."""
    spec = ScratchSpec("qwen3", layers=2, hidden=16, heads=2, intermediate=32, vocabulary=24, init_std=0.3)
    return scratch_model(spec, character_tokenizer("0123456789"), seed=0)


def logits(found: PreTrainedModel) -> torch.Tensor:
    """Return what a model says of the tokens."""
    with torch.no_grad():
        return found(input_ids=TOKENS).logits


def test_the_product_by_hand() -> None:
    """W = [1 2], A = [3 4], B = [5], alpha 2, rank 1: y = x1 + 2 x2 + 2 * 5 * (3 x1 + 4 x2)."""
    base = nn.Linear(2, 1, bias=False)
    base.weight.data = torch.tensor([[1.0, 2.0]])
    layer = LowRank(base, 1, 2.0, torch.Generator())
    layer.down.data, layer.up.data = torch.tensor([[3.0, 4.0]]), torch.tensor([[5.0]])
    assert layer(torch.tensor([1.0, 1.0])).item() == 1 + 2 + 10 * 7
    layer.is_on = False
    assert layer(torch.tensor([1.0, 1.0])).item() == 3
    assert layer.product().tolist() == [[30.0, 40.0]]


def test_a_new_adapter_changes_nothing_and_trains_alone() -> None:
    plain, adapted = model(), model()
    adapter = add_adapter(adapted, rank=2, alpha=4.0, seed=1)
    assert torch.equal(logits(plain), logits(adapted))
    trained = {name for name, each in adapted.named_parameters() if each.requires_grad}
    assert trained == adapter.named().keys()
    assert len(trained) == 2 * 2 * 7  # two matrices, two layers, seven linear layers in each


def test_off_and_merged() -> None:
    plain, adapted = model(), model()
    adapter = add_adapter(adapted, rank=2, alpha=4.0, seed=1)
    for name, each in adapter.named().items():
        if name.endswith("up"):
            each.data.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(len(name)))
    moved = logits(adapted)
    assert not torch.allclose(moved, logits(plain), atol=1e-3)
    with adapter.off():
        assert torch.equal(logits(adapted), logits(plain))
    with adapter.merged() as merged:
        assert merged.state_dict().keys() == plain.state_dict().keys()
        torch.testing.assert_close(logits(merged), moved, atol=1e-5, rtol=1e-4)
    assert torch.equal(logits(adapted), moved)
    again = model()
    add_adapter(again, rank=2, alpha=4.0, seed=9).load({name: each.data for name, each in adapter.named().items()})
    assert torch.equal(logits(again), moved)


def test_a_model_without_linear_layers_is_refused() -> None:
    spec = ScratchSpec("gpt2", layers=1, hidden=16, heads=2, intermediate=32, vocabulary=24)
    with pytest.raises(ModelError, match="model type gpt2: has no linear layer that an adapter could be put on"):
        add_adapter(scratch_model(spec, character_tokenizer("01"), seed=0), rank=2, alpha=4.0, seed=0)
