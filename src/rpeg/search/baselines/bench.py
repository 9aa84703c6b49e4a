"""Where the settings of a case are compared: by their tables first, the few most promising ones then as plans.

Tables take milliseconds. A plan has to keep all rules, memory among them, and is priced in full. Systems have many
settings in common, so what was looked at before is not looked at again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rpeg.errors import Fault, PlanError
from rpeg.graph.graph import Graph
from rpeg.perf.demand import Demand, demands
from rpeg.search.baselines.settings import Setting, SettingsOf
from rpeg.search.branch import allocate
from rpeg.search.calls import calls_of
from rpeg.search.find import Found, plans_among
from rpeg.search.prices import Pin
from rpeg.search.problem import Market, pose
from rpeg.search.structures import LEARNING, Structure, structures

__all__ = ["Bench", "best_of_two", "freshest"]

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
_ALIKE = 1.0 - 1e-6
"""Steps whose ratio is closer to 1 are equal."""
_ALWAYS = frozenset({"relax", "retime"})
"""Rewrites that follow from staleness, which has a bound of its own."""
_SLOWER = "kv=recompute"
"""Caches that are made anew with new weights, where they may as well be kept."""

_Key = tuple[object, ...]


def best_of_two(a: Found | None, b: Found | None) -> Found | None:
    """Return the faster plan, the first one where both are as fast."""
    if a is None or b is None:
        return b if a is None else a
    return b if b.step_s < a.step_s * _ALIKE else a


def freshest(plans: Sequence[Found]) -> Found | None:
    """Return the best plan, of those that are as fast the one whose samples are the newest; None of none."""
    best_s = min((each.step_s for each in plans), default=0.0)
    as_fast = [each for each in plans if each.step_s * _ALIKE <= best_s]
    return min(as_fast, key=lambda each: each.structure.staleness, default=None)


class Bench:
    """Settings, structures and plans of one case."""

    def __init__(self, market: Market) -> None:
        """Start with nothing looked at.

        Args:
            market: machine, models and prices; what it has fixed is replaced by settings.
        """
        self.market = market
        self._structures: dict[_Key, tuple[Structure, ...]] = {}
        self._demands: dict[str, Mapping[str, Demand]] = {}
        self._looks: dict[_Key, float] = {}
        self._plans: dict[_Key, tuple[Found | None, tuple[Fault, ...]]] = {}

    def structures(self, graph: Graph, most_staleness: int, names: frozenset[str]) -> tuple[Structure, ...]:
        """Return the structures that only these rewrites, and staleness, have made of an algorithm's graph."""
        key = graph.digest(), most_staleness, names & {*LEARNING}
        if key not in self._structures:
            self._structures[key] = structures(graph, most_staleness, names & {*LEARNING})
        found = self._structures[key]
        return tuple(each for each in found if not any(_is_other(text, names) for text in each.rewrites))

    def best_of(self, every: Sequence[Structure], kinds: Sequence[SettingsOf]) -> Found:
        """Return the best plan of structures over all settings.

        Args:
            every: structures, streamed ones among them.
            kinds: what may be set; the most promising settings of every kind become plans.

        Raises:
            PlanError: when nothing fits: with what is short.
        """
        faults: list[Fault] = []
        best: Found | None = None
        for form in dict.fromkeys(each.form for each in every):
            for settings_of in kinds:
                of_form = tuple(each for each in every if each.form == form)
                best = best_of_two(best, self._best_of_form(of_form, settings_of, faults))
        if best is None:
            system = self.market.system.name
            none = Fault(system, "cannot be cut as the system wants it", "more devices")
            raise PlanError(f"plans on {system}", tuple(dict.fromkeys(faults)) or [none])
        return best

    def _best_of_form(self, every: tuple[Structure, ...], settings_of: SettingsOf, faults: list[Fault]) -> Found | None:
        """Return the best plan of structures with the same stages."""
        first = every[0]
        settings = settings_of(calls_of(first.graph), self.market.system)
        looks = [(self._look_s(first, setting, setting.alternatives[0]), setting) for setting in settings]
        best: Found | None = None
        for number, (_, setting) in enumerate(sorted(looks, key=lambda look: look[0])[:_MOST_REGIONS]):
            if number >= _REGIONS and best is not None:
                break
            alternatives = [(self._look_s(first, setting, pins), pins) for pins in setting.alternatives]
            for _, pins in sorted(alternatives, key=lambda look: look[0])[:_ALTERNATIVES]:
                found, refused = self._planned(every, setting, pins)
                faults += refused
                best = best_of_two(best, found)
        return best

    def _planned(
        self, every: tuple[Structure, ...], setting: Setting, pins: Mapping[str, Pin]
    ) -> tuple[Found | None, tuple[Fault, ...]]:
        key = tuple(each.graph.digest() for each in every), _key(setting, pins)
        if key not in self._plans:
            plans, refused = plans_among(every, self._fixed(setting, pins), _MOST_PRICED)
            self._plans[key] = freshest(plans), refused
        return self._plans[key]

    def _fixed(self, setting: Setting, pins: Mapping[str, Pin]) -> Market:
        return replace(self.market, regions=setting.regions, pins=pins)

    def _look_s(self, structure: Structure, setting: Setting, pins: Mapping[str, Pin]) -> float:
        """Return what the tables say of a step; infinite where they know of none that fits."""
        digest = structure.graph.digest()
        key = digest, _key(setting, pins)
        if key not in self._looks:
            if digest not in self._demands:
                self._demands[digest], _ = demands(structure.graph, self.market.workload)
            posed = pose(structure, self._fixed(setting, pins), self._demands[digest])
            problem = posed.problem
            if problem is None:
                self._looks[key] = float("inf")
            else:
                small = replace(problem, capacity_bytes=problem.capacity_bytes * _SHARE)
                self._looks[key] = allocate(small, _MAX_STATES, _TOLERANCE).step_s
        return self._looks[key]


def _key(setting: Setting, pins: Mapping[str, Pin]) -> _Key:
    return tuple(sorted(setting.regions.items())), tuple(sorted(pins.items(), key=lambda item: item[0]))


def _is_other(rewrite: str, names: frozenset[str]) -> bool:
    """Whether a rewrite is none of those, or one that another of its kind is never slower than."""
    return rewrite.partition("{")[0] not in names | _ALWAYS or _SLOWER in rewrite
