"""A structure on a machine as an allocation problem: calls, candidates on places, and the weights between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.hardware.topology import System
from rpeg.perf.demand import Demand
from rpeg.perf.software import Software
from rpeg.perf.workload import Workload
from rpeg.plan.workers import Workers
from rpeg.search.allocation import AllocationProblem, Call, Floats, Reshard
from rpeg.search.calls import StageCall, Supply, calls_of, supplies_of
from rpeg.search.crew import Crew, learning_with
from rpeg.search.prices import Pin, Row, call_rows
from rpeg.search.space import Place, places_of
from rpeg.search.structures import Structure
from rpeg.shapes.parameters import num_parameters

__all__ = ["Candidates", "Market", "Posed", "pose"]

_TOO_SLOW = 2.0
"""A call whose work on a place takes so many times what all calls take in turn has no business there."""
_WEIGHT_BYTES = 2.0
"""Of a weight as it is sent to a reader."""
_NEVER_S = 1e9
"""Of a reshard that workers do not make: no choice with it is the best one."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The rows of a call on the places where it may run, in the order of the allocation's candidates."""

    places: tuple[Place, ...]
    rows: tuple[Row, ...]

    def __len__(self) -> int:
        """Return the number of candidates."""
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class Market:
    """What a search has to choose from: a machine, a software, a workload, and what the user has fixed."""

    system: System
    software: Software
    workload: Workload
    pins: Mapping[str, Pin]
    """By call."""
    regions: Mapping[str, str]
    """By call, the only place where it may run."""
    workers: Workers | None
    """Who carries the plans out; None: other software."""
    _rows: dict[object, tuple[Row, ...]]
    """What was priced before: structures have most of their calls in common."""

    @classmethod
    def of(
        cls,
        system: System,
        software: Software,
        workload: Workload,
        pins: Mapping[str, Pin] | None = None,
        regions: Mapping[str, str] | None = None,
        workers: Workers | None = None,
    ) -> Market:
        """Return a market where nothing has been priced yet."""
        return cls(system, software, workload, pins or {}, regions or {}, workers, {})

    def candidates(
        self, structure: Structure, call: StageCall, demands: Mapping[str, Demand], *, may_haul: bool
    ) -> Candidates:
        """Return what a call of a structure has to choose from: places that are too small for it are left out."""
        places, rows = list[Place](), list[Row]()
        allowed = self._places(call)
        if not allowed:
            return Candidates((), ())
        whole = max(allowed, key=lambda place: len(place.devices))
        least_work = min((r.seconds for r in self._priced(structure, call, demands, whole)), default=0.0)
        for place in allowed:
            if least_work * whole.system.num_devices > _TOO_SLOW * self.turn_s(structure, demands) * len(place.devices):
                continue
            for row in self._priced(structure, call, demands, place):
                if not row.is_hauled or (may_haul and self.workers is None):
                    places.append(place)
                    rows.append(row)
        return Candidates(tuple(places), tuple(rows))

    def turn_s(self, structure: Structure, demands: Mapping[str, Demand]) -> float:
        """Return the seconds of a step whose calls take turns on all they may have, each in its fastest layout."""
        found = list[tuple[Row, ...]]()
        for call in calls_of(structure.graph):
            widest = max(self._places(call), key=lambda place: len(place.devices), default=None)
            found.append(() if widest is None else self._priced(structure, call, demands, widest))
        return sum(min((row.seconds + row.tail_s for row in rows), default=np.inf) for rows in found)

    @property
    def may_have_ranks(self) -> bool:
        """Whether a call may have more than one device."""
        return self.workers is None or self.workers.has_ranks

    def _places(self, call: StageCall) -> Sequence[Place]:
        wanted = self.regions.get(call.name)
        found = [place for place in places_of(self.system) if self.may_have_ranks or len(place.devices) == 1]
        return found if wanted is None else [place for place in found if place.where == wanted]

    def _priced(
        self, structure: Structure, call: StageCall, demands: Mapping[str, Demand], place: Place
    ) -> tuple[Row, ...]:
        graph, pin = structure.graph, self.pins.get(call.name)
        asked = tuple((demands[name], graph.firings(name)) for name in call.stages)
        crew = None if self.workers is None else Crew(graph, call, self.workers)
        key = (place.kind, call.kind, call.trains, pin, asked, crew and structure)
        if key not in self._rows:
            self._rows[key] = call_rows(graph, call, demands, place.system, self.software, pin=pin, crew=crew)
        return self._rows[key]


@dataclass(frozen=True, eq=False)
class Posed:
    """An allocation problem with what its numbers stand for."""

    structure: Structure
    calls: tuple[StageCall, ...]
    candidates: Mapping[str, Candidates]
    problem: AllocationProblem | None
    """None when some call fits nowhere."""

    @property
    def homeless(self) -> tuple[str, ...]:
        """Calls that fit nowhere."""
        return tuple(call.name for call in self.calls if not len(self.candidates[call.name]))


def pose(structure: Structure, market: Market, demands: Mapping[str, Demand], share: float = 1.0) -> Posed:
    """Return the allocation problem of a structure.

    Args:
        structure: what runs.
        market: on what, and at which prices.
        demands: of the structure's stages.
        share: of the memory of a device that may be used.
    """
    calls = calls_of(structure.graph)
    supplies = supplies_of(structure.graph, calls)
    supplied = {each.reader for each in supplies if not each.is_cast}
    found = {
        call.name: market.candidates(structure, call, demands, may_haul=call.name not in supplied) for call in calls
    }
    if not all(len(each) for each in found.values()):
        return Posed(structure, calls, found, None)
    places = list(places_of(market.system))
    index = {place.devices: i for i, place in enumerate(places)}
    ahead = {call.name for call in calls if call.kind is StageKind.GENERATE and structure.staleness}
    problem = AllocationProblem(
        tuple(place.devices for place in places),
        tuple(_call(call, found[call.name], index, call.name in supplied) for call in calls),
        tuple(_reshards(structure.graph, supplies, found, market)),
        market.system.device.memory_bytes * share,
        structure.staleness,
        frozenset(ahead),
        is_in_flight=any(text.startswith("in_flight{") for text in structure.rewrites),
    )
    return Posed(structure, calls, found, problem)


def _call(call: StageCall, found: Candidates, index: Mapping[frozenset[int], int], is_supplied: bool) -> Call:
    """Return a call as tables; weights that a trainer supplies count where they are copied."""
    held = _column(found, "held_bytes")
    return Call(
        call.name,
        np.array([index[place.devices] for place in found.places]),
        _column(found, "seconds"),
        np.zeros_like(held) if is_supplied else held,
        call.after,
        _column(found, "working_bytes"),
        _column(found, "tail_s") if call.kind is StageKind.GENERATE else None,
    )


def _column(found: Candidates, name: str) -> Floats:
    return np.array([getattr(row, name) for row in found.rows], dtype=float)


def _reshards(
    graph: Graph, supplies: Sequence[Supply], found: Mapping[str, Candidates], market: Market
) -> Iterator[Reshard]:
    """Yield what it takes to get weights to their readers; those that workers keep once are nowhere else."""
    kept = dict[str, str]() if market.workers is None else learning_with(graph, list(found))
    for reader, source in kept.items():
        yield Reshard(source, reader, np.where(_is_same(found[source], found[reader]), 0.0, _NEVER_S), True)
    for supply in supplies:
        if kept.get(supply.reader) != supply.source:
            yield _reshard(supply, found, market)


def _reshard(supply: Supply, found: Mapping[str, Candidates], market: Market) -> Reshard:
    """Return what it takes at least to bring updated weights to a reader, and what it keeps of them.

    Through the ports of a node all of its devices together get what they lack once; inside the node it is passed on.
    """
    source, reader = found[supply.source], found[supply.reader]
    is_same = _is_same(source, reader)
    shape = market.workload.shape(supply.role)
    parts = np.array([row.choice.tp * row.choice.pp for row in reader.rows], dtype=float)
    wanted = np.broadcast_to(_WEIGHT_BYTES * num_parameters(shape) / parts, is_same.shape)
    inner, outer = _ports(market.system)
    is_near = _is_near(source, reader, market.system)
    moved_s = wanted / inner + np.where(is_near, 0.0, wanted / (outer * market.system.levels[-1].count))
    copies = None if supply.is_cast else np.where(is_same, 0.0, wanted)
    seconds = np.where(is_same, 0.0, moved_s)
    if supply.is_cast:  # devices that sample and train in turn give up caches and wake graphs
        seconds = seconds + np.where(_meet(source, reader), market.software.constants.switch_s, 0.0)
    return Reshard(supply.source, supply.reader, seconds, True, copies)


def _is_same(source: Candidates, reader: Candidates) -> npt.NDArray[np.bool_]:
    """Return for every pair whether the weights lie where they are wanted: the place, and every split of it."""
    mine, theirs = ([_lie(p, r) for p, r in zip(c.places, c.rows, strict=True)] for c in (source, reader))
    numbers = {each: i for i, each in enumerate(dict.fromkeys([*mine, *theirs]))}
    a, b = (np.array([numbers[each] for each in some]) for some in (mine, theirs))
    return a[:, None] == b[None, :]


def _lie(place: Place, row: Row) -> tuple[frozenset[int], int, int, int, int, bool]:
    choice = row.choice
    return place.devices, choice.tp, choice.pp, choice.cp, choice.ep, choice.zero == 3


def _is_near(source: Candidates, reader: Candidates, system: System) -> npt.NDArray[np.bool_]:
    """Return for every pair whether every node that reads has all that is written."""
    per_node = system.levels[-1].count
    mine, theirs = ([frozenset(d // per_node for d in p.devices) for p in c.places] for c in (source, reader))
    one = [len(nodes) == 1 for nodes in mine]
    return np.array([[is_one and a == b for b in theirs] for a, is_one in zip(mine, one, strict=True)])


def _meet(source: Candidates, reader: Candidates) -> npt.NDArray[np.bool_]:
    """Return for every pair whether the two have a device in common."""
    sets = list(dict.fromkeys(place.devices for place in (*source.places, *reader.places)))
    number = {devices: i for i, devices in enumerate(sets)}
    common = np.array([[bool(a & b) for b in sets] for a in sets])
    a, b = (np.array([number[place.devices] for place in each.places]) for each in (source, reader))
    return common[a[:, None], b[None, :]]


def _ports(system: System) -> tuple[float, float]:
    """Return bytes per second of a device inside its node and out of it."""
    links = [level.link.bytes_per_s for level in system.levels if level.link is not None]
    host = system.device.host.bytes_per_s
    inner = system.levels[-1].link.bytes_per_s if system.levels[-1].link is not None else host
    return inner, min(links, default=host)
