"""How a group of places lies on the tree: what it touches at every level, in equal parts or not.

=====  ==========================================================
n      ranks of the group
n_i    ranks in part i of a level (in node i, in rack i)
B      bytes that every rank sends to all others together
=====  ==========================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rpeg.hardware.topology import Link, System

__all__ = ["Reach", "spread"]


@dataclass(frozen=True, slots=True)
class Reach:
    """What a group touches at one level."""

    level: str
    link: Link | None
    """Joins the parts; None where a system has only one."""
    parts: int
    """How many of these the group touches within one part of the level above, where it touches most."""
    ranks: tuple[int, ...]
    """Ranks in every part it touches, the fullest first."""

    @property
    def is_even(self) -> bool:
        """Whether every part has as many ranks as any other."""
        return self.ranks[0] == self.ranks[-1]

    def uplink_bytes(self, sent_bytes: float) -> float:
        """Return the bytes that leave the part with most to send, when every rank sends as much to each other rank.

        ``max over i of n_i · (n - n_i) / (n - 1) · B``, in bytes.

        Of 8 ranks in two nodes of 4, each sending 7 GB, 16 GB leave either node; with 6 and 2 it is 12 GB:

        >>> Reach("node", None, 2, (4, 4)).uplink_bytes(7e9), Reach("node", None, 2, (6, 2)).uplink_bytes(7e9)
        (16000000000.0, 12000000000.0)
        """
        total = sum(self.ranks)
        return max(inside * (total - inside) for inside in self.ranks) * sent_bytes / max(1, total - 1)


def spread(places: Iterable[int], system: System) -> tuple[Reach, ...]:
    """Return what a group of devices touches at every level of ``system``, innermost first."""
    paths = [system.path(place) for place in places]
    found = list[Reach]()
    for depth in range(len(system.levels), 0, -1):
        ranks = Counter(path[:depth] for path in paths)
        parts = max(Counter(part[:-1] for part in ranks).values())
        level = system.levels[depth - 1]
        found.append(Reach(level.name, level.link, parts, tuple(sorted(ranks.values(), reverse=True))))
    return tuple(found)
