"""A machine as a tree: system, rack, node, device; every level has a count and a link that joins what it counts.

Places are the leaves of the tree, numbered in its order: first the devices, then the hosts, one per node. So ranks that
follow the numbers follow the nodes, and any eight neighbours of an eight-device node sit in that node.

All bandwidths are bytes per second, *per device and direction*, at every level: figures in gigabits, or of both
directions together, are converted where they are read from their source, never here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import prod

__all__ = ["HOST", "Device", "Figure", "Level", "Link", "Sharing", "System"]

HOST = "host"
"""Name of the processors of a node in the texts of regions: ``rack[0].node[3].host``."""


class Sharing(StrEnum):
    """How what a link joins shares it."""

    SWITCHED = "switched"
    """Each has its whole bandwidth to any other."""
    PAIRS = "pairs"
    """A wire between every two: the bandwidth of one is split evenly over the others."""
    RING = "ring"
    """A wire to each of two neighbours."""


@dataclass(frozen=True, slots=True)
class Link:
    """What joins the parts of one level, or a device and its host."""

    name: str
    """The class that traffic over it is booked under: ``nvlink``, ``slingshot``, ``c2c``."""
    bytes_per_s: float
    """Per device and direction, to all others together."""
    latency_s: float
    sharing: Sharing = Sharing.SWITCHED
    kind: str = ""
    """The make, by which fitted constants are looked up: ``nvlink4``, ``slingshot``, ``pcie5``; empty is the name.

    Neighbouring levels of one kind share the port of a device: what crosses the outer one has crossed the inner one.
    """

    def __post_init__(self) -> None:
        """Take the name for the kind where none is given."""
        if not self.kind:
            object.__setattr__(self, "kind", self.name)

    def pair_bytes_per_s(self, count: int) -> float:
        """Return the bandwidth between two of ``count`` joined by this link, in bytes per second and direction."""
        if self.sharing is Sharing.PAIRS:
            return self.bytes_per_s / max(1, count - 1)
        return self.bytes_per_s / 2 if self.sharing is Sharing.RING and count > 2 else self.bytes_per_s


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the tree: ``count`` of these are in each part of the level above."""

    name: str
    count: int
    link: Link | None = None
    """Joins them; None where there is only one."""


@dataclass(frozen=True, slots=True)
class Device:
    """What sits at the leaves."""

    name: str
    memory_bytes: int
    memory_bytes_per_s: float
    peak_flops: tuple[tuple[str, float], ...]
    """Per dtype, dense operations per second."""
    host: Link
    """To the memory of its host."""
    host_memory_bytes: int
    """The share of one device in the memory of its host."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Where a number of the catalogue comes from."""

    value: float
    source: str
    measured: bool


@dataclass(frozen=True)
class System:
    """A machine."""

    name: str
    levels: tuple[Level, ...]
    """Outermost first; the last one counts the devices of a node."""
    device: Device
    figures: Mapping[str, Figure] = field(default_factory=dict[str, Figure], compare=False)
    """Figures by their dotted name in the catalogue: ``device.memory_bytes``."""
    node_paths: tuple[tuple[int, ...], ...] = ()
    """Where an allocation has its nodes: per node in the order of places, its index at every level above the devices.

    Empty where the nodes lie in the order of the tree. Names of places and regions count the nodes in their order; how
    far two places are apart is what these paths say.
    """

    @cached_property
    def num_devices(self) -> int:
        """Devices of the whole system."""
        return prod(level.count for level in self.levels)

    @cached_property
    def num_hosts(self) -> int:
        """Nodes of the whole system; each has one host."""
        return self.num_devices // self.levels[-1].count

    def is_host(self, place: int) -> bool:
        """Whether ``place`` is a host and not a device."""
        return place >= self.num_devices

    def host_of(self, place: int) -> int:
        """Return the place of the host that ``place`` belongs to, itself if it is one."""
        return place if self.is_host(place) else self.num_devices + place // self.levels[-1].count

    def path(self, place: int) -> tuple[int, ...]:
        """Return the index of ``place`` at every level, where it really sits; a host has none at the last."""
        if not self.node_paths:
            return self._path_in_order(place)
        if self.is_host(place):
            return self.node_paths[place - self.num_devices]
        node, device = divmod(place, self.levels[-1].count)
        return (*self.node_paths[node], device)

    def _path_in_order(self, place: int) -> tuple[int, ...]:
        levels = self.levels[:-1] if self.is_host(place) else self.levels
        rest, indices = place - self.num_devices * self.is_host(place), list[int]()
        for level in reversed(levels):
            rest, index = divmod(rest, level.count)
            indices.append(index)
        return tuple(reversed(indices))

    def place_name(self, place: int) -> str:
        """Return a place as a region of one: ``rack[0].node[3].gpu[1]``."""
        steps = [f"{level.name}[{i}]" for level, i in zip(self.levels, self._path_in_order(place), strict=False)]
        return ".".join([*steps, *([HOST] if self.is_host(place) else [])])

    def link_between(self, a: int, b: int) -> Link | None:
        """Return the link that limits traffic between two places, None where there is nothing to cross.

        It joins the parts of the outermost level at which the two are apart.
        """
        if a == b:
            return None
        for level, i, j in zip(self.levels, self.path(a), self.path(b), strict=False):
            if i != j:
                return level.link
        return self.device.host

    def memory_bytes_of(self, place: int) -> int:
        """Return the memory at ``place``: a device's own, or a host's for all its devices together."""
        if self.is_host(place):
            return self.device.host_memory_bytes * self.levels[-1].count
        return self.device.memory_bytes
