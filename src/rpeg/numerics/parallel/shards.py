"""Which part of every parameter a rank holds when parts of a model are split over axes of a mesh.

The parts have the names of `rpeg.shapes.parameters`: ``heads``, ``kv_heads``, ``ffn``, ``shared_ffn``, ``vocabulary``,
``experts``, ``expert_ffn``. A parameter keeps the dimensions that Hugging Face gives it, but the two matrices that are
packed into one for experts are kept apart, so that what a rank holds is always one box.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from rpeg.errors import Fault, ModelError
from rpeg.shapes.splits import SPLIT_FAMILIES, SPLIT_OVER, misplaced_parts
from rpeg.shapes.tensor import LAYERS

__all__ = [
    "Box",
    "Cut",
    "Places",
    "Shard",
    "Split",
    "Tile",
    "family_faults",
    "parts_of",
    "shards_of",
    "split_faults",
    "whole_tiles",
]

Box = tuple[tuple[int, int], ...]
"""Per dimension, the first index and the one after the last."""
Places = Mapping[str, tuple[int, int]]
"""By axis of a mesh, this rank's place along it, and how many there are."""
Split = Sequence[tuple[str, str]]
"""Which part is split over which axis, in this order; as in `rpeg.plan.plan.Layout`."""

_SHOWN = 64
"""Largest degree that a message proposes."""
_WHOLE = "hidden"
_PARTS: Mapping[str, tuple[str, ...]] = {
    "q_proj": ("heads", _WHOLE),
    "k_proj": ("kv_heads", _WHOLE),
    "v_proj": ("kv_heads", _WHOLE),
    "o_proj": (_WHOLE, "heads"),
    "gate_proj": ("ffn", _WHOLE),
    "up_proj": ("ffn", _WHOLE),
    "down_proj": (_WHOLE, "ffn"),
    "embed_tokens": ("vocabulary", _WHOLE),
    "lm_head": ("vocabulary", _WHOLE),
}
"""What the dimensions of a module's weight count; a bias has the first of them."""
_EXPERTS: Mapping[str, tuple[str, ...]] = {
    "experts.gate_up_proj": ("experts", "pair", "expert_ffn", _WHOLE),
    "experts.down_proj": ("experts", _WHOLE, "expert_ffn"),
}
_CONFIG_NAMES = {
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "shared_ffn": "shared_expert_intermediate_size",
    "vocabulary": "vocab_size",
    "experts": "num_experts",
    "expert_ffn": "moe_intermediate_size",
}


@dataclass(frozen=True, slots=True)
class Cut:
    """One split of one dimension of a parameter."""

    dim: int
    axis: str
    index: int
    """Which of the pieces this rank holds."""
    pieces: int
    copies: int
    """How many neighbours hold the same piece: above 1 for key-value heads of which there are fewer than ranks."""


@dataclass(frozen=True, slots=True)
class Shard:
    """What this rank holds of one parameter."""

    shape: tuple[int, ...]
    """Of the whole."""
    cuts: tuple[Cut, ...] = ()
    """In their order: each applies to what the one before left."""
    is_packed: bool = False
    """Whether the model holds dimensions 1 and 2 as one."""

    @property
    def box(self) -> Box:
        """What is left after all cuts."""
        box = [(0, size) for size in self.shape]
        for cut in self.cuts:
            first, end = box[cut.dim]
            size = (end - first) // cut.pieces
            box[cut.dim] = (first + cut.index * size, first + (cut.index + 1) * size)
        return tuple(box)

    def share(self, rank: int, ranks: int) -> Box:
        """Return the box of which some ranks share the first dimension, as FSDP2 does: the last ones may have less."""
        (first, end), *others = self.box
        rows = -(-(end - first) // ranks)
        return ((min(end, first + rank * rows), min(end, first + (rank + 1) * rows)), *others)

    def of(self, whole: Tensor, box: Box) -> Tensor:
        """Return a box of the whole parameter, as a view where that is possible."""
        return self.packed(whole.view(self.shape)[tuple(slice(*each) for each in box)])

    def is_of(self, tensor: Tensor) -> bool:
        """Whether a tensor has the sizes of the whole parameter."""
        return tuple(tensor.shape) == tuple(self.packed(torch.empty(self.shape, device="meta")).shape)

    def tile(self, part: Tensor) -> Tile:
        """Return the part that is left after all cuts with its place in the whole."""
        return Tile(self.shape, self.box, self.unpacked(part))

    def packed(self, tensor: Tensor) -> Tensor:
        """Return a box of the parameter in the dimensions that the model gives it."""
        return tensor.flatten(1, 2) if self.is_packed else tensor

    def unpacked(self, tensor: Tensor) -> Tensor:
        """Return a box of the parameter in the dimensions of ``shape``."""
        return tensor.unflatten(1, (2, -1)) if self.is_packed else tensor

    def cut_over(self, axis: str) -> Cut | None:
        """Return the split over an axis, if there is one."""
        return next((cut for cut in self.cuts if cut.axis == axis), None)


@dataclass(frozen=True, slots=True)
class Tile:
    """What this rank holds of a parameter, for whoever reads it or writes it."""

    shape: tuple[int, ...]
    """Of the whole parameter, packed dimensions apart."""
    box: Box
    values: Tensor
    """Of the box's sizes."""


def parts_of(name: str, parameter: Tensor) -> tuple[tuple[str, int], ...]:
    """Return what each dimension of a parameter counts, and its size; ``hidden`` is whatever is never split."""
    for suffix, parts in _EXPERTS.items():
        if name.endswith(suffix):
            count, rows, columns = parameter.shape
            shape = (count, rows, columns) if len(parts) == 3 else (count, 2, rows // 2, columns)
            return tuple(zip(parts, shape, strict=True))
    module, _, kind = name.rpartition(".")
    parts = _PARTS.get(module.rpartition(".")[2], (_WHOLE,) * parameter.ndim)
    if ".shared_expert." in name:
        parts = tuple("shared_ffn" if part == "ffn" else part for part in parts)
    parts = parts[:1] if kind == "bias" else parts
    return tuple(zip(parts, parameter.shape, strict=True))


def shards_of(model: PreTrainedModel, split: Split, places: Places) -> dict[str, Shard]:
    """Return what this rank holds of every parameter of a whole model.

    Raises:
        ModelError: with every split that does not fit the model.
    """
    sizes = {axis: size for axis, (_, size) in places.items()}
    faults = [*split_faults(model.config, split, sizes)]
    if any(sizes.get(axis, 1) > 1 for _, axis in split):
        faults += _wrapped(model)
    if faults:
        raise ModelError("layout", faults)
    if model.config.model_type not in SPLIT_FAMILIES:
        return {name: Shard(tuple(parameter.shape)) for name, parameter in model.named_parameters()}
    counts = _counts(model.config)
    found: dict[str, Shard] = {}
    for name, parameter in model.named_parameters():
        parts = parts_of(name, parameter)
        shape = tuple(size for _, size in parts)
        cuts = tuple(_cuts([part for part, _ in parts], counts, split, places))
        assert prod(shape) == parameter.numel(), f"{name} has {parameter.numel()} elements, its parts make {shape}"
        found[name] = Shard(shape, cuts, is_packed=len(shape) > parameter.ndim)
    return found


def whole_tiles(model: PreTrainedModel) -> dict[str, Tile]:
    """Return every parameter of a model that is not split, as the only tile of itself."""
    return {name: shard.tile(model.get_parameter(name).detach()) for name, shard in shards_of(model, (), {}).items()}


def _cuts(parts: Sequence[str], counts: Mapping[str, int], split: Split, places: Places) -> Iterator[Cut]:
    """Yield the splits of a parameter with these parts."""
    left = dict(counts)
    for part, axis in split:
        rank, size = places.get(axis, (0, 1))
        if part not in parts or size == 1:
            continue
        pieces = min(size, left[part])
        left[part] //= pieces
        yield Cut(parts.index(part), axis, rank * pieces // size, pieces, size // pieces)


def split_faults(config: PreTrainedConfig, split: Split, sizes: Mapping[str, int]) -> Iterator[Fault]:
    """Yield what keeps a model from being split like this over axes of these sizes.

    `rpeg.plan.rules_layout` has said of a plan what does not divide; which families can be split is known here alone.
    """
    used = [(part, axis) for part, axis in split if sizes.get(axis, 1) > 1]
    if faults := list(family_faults(config, {axis for _, axis in used})):
        yield from faults
        return
    left = _counts(config)
    for part, axis in used:
        size = sizes[axis]
        if part == LAYERS or axis not in SPLIT_OVER.get(part, ()):
            continue  # stages may have unlike numbers of layers; other axes are said below
        if part not in left:
            yield Fault("layout", f"splits {part}, of which {config.model_type} has none", f"it has {', '.join(left)}")
        elif left[part] % size and not (part == "kv_heads" and size % left[part] == 0):
            what = f"{axis} = {size} does not divide {left[part]} {part}"
            yield Fault("layout", what, f"choose {_choice(left[part])}")
        else:
            left[part] = max(1, left[part] // size)
    yield from (Fault("layout", *said) for said in misplaced_parts(split, sizes))


def family_faults(config: PreTrainedConfig, axes: Collection[str]) -> Iterator[Fault]:
    """Yield a fault where a model is to be split over axes, and its family has not been compared with itself split."""
    if axes and config.model_type not in SPLIT_FAMILIES:
        what = f"no split of {config.model_type} over {', '.join(sorted(axes))} is known"
        yield Fault("layout", what, f"known are {', '.join(SPLIT_FAMILIES)}; zero 3 over dp splits any model")


def _wrapped(model: PreTrainedModel) -> Iterator[Fault]:
    """Yield what stands in the place of a layer that would be split, such as one with an adapter."""
    kinds = {
        f"{type(module).__module__.partition('.')[0]}'s {type(module).__name__}"
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in _PARTS and not isinstance(module, nn.Linear | nn.Embedding)
    }
    for kind in sorted(kinds):
        yield Fault("layout", f"no split of {kind} is known", "zero 3 over dp shards any layer")


def _choice(count: int) -> str:
    """Return the degrees that divide a count, as far as a message has room for them."""
    degrees = [str(degree) for degree in range(1, min(count, _SHOWN) + 1) if count % degree == 0]
    return " or ".join(filter(None, (", ".join(degrees[:-1]), degrees[-1])))


def _counts(config: PreTrainedConfig) -> dict[str, int]:
    """Return how many of each part a model has."""
    text = config.get_text_config(decoder=True)
    counts = {part: getattr(text, name, None) for part, name in _CONFIG_NAMES.items()}
    if counts["experts"] and not counts["expert_ffn"]:
        counts["expert_ffn"] = counts["ffn"]  # Mixtral has no other feed-forward blocks
    return {part: int(count) for part, count in counts.items() if count}
