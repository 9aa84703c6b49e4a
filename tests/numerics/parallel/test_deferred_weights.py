"""Gradients of weights on demand: the same as at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

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
