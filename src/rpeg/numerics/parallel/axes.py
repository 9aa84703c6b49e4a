"""The process groups of a rank: one per axis of its mesh, and the place of the rank in each."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

__all__ = ["axis_group", "axis_rank", "axis_size", "device_mesh", "places"]


def device_mesh(
    axes: Sequence[tuple[str, int]], device: torch.device, ranks: Sequence[int] | None = None
) -> DeviceMesh:
    """Return the mesh with these axes, slowest first, as in `rpeg.plan.plan.Mesh`.

    Every process of the world calls this, with the same arguments and in the same order, also those outside of it. A
    mesh without an axis ``dp`` is given one of one rank, so that something is left of it whatever other axis is taken.

    Args:
        axes: Names and sizes.
        device: Where its ranks compute.
        ranks: Numbers in the world, ascending, as torch orders the members of a group; None takes the first ones.
    """
    axes = axes if "dp" in dict(axes) else (("dp", 1), *axes)
    sizes = [size for _, size in axes]
    numbers = list(range(prod(sizes))) if ranks is None else list(ranks)
    assert numbers == sorted(numbers), f"ranks {numbers} are not in ascending order"
    return DeviceMesh(device.type, torch.tensor(numbers).reshape(sizes), mesh_dim_names=tuple(name for name, _ in axes))


def axis_size(mesh: DeviceMesh, axis: str) -> int:
    """Return the ranks along an axis; 1 for an axis that the mesh does not have."""
    names = mesh.mesh_dim_names or ()
    return mesh.size(names.index(axis)) if axis in names else 1


def axis_rank(mesh: DeviceMesh, axis: str) -> int:
    """Return the place of this process along an axis."""
    return mesh.get_local_rank(axis) if axis in (mesh.mesh_dim_names or ()) else 0


def axis_group(mesh: DeviceMesh, axis: str) -> dist.ProcessGroup | None:
    """Return what communicates along an axis; None where that is one rank."""
    return mesh.get_group(axis) if axis_size(mesh, axis) > 1 else None


def places(mesh: DeviceMesh) -> dict[str, tuple[int, int]]:
    """Return for every axis the place of this process along it, and how many there are."""
    return {axis: (axis_rank(mesh, axis), axis_size(mesh, axis)) for axis in mesh.mesh_dim_names or ()}
