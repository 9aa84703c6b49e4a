"""The search: structures, the best allocation of each, plans of the best allocations, ranked by their exact step.

For every structure that no other one dominates, one candidate per call is chosen by branch and bound, over tables. The
choice becomes a plan, which is held against all rules of plans and priced by the whole model; where it needs more
memory than the tables said, the choice is made again with less of it. Then samples are streamed in ever smaller parts
as long as that helps. What no order of work could beat is computed beside, so every answer comes with its gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rpeg.errors import Fault, PlanError
from rpeg.graph.graph import Graph
from rpeg.hardware.topology import System
from rpeg.perf.demand import demands
from rpeg.perf.software import Software, software_for
from rpeg.perf.workload import Workload
from rpeg.plan.workers import Workers
from rpeg.search.allocation import AllocationProblem
from rpeg.search.branch import Allocation, allocate
from rpeg.search.plans import Assigned, Priced, draw_plan, price_plan
from rpeg.search.prices import Pin
from rpeg.search.problem import Market, Posed, pose
from rpeg.search.structures import Structure, structures

__all__ = ["Found", "Goal", "Outcome", "bound_among", "find_plans", "plans_among"]

_SHARES = (0.96, 0.86, 0.74, 0.6)
"""Of the memory of devices that the tables may fill; what they leave out has to fit beside."""
_MAX_STATES = 2_000
_TOLERANCE = 0.005
_NEAR_ENOUGH = 1.1
"""A plan that takes so many times what the tables said is tried again with less memory."""
_FEW = 20_000
_MOST_PRICED = 100
"""Of a structure with few choices, every one that could still be better is priced in full, up to so many."""
_SAVING = ("share_trunk", "fuse_forward", "drop_dead", "use_recorded_logprob", "use_recorded_value")
"""Rewrites after which there is less to do than before."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is wanted."""

    max_staleness: int = 0
    """How many steps old samples may be."""
    allow: tuple[str, ...] = ()
    """Transformations that change the learning and may be used."""
    pins: Mapping[str, Pin] = field(default_factory=dict[str, Pin])
    """By call, what is fixed of its layout."""
    regions: Mapping[str, str] = field(default_factory=dict[str, str])
    """By call, the only place where it may run."""
    top: int = 5
    """Plans that are returned."""
    workers: Workers | None = None
    """Who carries the plans out, in layouts and with defaults of their own; None: other software, which may do all."""

    def market(self, workload: Workload, system: System, software: Software) -> Market:
        """Return what plans that keep to it are drawn and priced with."""
        return Market.of(system, software, workload, self.pins, self.regions, self.workers)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A plan, with where it comes from."""

    structure: Structure
    assigned: tuple[Assigned, ...]
    priced: Priced

    @property
    def step_s(self) -> float:
        """Seconds per step."""
        return self.priced.step_s


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a search found."""

    plans: tuple[Found, ...]
    """The best first."""
    bound_s: float
    """No plan over these structures, places and layouts takes less."""
    num_structures: int
    num_combinations: float
    """Plans that the tables stand for."""
    refused: tuple[Fault, ...]
    """Of every structure without a plan, why."""

    @property
    def gap(self) -> float:
        """How much of the best step the bound leaves open."""
        return max(0.0, 1.0 - self.bound_s / self.plans[0].step_s) if self.plans else 1.0


def find_plans(
    graph: Graph, workload: Workload, system: System, goal: Goal | None = None, software: Software | None = None
) -> Outcome:
    """Return the best plans of an algorithm on a machine; the same ones every time.

    Args:
        graph: the algorithm's graph.
        workload: models and lengths.
        system: the machine.
        goal: what is allowed and fixed.
        software: whose constants count.

    Raises:
        PlanError: when what is wanted contradicts itself, or when nothing fits: with what is short and what would help.
    """
    goal = goal or Goal()
    every = structures(graph, goal.max_staleness, goal.allow)
    market = goal.market(workload, system, software or software_for())
    tried = _searches(every, market)
    plans, refused = _plans_of(tried)
    if not plans:
        raise PlanError(f"plans of {graph.name} on {system.name}", refused)
    bound_s = min(each.bound_s() for each in tried)
    combinations = sum(each.posed.problem.num_combinations for each in tried if each.posed.problem is not None)
    return Outcome(tuple(_best(plans, goal.top)), bound_s, len(every), combinations, refused)


def plans_among(
    every: Sequence[Structure], market: Market, most_priced: int = _MOST_PRICED
) -> tuple[tuple[Found, ...], tuple[Fault, ...]]:
    """Return the plans of given structures, the best first, and of those without one why.

    Args:
        every: structures; of those that differ in streaming only, the least streamed is placed, the others follow it.
        market: the machine, prices, and what is fixed.
        most_priced: where there are few choices, so many of them are priced in full.
    """
    return _plans_of(_searches(every, market, most_priced))


def bound_among(every: Sequence[Structure], market: Market) -> float:
    """Return the seconds that no plan of given structures can beat."""
    return min(each.bound_s() for each in _searches(every, market))


def _searches(every: Sequence[Structure], market: Market, most_priced: int = _MOST_PRICED) -> list[_Search]:
    base = [each for each in every if each.firings == min(s.firings for s in every)]
    return [_Search(each, every, market, most_priced) for each in _undominated(base)]


def _plans_of(searches: Sequence[_Search]) -> tuple[tuple[Found, ...], tuple[Fault, ...]]:
    plans = sorted((found for each in searches for found in each.plans()), key=lambda found: found.step_s)
    return tuple(plans), _distinct([fault for each in searches for fault in each.refused])


def _undominated(found: Sequence[Structure]) -> list[Structure]:
    """Return the structures of which no other one has the same with less to do, those with most leave first."""
    kept = [each for each in found if not any(_dominates(other, each) for other in found)]
    return sorted(kept, key=lambda each: (-each.staleness, -len(each.rewrites)))


def _dominates(a: Structure, b: Structure) -> bool:
    """Whether ``a`` is ``b`` with further rewrites, all of which save work."""
    mine, theirs = [text for text in a.rewrites], [text for text in b.rewrites]
    if a.staleness != b.staleness or len(mine) <= len(theirs):
        return False
    for text in theirs:
        if text not in mine:
            return False
        mine.remove(text)
    return all(text.partition("{")[0] in _SAVING for text in mine)


class _Search:
    """One structure with those that differ from it in streaming only."""

    def __init__(
        self, structure: Structure, every: Sequence[Structure], market: Market, most_priced: int = _MOST_PRICED
    ) -> None:
        self._market, self._structure, self._most_priced = market, structure, most_priced
        self._streamed = sorted(
            (
                s
                for s in every
                if s.form == structure.form and s.staleness == structure.staleness and s is not structure
            ),
            key=lambda s: s.firings,
        )
        self._demands, _ = demands(structure.graph, market.workload)
        self.posed = pose(structure, market, self._demands)
        self.refused: list[Fault] = []
        self._start: Mapping[str, int] | None = None
        self._allocations: dict[float, Allocation] = {}

    def plans(self) -> list[Found]:
        """Return the plans of the best allocation, unstreamed and streamed as long as that helps."""
        best = self._one_by_one(self._placed())
        if best is None:
            return []
        return [best, *self._streams(best.assigned, best.step_s), *self._flowing()]

    def _streams(self, assigned: tuple[Assigned, ...], limit_s: float) -> Iterator[Found]:
        """Yield the plans of an allocation with ever smaller parts of the rows under way, as long as that helps."""
        for structure in self._streamed:
            streamed = self._with_room(structure, assigned)
            if streamed is None or streamed.step_s >= limit_s:
                return
            limit_s = streamed.step_s
            yield streamed

    def _flowing(self) -> list[Found]:
        """Return streamed plans of the allocation that is best if all rows flow: calls side by side, each always busy.

        Nobody would place calls like that whose rows do not flow, so the best unstreamed plan may be far from it.
        """
        for share in _SHARES if self._streamed else ():
            assert self.posed.problem is not None, "every call has a place"
            problem = self._relaxed(self.posed.problem, share)
            chosen = allocate(problem, _MAX_STATES, _TOLERANCE, self._start)
            found = list(self._streams(_assigned(self.posed, chosen), np.inf)) if chosen.choice else []
            if found:
                return found
        return []

    def _with_room(self, structure: Structure, assigned: tuple[Assigned, ...]) -> Found | None:
        """Return the plan of a streamed structure as its base is placed, else with more and more of the memory free.

        What streams is under way together, so it may need more room than calls that take turns.
        """
        found = self._priced(structure, assigned)
        for share in _SHARES[1:]:
            if found is not None:
                break
            chosen = self._chosen(share)
            found = self._priced(structure, _assigned(self.posed, chosen)) if chosen.choice else None
        return found

    def _chosen(self, share: float) -> Allocation:
        """Return the best allocation that fills at most a share of the memory."""
        assert self.posed.problem is not None, "every call has a place"
        if share not in self._allocations:
            problem = replace(self.posed.problem, capacity_bytes=self.posed.problem.capacity_bytes * share)
            self._allocations[share] = allocate(problem, _MAX_STATES, _TOLERANCE, self._start)
            self._start = self._allocations[share].choice or self._start
        return self._allocations[share]

    def _placed(self) -> Found | None:
        """Return the plan of the best allocation that fits, with more and more of the memory left to chance."""
        if self.posed.problem is None:
            self.refused += [self._homeless(name) for name in self.posed.homeless]
            return None
        best: Found | None = None
        for share in _SHARES:
            chosen = self._chosen(share)
            if not chosen.choice:
                self._note_full(share)
                break
            found = self._priced(self._structure, _assigned(self.posed, chosen))
            if found is not None and (best is None or found.step_s < best.step_s):
                best = found
            if best is not None and best.step_s <= chosen.step_s * _NEAR_ENOUGH:
                break
        return best

    def _one_by_one(self, best: Found | None) -> Found | None:
        """Return the best plan of few choices: all that no bound rules out are priced, the most promising first."""
        problem = self.posed.problem
        if problem is None or problem.num_combinations > _FEW:
            return best
        grid = np.meshgrid(*(np.arange(len(call)) for call in problem.calls), indexing="ij")
        choices = {call.name: indices.ravel() for call, indices in zip(problem.calls, grid, strict=True)}
        fitting = np.flatnonzero(problem.held_bytes(choices) <= problem.capacity_bytes)
        choices = {name: indices[fitting] for name, indices in choices.items()}
        least_s = replace(problem, is_relaxed=True).step_s(choices)
        for i in np.argsort(problem.step_s(choices), kind="stable")[: self._most_priced]:
            if best is not None and least_s[i] >= best.step_s:
                continue
            chosen = Allocation({name: int(indices[i]) for name, indices in choices.items()}, 0.0, 0.0)
            found = self._priced(self._structure, _assigned(self.posed, chosen))
            if found is not None and (best is None or found.step_s < best.step_s):
                best = found
        return best

    def _priced(self, structure: Structure, assigned: tuple[Assigned, ...]) -> Found | None:
        try:
            plan = draw_plan(structure.graph, self._market, assigned)
            return Found(structure, assigned, price_plan(structure.graph, plan, self._market))
        except PlanError as error:
            self.refused += error.faults
            return None

    def bound_s(self) -> float:
        """Return what no plan of these structures can beat."""
        if self.posed.problem is None:
            return np.inf
        return allocate(self._relaxed(self.posed.problem), _MAX_STATES, _TOLERANCE, self._start).bound_s

    def _relaxed(self, problem: AllocationProblem, share: float = 1.0) -> AllocationProblem:
        """Return the problem as if rows flowed in as many parts as any structure has, within a share of the memory."""
        parts = max([self._structure.firings, *(s.firings for s in self._streamed)])
        return replace(problem, is_relaxed=True, parts=parts, capacity_bytes=problem.capacity_bytes * share)

    def _homeless(self, name: str) -> Fault:
        text = f"fits in no layout on any part of {self._market.system.name}"
        return Fault(name, text, "more devices, devices with more memory, or less that is fixed")

    def _note_full(self, share: float) -> None:
        system = self._market.system
        capacity = system.device.memory_bytes * share
        text = f"its calls together need more than {capacity / 1e9:.0f} GB on some device of {system.name}"
        self.refused.append(Fault(self._structure.graph.name, text, "more devices, or fewer models on each"))


def _assigned(posed: Posed, chosen: Allocation) -> tuple[Assigned, ...]:
    candidates = posed.candidates
    return tuple(
        Assigned(call, candidates[call.name].places[i], candidates[call.name].rows[i])
        for call, i in ((call, chosen.choice[call.name]) for call in posed.calls)
    )


def _best(plans: Sequence[Found], top: int) -> Iterator[Found]:
    seen: set[str] = set()
    for found in plans:
        digest = found.priced.plan.digest()
        if digest not in seen and len(seen) < top:
            seen.add(digest)
            yield found


def _distinct(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    return tuple(dict.fromkeys(faults))
