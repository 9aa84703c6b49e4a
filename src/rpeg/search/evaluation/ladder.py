"""What each kind of freedom is worth: rungs, each of which may all that the ones before may, and one thing more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from rpeg.errors import Fault, PlanError
from rpeg.hardware.topology import System
from rpeg.search.baselines.bench import Bench, best_of_two, freshest
from rpeg.search.baselines.cuts import everything
from rpeg.search.baselines.settings import Setting, alike
from rpeg.search.calls import StageCall
from rpeg.search.case import Case
from rpeg.search.find import Found, plans_among
from rpeg.search.structures import Structure

__all__ = ["ASYNCHRONY", "PARALLELISM", "RUNGS", "Rung", "climbed", "synchronous"]

PARALLELISM, ASYNCHRONY = "+ parallelism", "+ asynchrony"
_SHARING = frozenset({"share_trunk", "drop_dead"})
_FUSING = _SHARING | {"fuse_forward"}
_STREAMING = _FUSING | {"stream"}


@dataclass(frozen=True, slots=True)
class Rung:
    """One more kind of freedom."""

    name: str
    may: str
    """What it adds, for people."""
    search: Callable[[Case, Bench, Found | None], Found]
    """Finds the best plan; knows the best of the rungs before."""


def climbed(case: Case, bench: Bench, names: Collection[str] | None = None) -> Iterator[tuple[Rung, Found | PlanError]]:
    """Yield every rung with the best plan found so far: one that may more keeps that of those before if it is better.

    Args:
        case: algorithm, models, machine; and how old samples may be on the last rung.
        bench: of that case.
        names: of rungs that are climbed; None: all.
    """
    best: Found | None = None
    for rung in (rung for rung in RUNGS if names is None or rung.name in names):
        try:
            found = rung.search(case, bench, best)
        except PlanError as error:
            yield rung, best or error
            continue
        best = best_of_two(best, found) or found
        yield rung, best


def synchronous(case: Case, bench: Bench) -> tuple[Structure, ...]:
    """Return all structures without staleness."""
    return bench.structures(case.graph, 0, _STREAMING)


def _base(case: Case, bench: Bench, before: Found | None) -> Found:
    del before
    return bench.best_of(bench.structures(case.graph, 0, frozenset()), (_in_turn,))


def _shared(case: Case, bench: Bench, before: Found | None) -> Found:
    del before
    return bench.best_of(_leanest(bench.structures(case.graph, 0, _SHARING)), (_in_turn,))


def _fused(case: Case, bench: Bench, before: Found | None) -> Found:
    del before
    return bench.best_of(_leanest(bench.structures(case.graph, 0, _FUSING)), (_in_turn,))


def _scheduled(case: Case, bench: Bench, before: Found | None) -> Found:
    every = synchronous(case, bench)
    form = before.structure.form if before is not None else _leanest(every)[0].form
    return bench.best_of([each for each in every if each.form == form], (_in_turn, _anywhere))


def _parallel(case: Case, bench: Bench, before: Found | None) -> Found:
    del before
    return _first(synchronous(case, bench), bench)


def _asynchronous(case: Case, bench: Bench, before: Found | None) -> Found:
    del before
    bound = case.goal.max_staleness
    every = bench.structures(case.graph, bound, _STREAMING | {"in_flight"})
    # What is between is never faster than the most, nor does it need less memory than the least.
    asked = [each for each in every if each.staleness in (1, bound) and any("in_flight{" in r for r in each.rewrites)]
    return _first(asked, bench)


def _first(every: Sequence[Structure], bench: Bench) -> Found:
    plans, refused = (
        plans_among(every, bench.market) if every else ((), (Fault("staleness", "is not allowed", "allow 1"),))
    )
    best = freshest(plans)
    if best is None:
        raise PlanError(f"plans on {bench.market.system.name}", refused)
    return best


def _leanest(every: Sequence[Structure]) -> list[Structure]:
    """Return the structures to which most rewrites have been applied that save work."""
    most = max(len(each.rewrites) for each in every)
    return [each for each in every if len(each.rewrites) == most]


def _in_turn(calls: Sequence[StageCall], system: System) -> Iterator[Setting]:
    """Yield the setting where all calls take turns on all devices, all split alike."""
    yield Setting({call.name: everything(system).where for call in calls}, tuple(alike(calls, system))[1:])


def _anywhere(calls: Sequence[StageCall], system: System) -> Iterator[Setting]:
    """Yield the setting where calls have devices of their own, but are split alike."""
    yield Setting({}, tuple(alike(calls, system))[1:])


RUNGS = (
    Rung("base", "synchronous, all calls in turn on all devices, one split of all models into tp and pp", _base),
    Rung("+ actor-critic sharing", "actor and critic may have one trunk", _shared),
    Rung("+ fusion", "passes over the same samples may be one pass", _fused),
    Rung("+ scheduling", "any devices for every call, any order, samples streamed in parts", _scheduled),
    Rung(PARALLELISM, "any layout for every call", _parallel),
    Rung(ASYNCHRONY, "samples as old as the bound, weights that change while samples are under way", _asynchronous),
)
"""From the least to all of it."""
