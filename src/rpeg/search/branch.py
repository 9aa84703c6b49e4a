"""Branch and bound over the calls of an allocation, many partial choices at a time.

Calls are decided one after the other. Of every partial choice a lower bound is known: the step it would make if what is
undecided ran as fast as it can and alone. What cannot beat the best complete choice found so far is dropped for good.
Where more partial choices are left than fit (`max_states`), those with the best bounds go on, and the smallest bound
that was put aside becomes the certificate: no choice at all can be better than that. If nothing was put aside the
answer is the optimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from rpeg.search.allocation import AllocationProblem, Call, Choices, Floats, Ints, Reshard, check_problem

__all__ = ["Allocation", "allocate", "cheapest_bytes"]

_CHUNK = 200_000
"""Choices priced at a time: as much as stays in the caches of a core."""
_BLOCK = 1024
"""Choices whose bytes are counted at a time, the fastest first."""
_ROUNDS = 12
"""Rounds over all pairs of calls, at most; two or three are usual."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The best choice found, and what is known about how good it is."""

    choice: dict[str, int]
    """Candidate by call; empty when nothing fits."""
    step_s: float
    bound_s: float
    """No choice takes less."""

    @property
    def gap(self) -> float:
        """How much of the step the bound leaves open: 0 is optimal."""
        return 0.0 if self.step_s <= self.bound_s else 1.0 - self.bound_s / self.step_s


def allocate(
    problem: AllocationProblem,
    max_states: int = 200_000,
    tolerance: float = 0.0,
    start: Mapping[str, int] | None = None,
) -> Allocation:
    """Return the best choice of one candidate per call, the same one every time.

    Args:
        problem: calls, candidates, tables.
        max_states: partial choices that are kept at a time; more of them prove more and take longer.
        tolerance: what could only be better by so little, as a share of the step, is not looked at.
        start: a choice that is thought to be good, to begin with instead of rules of thumb.

    Raises:
        PlanError: when the tables do not fit together.
    """
    check_problem(problem)
    kept = _without_dominated(problem)
    small = _restricted(problem, kept)
    known = None if start is None else _known(kept, start)
    best = _descended(small, _starts(small) if known is None else [known])
    choice, bound_s = _branched(small, best, max_states, 1.0 - tolerance)
    if not choice:
        return Allocation({}, np.inf, np.inf)
    step_s = float(small.step_s({name: np.array([i]) for name, i in choice.items()})[0])
    return Allocation({name: int(kept[name][i]) for name, i in choice.items()}, step_s, min(step_s, bound_s))


def cheapest_bytes(problem: AllocationProblem) -> float:
    """Return the bytes on the fullest device if every call took the candidate that holds least, for refusals."""
    least = {call.name: np.array([int(call.num_bytes.argmin())]) for call in problem.calls}
    return float(problem.held_bytes(least)[0])


def _without_dominated(problem: AllocationProblem) -> dict[str, Ints]:
    """Return the candidates that no other on the same mesh beats in time, bytes and every reshard."""
    return {call.name: _undominated(call, _profile(problem, call)) for call in problem.calls}


def _profile(problem: AllocationProblem, call: Call) -> Floats:
    """Return all that a candidate costs on its mesh, one row each."""
    columns = [call.seconds[:, None], call.num_bytes[:, None]]
    columns += [each[:, None] for each in (call.working_bytes, call.tail_s) if each is not None]
    for each in problem.reshards:
        tables = [table for table in (each.seconds, each.num_bytes) if table is not None]
        columns += tables if each.source == call.name else []
        columns += [table.T for table in tables] if each.reader == call.name else []
    return np.hstack(columns)


def _undominated(call: Call, profile: Floats) -> Ints:
    kept: list[int] = []
    for mesh in np.unique(call.mesh):
        rows = np.flatnonzero(call.mesh == mesh)
        order = rows[np.lexsort((profile[rows, 1], profile[rows, 0]))]
        front: list[int] = []
        for row in order:
            if not any((profile[other] <= profile[row]).all() for other in front):
                front.append(int(row))
        kept += front
    return np.array(sorted(kept))


def _restricted(problem: AllocationProblem, kept: dict[str, Ints]) -> AllocationProblem:
    def part(call: Call) -> Call:
        rows = kept[call.name]
        working, tail_s = (None if each is None else each[rows] for each in (call.working_bytes, call.tail_s))
        return Call(call.name, call.mesh[rows], call.seconds[rows], call.num_bytes[rows], call.after, working, tail_s)

    def table(each: Reshard) -> Reshard:
        rows = np.ix_(kept[each.source], kept[each.reader])
        num_bytes = None if each.num_bytes is None else each.num_bytes[rows]
        return replace(each, seconds=each.seconds[rows], num_bytes=num_bytes)

    calls, reshards = tuple(part(call) for call in problem.calls), tuple(table(each) for each in problem.reshards)
    return replace(problem, calls=calls, reshards=reshards)


@dataclass(frozen=True, slots=True)
class _Best:
    """The best complete choice so far."""

    choice: dict[str, int]
    step_s: float


def _known(kept: Mapping[str, Ints], start: Mapping[str, int]) -> dict[str, int] | None:
    """Return a choice among the candidates that are left, None where one of its own is not."""
    found = {name: int(np.searchsorted(rows, start[name])) for name, rows in kept.items()}
    is_there = all(i < len(kept[name]) and kept[name][i] == start[name] for name, i in found.items())
    return found if is_there else None


def _descended(problem: AllocationProblem, starts: Iterable[dict[str, int]]) -> _Best:
    """Return a good choice: from every start, the best change of two calls at once, as long as there is one."""
    best = _Best({}, np.inf)
    for start in starts:
        found = _descend(problem, start)
        if found.step_s < best.step_s:
            best = found
    return best


def _starts(problem: AllocationProblem) -> Iterator[dict[str, int]]:
    """Yield the fastest candidates, the leanest, and those that use their devices best."""
    yield {call.name: int(call.seconds.argmin()) for call in problem.calls}
    yield {call.name: int(call.num_bytes.argmin()) for call in problem.calls}
    yield {call.name: int((call.seconds * problem.mesh_sizes[call.mesh]).argmin()) for call in problem.calls}


def _descend(problem: AllocationProblem, start: dict[str, int]) -> _Best:
    best = _priced(problem, start)
    for _ in range(_ROUNDS):
        before = best.step_s, best.choice
        for pair in combinations(problem.calls, 2):
            best = _best_pair(problem, pair, best)
        if (best.step_s, best.choice) == before:
            break
    return best if np.isfinite(best.step_s) else _Best({}, np.inf)


def _priced(problem: AllocationProblem, choice: dict[str, int]) -> _Best:
    choices = {name: np.array([i]) for name, i in choice.items()}
    fits = problem.held_bytes(choices)[0] <= problem.capacity_bytes
    return _Best(choice, float(problem.step_s(choices)[0]) if fits else np.inf)


def _best_pair(problem: AllocationProblem, pair: Sequence[Call], best: _Best) -> _Best:
    """Return the best choice that differs from ``best`` in two calls at most."""
    fixed = {name: np.array([i]) for name, i in best.choice.items() if name not in {call.name for call in pair}}
    a, b = (_promising(problem, call, fixed, best.step_s) for call in pair)
    for rows in _chunks(a, len(b)):
        choices = fixed | {pair[0].name: np.repeat(rows, len(b)), pair[1].name: np.tile(b, len(rows))}
        found = _best_of(problem, choices, best)
        best = found or best
    return best


def _promising(problem: AllocationProblem, call: Call, fixed: Choices, limit_s: float) -> Ints:
    """Return the candidates of a call that fit and could be part of a step below the limit, whatever the other does."""
    rows = np.arange(len(call))
    rows = rows[problem.step_s({**fixed, call.name: rows}) < limit_s]
    if not np.isfinite(problem.capacity_bytes) or not len(rows):
        return rows
    return rows[problem.held_bytes({**fixed, call.name: rows}) <= problem.capacity_bytes]


def _chunks(rows: Ints, width: int) -> Iterator[Ints]:
    size = max(1, _CHUNK // max(1, width))
    yield from (rows[i : i + size] for i in range(0, len(rows) if width else 0, size))


def _best_of(problem: AllocationProblem, choices: Choices, best: _Best) -> _Best | None:
    """Return the best complete choice that fits, None when none is better than ``best``."""
    seconds = problem.step_s(choices)
    better = np.flatnonzero(seconds < best.step_s)
    better = better[np.argsort(seconds[better], kind="stable")]
    for rows in (better[i : i + _BLOCK] for i in range(0, len(better), _BLOCK)):
        some = {name: indices[rows] if len(indices) > 1 else indices for name, indices in choices.items()}
        fitting = np.flatnonzero(problem.held_bytes(some) <= problem.capacity_bytes)
        if len(fitting):
            first = fitting[0]
            choice = {name: int(indices[first if len(indices) > 1 else 0]) for name, indices in some.items()}
            return _Best(choice, float(seconds[rows[first]]))
    return None


def _branched(problem: AllocationProblem, best: _Best, max_states: int, within: float) -> tuple[dict[str, int], float]:
    """Return the best choice and a bound on all others; only what is below ``within`` of the best goes on."""
    order = _order(problem)
    states: dict[str, Ints] = {}
    put_aside_s = np.inf
    for depth, call in enumerate(order):
        states, best = _expanded(problem, states, call, best, within, is_last=depth == len(order) - 1)
        if not states or not len(next(iter(states.values()))):
            break
        states, dropped_s = _kept_best(problem, states, max_states)
        put_aside_s = min(put_aside_s, dropped_s)
    return best.choice, min(best.step_s * within, put_aside_s)


def _order(problem: AllocationProblem) -> list[Call]:
    """Return the calls, those first whose choice decides most: the longest, and then what shares weights with them."""
    return sorted(problem.calls, key=lambda call: -problem.least_s[call.name])


def _expanded(
    problem: AllocationProblem, states: Choices, call: Call, best: _Best, within: float, *, is_last: bool
) -> tuple[dict[str, Ints], _Best]:
    """Return every state with every candidate of ``call`` that may still beat ``best``."""
    rows = np.arange(len(next(iter(states.values())))) if states else np.zeros(1, np.int64)
    candidates = np.arange(len(call))
    parts: list[dict[str, Ints]] = []
    for some in _chunks(rows, len(candidates)):
        choices = {name: np.repeat(indices[some], len(candidates)) for name, indices in states.items()}
        choices[call.name] = np.tile(candidates, len(some))
        if is_last:
            best = _best_of(problem, choices, best) or best
        else:
            parts.append(_fitting(problem, choices, best.step_s * within))
    if is_last or not parts:
        return {}, best
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, best


def _fitting(problem: AllocationProblem, choices: Choices, limit_s: float) -> dict[str, Ints]:
    alive = problem.step_s(choices) < limit_s
    some = {name: indices[alive] for name, indices in choices.items()}
    if np.isfinite(problem.capacity_bytes) and alive.any():
        fits: npt.NDArray[np.bool_] = problem.held_bytes(some) <= problem.capacity_bytes
        some = {name: indices[fits] for name, indices in some.items()}
    return some


def _kept_best(problem: AllocationProblem, states: Choices, max_states: int) -> tuple[dict[str, Ints], float]:
    """Return the states with the best bounds, and the smallest bound among the others."""
    num_states = len(next(iter(states.values())))
    if num_states <= max_states:
        return dict(states), np.inf
    bounds = np.concatenate(
        [problem.step_s({n: i[k : k + _CHUNK] for n, i in states.items()}) for k in range(0, num_states, _CHUNK)]
    )
    order = np.argsort(bounds, kind="stable")
    kept, dropped = np.sort(order[:max_states]), order[max_states:]
    return {name: indices[kept] for name, indices in states.items()}, float(bounds[dropped].min())
