"""Parameters that lie on one device: what tensor, pipeline and expert parallelism leave of a model.

=================  =============================================================================
symbol             meaning
=================  =============================================================================
tp, pp, dp, cp     ranks of tensor, pipeline, data and context parallelism
ep                 ranks that routed experts are spread over; they lie within ``dp cp tp``
z                  ZeRO level: 0 nothing, 1 moments, 2 gradients, 3 weights are split over data parallel ranks
=================  =============================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rpeg.shapes.model import ModelShape
from rpeg.shapes.operations import Real
from rpeg.shapes.parameters import tensors
from rpeg.shapes.tensor import LAYERS, End, Tensor

__all__ = ["Degrees", "StageParameters", "adapter_parameters", "last_layers", "stage_layers", "stage_parameters"]

_DENSE_LAYERS = "dense_layers"
_SPLIT = ("heads", "kv_heads", "ffn", "shared_ffn", "vocabulary", "value_heads", "key_heads")
"""Parts that tensor parallelism splits; where there are fewer of them than ranks, ranks hold copies."""
_ROUTED = "experts"


@dataclass(frozen=True, slots=True)
class Degrees:
    """Into how many parts a job is split, by axis; arrays are taken element by element."""

    tp: Real = 1.0
    pp: Real = 1.0
    dp: Real = 1.0
    cp: Real = 1.0
    ep: Real = 1.0
    expert_tp: Real | None = None
    """Ranks that one expert is divided over; None: ``tp`` where ``ep`` is 1, else experts stay whole."""
    zero: Real = 0.0
    """ZeRO level."""
    zero_ranks: Real | None = None
    """Ranks over which ZeRO splits; None: ``dp * cp``. Fewer where shards are replicated (hybrid FSDP)."""
    is_sequence_parallel: bool = False
    """Whether norms and residuals are split over TP as well."""
    virtual_stages: Real = 1.0
    """Parts of the layers on each stage of an interleaved pipeline."""

    @property
    def shards(self) -> Real:
        """Ranks over which ZeRO splits the dense weights."""
        return self.dp * self.cp if self.zero_ranks is None else self.zero_ranks

    @property
    def experts_tp(self) -> Real:
        """Ranks that one expert is divided over."""
        return np.where(np.asarray(self.ep) > 1, 1.0, self.tp)[()] if self.expert_tp is None else self.expert_tp

    @property
    def expert_shards(self) -> Real:
        """Ranks over which ZeRO splits the routed experts."""
        return np.maximum(1.0, self.shards * self.tp / (self.ep * self.experts_tp))


@dataclass(frozen=True, slots=True)
class StageParameters:
    """Parameters of one device of one stage."""

    layers: Real
    """Of its layers, without routed experts."""
    routed: Real
    """Of the routed experts."""
    ends: Real
    """Of embedding, last norm and head, as far as they are on this stage."""

    @property
    def dense(self) -> Real:
        """All but routed experts: what is replicated over the data parallel ranks."""
        return self.layers + self.ends

    @property
    def total(self) -> Real:
        """All parameters on the device."""
        return self.dense + self.routed


def stage_layers(num_layers: Real, pp: Real, head_layers: Real = 0.0) -> Real:
    """Return the layers of the first stage, which is the fullest one.

    ``ceil(L / p)``. Where the head is balanced as so many layers (nanotron), stages take layers until their share is
    exceeded: ``floor((L + h) / p) + 1``, all of them with one stage.

    >>> float(stage_layers(32, 4)), float(stage_layers(32, 2, head_layers=2.2))
    (8.0, 18.0)
    """
    if np.any(head_layers):
        taken = np.minimum(num_layers, np.floor((num_layers + head_layers) / pp) + 1.0)
        return np.where(np.asarray(pp) > 1, taken, num_layers)[()]
    return np.ceil(num_layers / np.asarray(pp, dtype=float))


def last_layers(num_layers: Real, pp: Real, head_layers: Real = 0.0) -> Real:
    """Return the layers of the last stage, which has the head: ``ceil(L / p)``, or what the stages before have left.

    >>> float(last_layers(32, 4)), float(last_layers(32, 2, head_layers=2.2))
    (8.0, 14.0)
    """
    if np.any(head_layers):
        before = np.floor((num_layers + head_layers) * (pp - 1.0) / pp) + 1.0
        left = np.maximum(0.0, num_layers - before)
        return np.where(np.asarray(pp) > 1, left, num_layers)[()]
    return np.ceil(num_layers / np.asarray(pp, dtype=float))


def stage_parameters(
    shape: ModelShape, degrees: Degrees, *, layers: Real | None = None, is_first: Real = 1.0, is_last: Real = 1.0
) -> StageParameters:
    """Return the parameters on a device of a stage with so many layers, before ZeRO.

    Every tensor is divided by ``min(tp, parts)``, routed experts by ``ep`` and the ranks of one expert. A tied
    embedding is there once per device: with one stage as embedding and head together. ``is_first`` and ``is_last``
    are 1 where the stage has the embedding and the head, else 0.

    Example:
        >>> from rpeg.shapes.catalog import shape_of
        >>> float(stage_parameters(shape_of("Qwen2.5-7B"), Degrees()).total)
        7615616512.0
    """
    held = stage_layers(shape.layers, degrees.pp) if layers is None else layers
    dense: Real = 0.0
    routed: Real = 0.0
    ends: Real = 0.0
    for group, elements in _groups(shape):
        on_device = elements / np.minimum(degrees.tp, group.limit)
        if group.is_routed:
            # Experts are divided over their own ranks, not over those of tensor parallelism.
            routed = routed + elements * held / (degrees.ep * degrees.experts_tp)
        elif group.is_layer:
            dense = dense + on_device * held
        elif group.is_dense_layer:
            dense = dense + on_device * is_first
        else:
            ends = ends + on_device * _is_held(group.end, is_first, is_last)
    return StageParameters(dense, routed, ends)


def adapter_parameters(shape: ModelShape, rank: int) -> float:
    """Return the parameters of low-rank adapters of all matrices of the layers: ``r (in + out)`` each.

    >>> from rpeg.shapes.catalog import shape_of
    >>> adapter_parameters(shape_of("Qwen3-0.6B"), 16) / 1e6
    10.092544
    """
    total = 0.0
    for tensor in tensors(shape):
        sizes = dict(tensor.parts)
        count = sizes.pop(LAYERS, 0) * sizes.pop(_ROUTED, 1)
        inner, outer = sizes.pop("hidden", 0), float(np.prod(list(sizes.values()) or [0]))
        total += rank * count * (inner + outer) if inner and outer > 1 else 0.0
    return total


@dataclass(frozen=True, slots=True)
class _Group:
    """Tensors that are split alike."""

    limit: float
    """The most ranks that tensor parallelism can split them over."""
    is_layer: bool
    is_routed: bool
    is_dense_layer: bool
    end: End | None


@lru_cache(maxsize=1024)
def _groups(shape: ModelShape) -> tuple[tuple[_Group, float], ...]:
    """Return the elements of every group, of layers those of a mean layer."""
    found = dict[_Group, float]()
    for tensor in tensors(shape):
        group = _group_of(tensor)
        elements = tensor.num_elements / (shape.layers if group.is_layer else 1)
        found[group] = found.get(group, 0.0) + elements
    return tuple(found.items())


def _group_of(tensor: Tensor) -> _Group:
    sizes = dict(tensor.parts)
    limit = min((size for part, size in sizes.items() if part in _SPLIT), default=1)
    is_routed = tensor.name.startswith(f"{_ROUTED}.")
    return _Group(float(limit), LAYERS in sizes, is_routed, _DENSE_LAYERS in sizes, tensor.end)


def _is_held(end: End | None, is_first: Real, is_last: Real) -> Real:
    if end is None:
        return 1.0
    if end is End.BOTH:
        return np.maximum(is_first, is_last)
    return is_first if end is End.FIRST else is_last
