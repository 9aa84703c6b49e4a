"""How the ranks of one communicator lie on the tree of a machine: so many per node, so many nodes, and so on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from rpeg.errors import Fault, HardwareError
from rpeg.hardware.topology import Link, Sharing, System
from rpeg.plan.mesh import axis_groups, places
from rpeg.plan.plan import Mesh

__all__ = ["ALONE", "Group", "group_along", "group_of", "group_of_places"]


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that communicate, by the links that join them."""

    levels: tuple[tuple[Link, int], ...] = ()
    """Innermost first, each with how many parts its link joins: 2 nodes of 4 are ``((nvlink, 4), (slingshot, 2))``.

    Levels with one part are left out, and neighbouring levels with equal links are one. Where parts are uneven the
    fullest counts. The bandwidth of a link is what the group has of it: of the wires between four devices three use
    half as many, and a part with one rank, beside one with four, brings one port of four.
    """
    ranks: int | None = None
    """Where parts are uneven, how many ranks there really are."""

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return prod(count for _, count in self.levels) if self.ranks is None else self.ranks

    @property
    def outer(self) -> Link | None:
        """The link of the outermost level, None for a group of one."""
        return self.levels[-1][0] if self.levels else None


ALONE = Group()
"""A group of one, which has nothing to send."""


def group_of_places(system: System, where: Iterable[int]) -> Group:
    """Return the group of these places: at every level the parts that the fullest of its wholes has."""
    paths = {system.path(place) for place in where}
    levels: list[tuple[Link, int]] = []
    for depth, level in reversed(list(enumerate(system.levels))):
        ranks = Counter(path[: depth + 1] for path in paths)
        count = max(Counter(part[:-1] for part in ranks).values(), default=1)
        if level.link is not None and count > 1:
            share = min(ranks.values()) / prod(inner for _, inner in levels)
            _append(levels, _usable(level.link, count, level.count, share), count)
    is_even = prod(count for _, count in levels) == len(paths)
    return Group(tuple(levels), None if is_even else len(paths))


def _usable(link: Link, count: int, joined: int, share: float) -> Link:
    """Return what ``count`` of ``joined`` parts have of a link when the emptiest of them has a share of its ranks."""
    if link.sharing is Sharing.PAIRS and joined > count:
        share *= (count - 1) / (joined - 1)
    if link.sharing is Sharing.RING and joined > count:
        share /= 2  # a chain: one of its two neighbours is missing
    return link if share == 1 else replace(link, bytes_per_s=link.bytes_per_s * share)


def _append(levels: list[tuple[Link, int]], link: Link, count: int) -> None:
    """Append a level, or widen the one before if its switches reach as far: racks of NVLink are one level."""
    if levels and link.sharing is Sharing.SWITCHED and replace(levels[-1][0], name=link.name) == link:
        link, inner = levels.pop()
        count *= inner
    levels.append((link, count))


def group_of(system: System, size: int, stride: int = 1) -> Group:
    """Return the group of ``size`` ranks, every ``stride``-th device of ``system`` from its first.

    Raises:
        HardwareError: when ``system`` has fewer devices.
    """
    needed = (size - 1) * stride + 1
    if not (size > 0 and stride > 0 and needed <= system.num_devices):
        text = f"has {system.num_devices} devices, {size} ranks {stride} apart need {needed}"
        raise HardwareError("group", [Fault(system.name, text, "name a larger system or a smaller group")])
    return group_of_places(system, range(0, needed, stride))


def group_along(mesh: Mesh, axis: str, system: System) -> Group:
    """Return the group along ``axis`` of ``mesh`` that reaches furthest; `ALONE` for an axis that the mesh lacks."""
    if mesh.sizes.get(axis, 1) == 1:
        return ALONE
    where = places(mesh, system)
    return max(
        (group_of_places(system, (where[rank] for rank in ranks)) for ranks in axis_groups(mesh, axis)), key=_reach
    )


def _reach(group: Group) -> tuple[float, ...]:
    """Order groups by how slow their outermost link is, then by how many parts they have from the outside in."""
    slowest = min((link.bytes_per_s for link, _ in group.levels), default=0.0)
    return (-slowest, *(count for _, count in reversed(group.levels)))
