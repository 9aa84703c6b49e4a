"""Where stages could run: a family of regions of a machine, few enough to price and enough to choose from.

At every level of the tree whose parts are several, ranges of these parts with all that is around and below: from the
first part up to some place, from there to the last, and blocks of a half, a quarter and an eighth. Places lie on a grid
of sixteenths. So any split of a machine in two is there in steps of a sixteenth, and any split in equal blocks; regions
are contiguous at their level, so groups that communicate are as near to each other as they can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from rpeg.hardware.region import Region
from rpeg.hardware.topology import System
from rpeg.perf.regions import region_of

__all__ = ["Place", "places_of"]

_GRID = 16
_BLOCKS = (2, 4, 8)
_MOST_SPLIT_NODES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A set of devices that stages could run on."""

    where: str
    """As a region of the tree: ``rack.node[0:16]``."""
    devices: frozenset[int]
    system: System
    """The same as a machine of its own; equal for places that are built alike."""

    @property
    def kind(self) -> tuple[int, ...]:
        """Parts at every level: places of one kind cost the same."""
        return tuple(level.count for level in self.system.levels)


@lru_cache(maxsize=64)
def places_of(system: System) -> tuple[Place, ...]:
    """Return the family of regions of a machine, the whole of it first.

    >>> from rpeg.hardware.catalog import load_system
    >>> [place.where for place in places_of(load_system("alps:8"))][:4]
    ['rack', 'rack.node[0:1]', 'rack.node[1:2]', 'rack.node.gpu[0:1]']
    """
    found: dict[frozenset[int], Place] = {}
    for where in _texts(system):
        devices = frozenset(Region.parse(where).places(system))
        if devices not in found:
            found[devices] = Place(where, devices, region_of(system, where))
    return tuple(found.values())


def _texts(system: System) -> Iterator[str]:
    yield system.levels[0].name
    for depth, level in enumerate(system.levels):
        if depth and level is system.levels[-1] and system.num_hosts > _MOST_SPLIT_NODES:
            continue  # of many nodes nobody takes a device each
        outer = "".join(f"{above.name}." for above in system.levels[:depth])
        yield from (f"{outer}{level.name}[{first}:{end}]" for first, end in _ranges(level.count))


def _ranges(count: int) -> Iterator[tuple[int, int]]:
    """Yield prefixes, suffixes and blocks of a level."""
    if count == 1:
        return
    steps = min(count, _GRID)
    grid = [count * i // steps for i in range(steps + 1)]
    for place in grid[1:-1]:
        yield 0, place
        yield place, count
    for parts in _BLOCKS:
        if count % parts == 0:
            yield from ((count * i // parts, count * (i + 1) // parts) for i in range(parts))
