"""Gradients of weight matrices made later than those of their inputs: a zero-bubble pipeline fills its gaps with them.

In the backward pass of a linear layer the next part of a pipeline waits for the gradient of its input alone. Here the
layer keeps its input and the gradient of its output, and the gradient of the weights is their product, made on demand.
Gradients of vectors (biases, norms) and of the embedding cost next to nothing and are made at once.

Shapes: D size of the input, V of the output, N tokens of a micro-batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["DeferredWeights"]

_Key = tuple[int, int]
"""Part and micro-batch."""
_Kept = tuple[nn.Parameter, Tensor, Tensor]
"""Weights, input and gradient of the output."""


class DeferredWeights:
    """The linear layers of some models, and what is kept of their passes."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        """Take over the linear layers; outside of `putting_off` they are as before."""
        self._key: _Key | None = None
        self._kept: dict[_Key, list[_Kept]] = defaultdict(list)
        for module in (module for model in models for module in model.modules()):
            if type(module) is nn.Linear:
                module.forward = partial(self._linear, module)  # pyright: ignore[reportAttributeAccessIssue]

    @contextmanager
    def putting_off(self, key: _Key) -> Iterator[None]:
        """Put off the gradients of weights that belong to the passes within."""
        self._key = key
        try:
            yield
        finally:
            self._key = None

    @torch.no_grad()
    def make(self, key: _Key) -> None:
        """Add the gradients of the weights of one pass, whose backward pass has been made."""
        for weight, x_ND, grad_NV in self._kept.pop(key, ()):
            # As any backward pass leaves it, so that what waits for gradients, such as masters, hears of it.
            weight.backward((grad_NV.T @ x_ND).to(weight.dtype))

    def _linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        if self._key is None or not layer.weight.requires_grad:
            return nn.functional.linear(x, layer.weight, layer.bias)
        if not torch.is_autocast_enabled(x.device.type):
            return _Linear.apply(x, layer.weight, layer.weight, layer.bias, self._kept[self._key])
        narrow = torch.get_autocast_dtype(x.device.type)
        bias = None if layer.bias is None else layer.bias.to(narrow)
        return _Linear.apply(x.to(narrow), layer.weight, layer.weight.to(narrow), bias, self._kept[self._key])


class _Linear(torch.autograd.Function):
    """A linear layer that makes no gradient of its weights, but keeps what is needed for it."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, parameter: nn.Parameter, weight_VD: Tensor, bias_V: Tensor | None, kept: list[_Kept]
    ) -> Tensor:
        ctx.save_for_backward(x, weight_VD)
        ctx.parameter, ctx.kept, ctx.has_bias = parameter, kept, bias_V is not None
        return nn.functional.linear(x, weight_VD, bias_V)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, Tensor | None, None]:
        x, weight_VD = ctx.saved_tensors
        grad_NV = grads[0].flatten(0, -2)
        ctx.kept.append((ctx.parameter, x.flatten(0, -2), grad_NV))
        return grads[0] @ weight_VD, None, None, grad_NV.sum(0) if ctx.has_bias else None, None
