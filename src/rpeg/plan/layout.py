"""Which box of every tensor a rank holds under a layout."""

from __future__ import annotations

from collections import defaultdict
from math import prod

from rpeg.plan.mesh import coordinates, num_ranks
from rpeg.plan.plan import Layout, Mesh
from rpeg.shapes.tensor import LAYERS, End, Tensor

__all__ = ["ITEM_BYTES", "Box", "box_of", "degrees", "holders", "intersection", "num_elements"]

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1, "int8": 1}
"""Bytes of one element, by dtype."""

Box = tuple[tuple[int, int], ...]
"""Per dimension, the first index and the one after the last."""


def degrees(layout: Layout, mesh: Mesh) -> dict[str, int]:
    """Return into how many pieces every part of the weights is split."""
    found: dict[str, int] = {}
    for part, axis in layout.shard:
        found[part] = found.get(part, 1) * mesh.sizes.get(axis, 1)
    return found


def box_of(tensor: Tensor, layout: Layout, mesh: Mesh, rank: int) -> Box | None:
    """Return what ``rank`` holds of ``tensor``, None if nothing.

    Splits apply in the order of the layout, each to what the one before left. ZeRO level 3 then splits the first
    dimension that does not count layers over the data parallel ranks, as FSDP does.

    A layout does not know the schedule of a pipeline: of an interleaved one the box has as many layers as a rank holds,
    but the rank holds two runs of them, apart.
    """
    where = coordinates(mesh, rank)
    if not _is_at_end(tensor, layout, mesh, where):
        return None
    box = [(0, size) for size in tensor.shape]
    for part, axis in layout.shard:
        for dim, (name, _) in enumerate(tensor.parts):
            if name == part:
                box[dim] = _share(*box[dim], where[axis], mesh.sizes[axis])
    if layout.zero == 3 and "dp" in where:
        dim = next(dim for dim, (name, _) in enumerate(tensor.parts) if name != LAYERS)
        box[dim] = _chunk(*box[dim], where["dp"], mesh.sizes["dp"])
    return tuple(box) if all(first < end for first, end in box) else None


def _share(first: int, end: int, index: int, count: int) -> tuple[int, int]:
    """Return one of ``count`` shares of a range; where there are fewer things than shares, neighbours hold the same."""
    size = end - first
    if count > size and count % size == 0:
        return first + index * size // count, first + index * size // count + 1
    return _chunk(first, end, index, count)


def _chunk(first: int, end: int, index: int, count: int) -> tuple[int, int]:
    """Return one of ``count`` chunks of a range; the last ones may be smaller, or empty."""
    size = -(-(end - first) // count)
    return min(end, first + index * size), min(end, first + (index + 1) * size)


def _is_at_end(tensor: Tensor, layout: Layout, mesh: Mesh, where: dict[str, int]) -> bool:
    axis = next((axis for part, axis in layout.shard if part == LAYERS), None)
    if tensor.end is None or axis is None:
        return True
    is_first, is_last = where[axis] == 0, where[axis] == mesh.sizes[axis] - 1
    return (is_first and tensor.end is not End.LAST) or (is_last and tensor.end is not End.FIRST)


def holders(tensor: Tensor, layout: Layout, mesh: Mesh) -> dict[Box, list[int]]:
    """Return every distinct box with the ranks that hold it."""
    found: dict[Box, list[int]] = defaultdict(list)
    for rank in range(num_ranks(mesh)):
        if (box := box_of(tensor, layout, mesh, rank)) is not None:
            found[box].append(rank)
    return dict(found)


def intersection(a: Box, b: Box) -> Box | None:
    """Return what two boxes have in common, None if nothing."""
    found: list[tuple[int, int]] = []
    for (a_first, a_end), (b_first, b_end) in zip(a, b, strict=True):
        first, end = max(a_first, b_first), min(a_end, b_end)
        if first >= end:
            return None
        found.append((first, end))
    return tuple(found)


def num_elements(box: Box) -> int:
    """Return the elements in a box."""
    return prod(end - first for first, end in box)
