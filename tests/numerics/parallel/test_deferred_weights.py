"""Gradients of weights on demand: the same as at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rpeg.numerics.master_weights import MasterWeights
from rpeg.numerics.parallel.deferred_weights import DeferredWeights


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False))


@pytest.mark.parametrize("is_narrow", [False, True])
def test_gradients_are_those_of_an_ordinary_backward_pass(is_narrow: bool) -> None:
    plain, other, x_BTD = layers(), layers(), torch.randn(2, 5, 3)
    later = DeferredWeights([other])
    with torch.autocast("cpu", torch.bfloat16, enabled=is_narrow):
        expected = [plain(scale * x_BTD).square().sum() for scale in (1.0, 2.0)]
        found = []
        for number, scale in enumerate((1.0, 2.0)):
            with later.putting_off((0, number)):
                found.append(other(scale * x_BTD).square().sum())
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a, b)
        a.backward()
        b.backward()
    assert other[0].weight.grad is None
    assert other[2].weight.grad is None
    assert torch.equal(other[0].bias.grad, plain[0].bias.grad)  # vectors are not put off
    later.make((0, 0))
    assert not torch.allclose(other[0].weight.grad, plain[0].weight.grad)
    later.make((0, 1))
    for a, b in zip(plain.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-2 if is_narrow else 1e-6, atol=1e-6)


def test_outside_nothing_is_put_off_and_frozen_weights_get_none() -> None:
    model, x_ND = layers(), torch.randn(5, 3)
    later = DeferredWeights([model])
    model(x_ND).sum().backward()
    assert model[0].weight.grad is not None
    model.zero_grad()
    model[2].weight.requires_grad_(False)
    with later.putting_off((0, 0)):
        loss = model(x_ND).sum()
    loss.backward()
    later.make((0, 0))
    assert model[0].weight.grad is not None
    assert model[2].weight.grad is None


def test_masters_of_narrow_weights_get_the_gradients_that_were_put_off() -> None:
    """The weights keep none, and the masters sum those of all passes in float32, as without putting off."""
    plain, other, x_ND = layers().bfloat16(), layers().bfloat16(), torch.randn(5, 3).bfloat16()
    wanted, found, later = MasterWeights(plain), MasterWeights(other), DeferredWeights([other])
    for number in range(3):
        plain((1 + number) * x_ND).square().sum().backward()
        with later.putting_off((0, number)):
            loss = other((1 + number) * x_ND).square().sum()
        loss.backward()
    masters = found.named()
    assert masters["0.weight"].grad is None
    assert masters["0.bias"].grad is not None
    for number in range(3):
        later.make((0, number))
    assert all(each.grad is None for each in other.parameters())
    for name, master in wanted.named().items():
        assert master.grad is not None
        torch.testing.assert_close(masters[name].grad, master.grad, rtol=1e-2, atol=1e-6)
