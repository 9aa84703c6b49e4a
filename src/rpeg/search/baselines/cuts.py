"""Ways to cut a machine into two or three contiguous parts, of the places that a search looks at."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from rpeg.hardware.topology import System
from rpeg.search.space import Place, places_of

__all__ = ["everything", "in_three", "in_two"]


def everything(system: System) -> Place:
    """Return the whole machine."""
    return places_of(system)[0]


@lru_cache(maxsize=64)
def in_two(system: System) -> tuple[tuple[Place, Place], ...]:
    """Return the cuts in two, each once, the part with the first device in front.

    >>> from rpeg.hardware.catalog import load_system
    >>> [(a.where, b.where) for a, b in in_two(load_system("alps:4"))][-1]
    ('rack.node.gpu[0:3]', 'rack.node.gpu[3:4]')
    """
    whole = everything(system).devices
    known = {place.devices: place for place in places_of(system)}
    cuts = ((place, known.get(whole - place.devices)) for place in known.values() if 0 in place.devices)
    return tuple((first, second) for first, second in cuts if second is not None)


@lru_cache(maxsize=64)
def in_three(system: System) -> tuple[tuple[Place, Place, Place], ...]:
    """Return the cuts in three, each once, in the order of their devices."""
    return tuple(_in_three(system))


def _in_three(system: System) -> Iterator[tuple[Place, Place, Place]]:
    whole = everything(system).devices
    known = {place.devices: place for place in places_of(system)}
    for first, rest in ((place, whole - place.devices) for place in known.values() if 0 in place.devices):
        if not rest:
            continue
        for second in known.values():
            if min(rest) in second.devices and second.devices < rest:
                third = known.get(rest - second.devices)
                if third is not None:
                    yield first, second, third
