"""The weights of a model as named tensors whose dimensions say what they count.

Layers are stacked, and dimensions that are split by the head or by the expert are kept apart: the query projection of
Qwen2.5-7B (28 layers, 28 heads of 128, hidden size 3584) is ``layers 28, heads 28, head_size 128, hidden 3584``. So one
box per tensor says which part of the weights a device holds, whatever is split, and what divides what can be read off.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import prod

__all__ = ["LAYERS", "End", "Tensor", "extents"]

LAYERS = "layers"
"""The part whose split is a pipeline."""


class End(StrEnum):
    """Which ends of a pipeline hold a tensor that belongs to no layer."""

    FIRST = "first"
    """The embedding."""
    LAST = "last"
    """The head and the norm before it."""
    BOTH = "both"
    """A tied embedding."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor, or the same tensor of all layers stacked."""

    name: str
    parts: tuple[tuple[str, int], ...]
    """What each dimension counts, and how many: ``(("layers", 28), ("ffn", 18944), ("hidden", 3584))``."""
    end: End | None = None
    """Of a tensor without layers; None is held by every stage of a pipeline."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return tuple(size for _, size in self.parts)

    @property
    def num_elements(self) -> int:
        """Elements of all layers together."""
        return prod(self.shape)


def extents(tensors: tuple[Tensor, ...]) -> dict[str, int]:
    """Return how many of each part a model has: ``{"layers": 28, "heads": 28, "kv_heads": 4, …}``.

    Some tensors are not in all layers (experts after ordinary layers): the largest number of layers is the model's.
    """
    found: dict[str, int] = {}
    for tensor in tensors:
        for part, size in tensor.parts:
            known = found.setdefault(part, size)
            assert part == LAYERS or known == size, f"{tensor.name} has {size} {part}, others {known}"
            found[part] = max(known, size)
    return found
