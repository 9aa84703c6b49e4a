"""What a system of few choices may set: where every call runs, and what is fixed of its layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from rpeg.hardware.topology import System
from rpeg.search.calls import StageCall
from rpeg.search.prices import Pin

__all__ = ["Setting", "SettingsOf", "alike", "pin"]

_DEPTHS = (1, 2, 4, 8)
"""Of pipelines of calls that are split alike."""
_FREE: Mapping[str, Pin] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """One way to give devices to calls."""

    regions: Mapping[str, str] = field(default_factory=dict[str, str])
    """By call, the only place where it may run."""
    alternatives: tuple[Mapping[str, Pin], ...] = (_FREE,)
    """What may be fixed of layouts, by call: one of these."""


SettingsOf = Callable[[Sequence[StageCall], System], Iterable[Setting]]
"""The settings of a system for the calls of a structure on a machine."""


@cache
def pin(**degrees: int) -> Pin:
    """Return what is fixed of a layout; the same object for the same degrees, so that prices are used again."""
    return Pin(degrees)


def alike(calls: Iterable[StageCall], system: System) -> Iterator[Mapping[str, Pin]]:
    """Yield nothing fixed, and what is fixed where calls split their models alike: weights are then never copied."""
    names = [call.name for call in calls]
    yield _FREE
    if len(names) > 1:
        for tp in dict.fromkeys((1, system.levels[-1].count, 2 * system.levels[-1].count)):
            for pp in _DEPTHS:
                yield dict.fromkeys(names, pin(tp=tp, pp=pp))
