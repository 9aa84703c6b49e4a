"""Low-rank adapters: a trained product of two thin matrices beside every frozen linear layer.

``y = W x + (alpha / rank) B A x`` with A drawn at random and B zero, so that a new adapter changes nothing.

Source: LoRA, arXiv:2106.09685; on every linear layer but the head, as in arXiv:2305.14314.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rpeg.errors import Fault, ModelError

__all__ = ["Adapter", "LowRank", "add_adapter"]


class LowRank(nn.Module):
    """A frozen linear layer with its thin matrices."""

    def __init__(self, base: nn.Linear, rank: int, scale: float, draw: torch.Generator) -> None:
        """Stand in the place of ``base``; ``scale`` is what the product is multiplied with."""
        super().__init__()
        self.base, self.scale = base, scale
        down = torch.randn(rank, base.in_features, generator=draw) / math.sqrt(base.in_features)
        self.down = nn.Parameter(down.to(base.weight.device))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))
        self.is_on = True

    def forward(self, states: Tensor) -> Tensor:
        """Return what the layer makes of states, with the product if it is on."""
        found = self.base(states)
        if not self.is_on:
            return found
        low = nn.functional.linear(states, self.down.to(states.dtype))
        return found + self.scale * nn.functional.linear(low, self.up.to(states.dtype))

    def product(self) -> Tensor:
        """Return what the matrices add to the weight."""
        return self.scale * (self.up @ self.down)


class Adapter:
    """The low-rank layers of a model."""

    def __init__(self, model: PreTrainedModel, layers: Mapping[str, LowRank]) -> None:
        """Hold the layers by the names of what they stand in place of."""
        self._model, self._layers = model, layers

    def named(self) -> dict[str, nn.Parameter]:
        """Return what is trained, by name."""
        return {f"{name}.{part}": getattr(layer, part) for name, layer in self._layers.items() for part in _PARTS}

    @torch.no_grad()
    def load(self, matrices: Mapping[str, Tensor]) -> None:
        """Set the matrices to those of a checkpoint."""
        own = self.named()
        assert own.keys() == matrices.keys(), f"matrices {sorted(own.keys() ^ matrices.keys())[:3]} differ"
        for name, parameter in own.items():
            parameter.copy_(matrices[name])

    @contextmanager
    def off(self) -> Iterator[None]:
        """Let the model be what it was without the adapter."""
        self._switch(False)
        try:
            yield
        finally:
            self._switch(True)

    @contextmanager
    def merged(self) -> Iterator[PreTrainedModel]:
        """Yield the model with the products added to its weights and no sign of an adapter; undone to the last bit."""
        before = {name: layer.base.weight.data for name, layer in self._layers.items()}
        try:
            for name, layer in self._layers.items():
                layer.base.weight.data = before[name] + layer.product().detach().to(before[name].dtype)
                self._model.set_submodule(name, layer.base)
            yield self._model
        finally:
            for name, layer in self._layers.items():
                layer.base.weight.data = before[name]
                self._model.set_submodule(name, layer)

    def _switch(self, is_on: bool) -> None:
        for layer in self._layers.values():
            layer.is_on = is_on


_PARTS = ("down", "up")


def add_adapter(model: PreTrainedModel, rank: int, alpha: float, seed: int) -> Adapter:
    """Freeze a model and put a new adapter on every linear layer but its head; changes nothing until it is trained.

    Args:
        model: Whose linear layers are replaced in place.
        rank: Of the products.
        alpha: The product is multiplied with ``alpha / rank``.
        seed: Decides the matrices A.

    Raises:
        ModelError: The model has no linear layer besides its head.
    """
    model.requires_grad_(False)
    head, draw = model.get_output_embeddings(), torch.Generator().manual_seed(seed)
    found = [(name, each) for name, each in model.named_modules() if isinstance(each, nn.Linear) and each is not head]
    if not found:
        what = "has no linear layer that an adapter could be put on"
        raise ModelError("adapter", [Fault(f"model type {model.config.model_type}", what, "train all weights")])
    layers = {name: LowRank(each, rank, alpha / rank, draw) for name, each in found}
    for name, layer in layers.items():
        model.set_submodule(name, layer)
    return Adapter(model, layers)
