"""Master weights: what bfloat16 loses and float32 keeps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rpeg.numerics.master_weights import MasterWeights
from rpeg.numerics.optim import adamw


def narrow(value: float = 1.0) -> nn.Module:
    module = nn.Linear(2, 1, bias=False).to(torch.bfloat16)
    nn.init.constant_(module.weight, value)
    return module


def test_tiny_updates_add_up_in_the_master_and_are_lost_without() -> None:
    with_masters, without = narrow(), narrow()
    masters = MasterWeights(with_masters)
    settings = (1e-3, (0.9, 0.95), 1e-8, 0.0)
    optimizer, plain = adamw(masters, *settings), adamw(without, *settings)
    seen = []
    for _ in range(10):
        for module, chosen in ((with_masters, optimizer), (without, plain)):
            module(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
            chosen.step()
            chosen.zero_grad()
        masters.write_back()
        seen.append(with_masters.weight[0, 0].item())
    # AdamW moves by the learning rate: 1 - 0.01 after ten updates; bfloat16 has 1 - 1/256 and 1 - 2/256 below 1.
    assert masters.named()["weight"].tolist() == [pytest.approx([0.99, 0.99], abs=1e-6)]
    assert without.weight.tolist() == [[1.0, 1.0]]
    # Rounded to nearest: one step down from 1 - 0.002 on, two from 1 - 0.006, three from 1 - 0.010.
    assert [round((1 - each) * 256) for each in seen] == [0, 1, 1, 1, 1, 2, 2, 2, 2, 3]


def test_gradients_of_micro_batches_are_summed_in_float32() -> None:
    module = narrow()
    masters = MasterWeights(module)
    for _ in range(300):
        module(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
    # In bfloat16 the sum would stop at 256.
    assert masters.named()["weight"].grad.tolist() == [[300.0, 300.0]]
    assert module.weight.grad is None


def test_masters_survive_and_set_the_parameters() -> None:
    module, other = narrow(), narrow()
    masters = MasterWeights(module)
    with torch.no_grad():
        masters.named()["weight"].add_(0.3001)
    resumed = MasterWeights(other)
    resumed.load({name: each.detach().clone() for name, each in masters.named().items()})
    assert torch.equal(resumed.named()["weight"], masters.named()["weight"])
    assert torch.equal(other.weight, torch.full((1, 2), 1.3001).bfloat16())
    with pytest.raises(AssertionError, match="'other'"):
        resumed.load({"other": torch.zeros(1)})


def test_shared_and_frozen_parameters() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(torch.bfloat16)
    module[1].weight = module[0].weight
    module[0].bias.requires_grad_(False)
    assert sorted(MasterWeights(module).named()) == ["0.weight", "1.bias"]


def test_two_modules_with_equal_names_are_refused() -> None:
    with pytest.raises(AssertionError, match="equal names"):
        MasterWeights(narrow(), narrow())
