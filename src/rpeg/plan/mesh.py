"""Meshes on a machine: which places, in which order of ranks, joined by which links, shared with which other meshes.

Places that belong to the same meshes are interchangeable for the order of work. Such a set is a *resource*; it is
called like its mesh, or ``gen&train`` where meshes overlap. A firing on a mesh occupies every resource of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import prod

from rpeg.hardware.region import Region
from rpeg.hardware.topology import Link, System
from rpeg.plan.plan import Mesh

__all__ = ["axis_groups", "axis_link", "coordinates", "meshes_of", "num_ranks", "places", "resource_name", "resources"]


def num_ranks(mesh: Mesh) -> int:
    """Return the product of the sizes of the axes."""
    return prod(size for _, size in mesh.axes)


def places(mesh: Mesh, system: System) -> tuple[int, ...]:
    """Return the place of every rank: ranks follow the tree, so ranks of the last axis are neighbours.

    Raises:
        HardwareError: when ``system`` has no such region.
    """
    return Region.parse(mesh.where).places(system)


def coordinates(mesh: Mesh, rank: int) -> dict[str, int]:
    """Return the index of ``rank`` along every axis."""
    found: dict[str, int] = {}
    for name, size in reversed(mesh.axes):
        rank, found[name] = divmod(rank, size)
    return found


def axis_groups(mesh: Mesh, axis: str) -> Iterator[range]:
    """Yield the ranks of every group that communicates along ``axis``."""
    names = [name for name, _ in mesh.axes]
    stride = prod(size for _, size in mesh.axes[names.index(axis) + 1 :])
    span = stride * mesh.sizes[axis]
    for start in range(0, num_ranks(mesh), span):
        yield from (range(start + i, start + i + span, stride) for i in range(stride))


def axis_link(mesh: Mesh, axis: str, system: System) -> Link | None:
    """Return the slowest kind of link that a group along ``axis`` crosses: the outermost; None for groups of one."""
    where, spans = places(mesh, system), list(axis_groups(mesh, axis))
    ends = [(where[group[0]], where[group[-1]]) for group in spans]
    return system.link_between(*min(ends, key=lambda pair: _common_levels(system, *pair)))


def _common_levels(system: System, a: int, b: int) -> int:
    """Count the levels, from the outermost, at which two places are in the same part."""
    pairs = zip(system.path(a), system.path(b), strict=True)
    return next((level for level, (i, j) in enumerate(pairs) if i != j), len(system.levels))


def resource_name(meshes: Iterable[str]) -> str:
    """Return the name of what exactly these meshes share."""
    return "&".join(sorted(meshes))


def meshes_of(resource: str) -> tuple[str, ...]:
    """Return the meshes that share ``resource``."""
    return tuple(resource.split("&"))


def resources(meshes: Iterable[Mesh], system: System) -> dict[str, tuple[int, ...]]:
    """Return the places of every resource, in the order in which the meshes first come to them."""
    members: dict[int, list[str]] = defaultdict(list)
    for mesh in meshes:
        for place in places(mesh, system):
            members[place].append(mesh.name)
    found: dict[str, list[int]] = defaultdict(list)
    for place, names in members.items():
        found[resource_name(names)].append(place)
    return {name: tuple(shared) for name, shared in found.items()}
