"""One column of the evaluation: every system, and every rung of this one, on one case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rpeg.errors import PlanError
from rpeg.perf.software import software_for
from rpeg.search.baselines.bench import Bench, best_of_two
from rpeg.search.baselines.catalog import baselines_named
from rpeg.search.case import Case
from rpeg.search.evaluation.ladder import climbed, synchronous
from rpeg.search.evaluation.line import Line, line_of, refused
from rpeg.search.evaluation.scenarios import Column, Scenario
from rpeg.search.find import Found, Goal, bound_among, plans_among

__all__ = ["Order", "Solved", "solve", "swept_name"]


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked of every column."""

    staleness: int = 4
    """How many steps old samples may be, where anything is asynchronous."""
    software: str = "generic"
    """Profile whose constants count, for this system and all others."""
    against: tuple[str, ...] = ()
    """Baselines that are wanted; none: all."""


@dataclass(frozen=True, slots=True)
class Solved:
    """A column with its lines."""

    scenario: str
    column: Column
    lines: tuple[Line, ...]
    bound_s: float | None = None
    """No synchronous plan takes less; None where it was not asked for."""

    def line(self, name: str) -> Line | None:
        """Return the line of that name, None where there is none."""
        return next((line for line in self.lines if line.name == name), None)


def solve(scenario: Scenario, column: Column, order: Order) -> Solved:
    """Return a column of a scenario, the same one every time."""
    case = Case(
        column.load.graph(),
        column.load.workload(),
        column.machine.system(),
        Goal(order.staleness),
        software_for(order.software),
    )
    bench = Bench(case.market())
    if scenario.sweep:
        return Solved(scenario.name, column, tuple(_swept(case, bench, scenario.sweep)))
    lines = (*_others(case, bench, scenario, order), *_rungs(case, bench, scenario))
    return Solved(scenario.name, column, lines, bound_among(synchronous(case, bench), bench.market))


def _others(case: Case, bench: Bench, scenario: Scenario, order: Order) -> Iterator[Line]:
    for baseline in baselines_named(order.against):
        if scenario.against is not None and baseline.name not in scenario.against:
            continue
        try:
            found = baseline.plan(case, bench)
        except PlanError as error:
            yield refused(baseline.name, error, is_baseline=True)
        else:
            yield line_of(baseline.name, found.found, case, is_baseline=True, share=found.share)


def _rungs(case: Case, bench: Bench, scenario: Scenario) -> Iterator[Line]:
    before: tuple[Found, Line] | None = None
    for rung, found in climbed(case, bench, scenario.rungs):
        if isinstance(found, PlanError):
            yield refused(rung.name, found, is_baseline=False)
            continue
        if before is not None and before[0] is found:  # nothing better: the same plan under another name
            before = found, replace(before[1], name=rung.name)
        else:
            before = found, _line(rung.name, found, case)
        yield before[1]


def _line(name: str, found: Found, case: Case) -> Line:
    return line_of(name, found, case, is_baseline=False)


def swept_name(staleness: int, *, in_flight: bool) -> str:
    """Return the name of a line of a sweep.

    >>> swept_name(4, in_flight=True)
    'up to 4 steps old, in flight'
    """
    return f"up to {staleness} steps old{', in flight' if in_flight else ''}"


def _swept(case: Case, bench: Bench, sweep: Sequence[int]) -> Iterator[Line]:
    """Yield the best plan for every bound on staleness: with weights exchanged between samples, and while they run."""
    for in_flight in (False, True):
        names = frozenset({"stream", "in_flight"}) if in_flight else frozenset({"stream"})
        every = bench.structures(case.graph, max(sweep), names)
        best: Found | None = None
        for staleness in sweep:
            asked = [each for each in every if each.staleness == staleness and _changes(each.rewrites) == in_flight]
            plans, _ = plans_among(asked, bench.market) if asked else ((), ())
            best = best_of_two(best, plans[0] if plans else None)
            if best is not None:
                yield _line(swept_name(staleness, in_flight=in_flight), best, case)


def _changes(rewrites: Sequence[str]) -> bool:
    return any(text.startswith("in_flight{") for text in rewrites)
