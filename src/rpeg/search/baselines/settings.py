"""What a system of few choices may set, and the best plan over all of its settings.

A setting says where every call runs and what may be fixed of its layout; the rest is chosen by the allocator. Settings
are compared by their tables first, which takes milliseconds; the few most promising ones become plans, which have to
keep all rules, memory among them, and are priced in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from rpeg.errors import Fault, PlanError
from rpeg.hardware.topology import System
from rpeg.perf.demand import demands
from rpeg.search.branch import allocate
from rpeg.search.calls import StageCall, calls_of
from rpeg.search.find import Found, plans_among
from rpeg.search.prices import Pin
from rpeg.search.problem import Market, pose
from rpeg.search.structures import Structure

__all__ = ["Setting", "SettingsOf", "alike", "best_of", "pin"]

_DEPTHS = (1, 2, 4, 8)
"""Of pipelines of calls that are split alike."""
_MAX_STATES, _TOLERANCE = 200, 0.01
"""Of the first look at a setting, which only has to tell good ones from bad ones."""
_SHARE = 0.86
"""Of the memory of devices that a first look may fill."""
_REGIONS, _MOST_REGIONS = 2, 16
"""Of the most promising regions so many become plans; where none of them fits, as many more."""
_ALTERNATIVES = 2
"""Of what may be fixed in one choice of regions, so many of the most promising become plans."""
_MOST_PRICED = 4
"""Choices of layouts that are priced in full, where there are few."""
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


def best_of(every: Sequence[Structure], kinds: Sequence[SettingsOf], market: Market) -> Found:
    """Return the best plan of structures over all settings.

    Args:
        every: structures, streamed ones among them.
        kinds: what may be set; the most promising ones of every kind become plans.
        market: the machine and its prices; what it has fixed is replaced by the settings.

    Raises:
        PlanError: when nothing fits: with what is short.
    """
    faults: list[Fault] = []
    best: Found | None = None
    for form in dict.fromkeys(each.form for each in every):
        tried = _Form([each for each in every if each.form == form], market, faults)
        for settings_of in kinds:
            best = _better(best, tried.best(settings_of))
    if best is None:
        none = Fault(market.system.name, "cannot be cut as the system wants it", "more devices")
        raise PlanError(f"plans on {market.system.name}", tuple(dict.fromkeys(faults)) or [none])
    return best


def _better(a: Found | None, b: Found | None) -> Found | None:
    return min((each for each in (a, b) if each is not None), key=lambda each: each.step_s, default=None)


class _Form:
    """Structures with the same stages."""

    def __init__(self, every: Sequence[Structure], market: Market, faults: list[Fault]) -> None:
        self._every, self._market, self._faults = every, market, faults
        unstreamed = [each for each in every if each.firings == min(s.firings for s in every)]
        self._widest = max(unstreamed, key=lambda each: (each.staleness, len(each.rewrites)))
        self._demands, _ = demands(self._widest.graph, market.workload)

    def best(self, settings_of: SettingsOf) -> Found | None:
        """Return the best plan over all settings."""
        settings = settings_of(calls_of(self._widest.graph), self._market.system)
        looks = [(self._look_s(setting, setting.alternatives[0]), setting) for setting in settings]
        best: Found | None = None
        for number, (_, setting) in enumerate(sorted(looks, key=lambda look: look[0])[:_MOST_REGIONS]):
            if number >= _REGIONS and best is not None:
                break
            best = _better(best, self._best_in(setting))
        return best

    def _best_in(self, setting: Setting) -> Found | None:
        best: Found | None = None
        looks = [(self._look_s(setting, pins), pins) for pins in setting.alternatives]
        for _, pins in sorted(looks, key=lambda look: look[0])[:_ALTERNATIVES]:
            plans, refused = plans_among(self._every, self._fixed(setting, pins), _MOST_PRICED)
            self._faults += refused
            best = _better(best, plans[0] if plans else None)
        return best

    def _fixed(self, setting: Setting, pins: Mapping[str, Pin]) -> Market:
        return replace(self._market, regions=setting.regions, pins=pins)

    def _look_s(self, setting: Setting, pins: Mapping[str, Pin]) -> float:
        """Return what the tables say of a step; infinite where they know of none that fits."""
        posed = pose(self._widest, self._fixed(setting, pins), self._demands)
        if posed.problem is None:
            return float("inf")
        problem = replace(posed.problem, capacity_bytes=posed.problem.capacity_bytes * _SHARE)
        return allocate(problem, _MAX_STATES, _TOLERANCE).step_s
