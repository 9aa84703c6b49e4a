"""The baselines by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from rpeg.errors import Fault, PlanError
from rpeg.search.baselines.areal import AREAL
from rpeg.search.baselines.baseline import Baseline
from rpeg.search.baselines.openrlhf import OPENRLHF
from rpeg.search.baselines.real import HEURISTIC, REAL
from rpeg.search.baselines.rlinf import RLINF
from rpeg.search.baselines.verl import FULLY_ASYNC, ONE_STEP_OFF, SYNC

__all__ = ["BASELINES", "baselines_named"]

_EVERY = (HEURISTIC, REAL, SYNC, ONE_STEP_OFF, FULLY_ASYNC, OPENRLHF, AREAL, RLINF)

BASELINES: Mapping[str, Baseline] = {each.name: each for each in _EVERY}
"""In the order in which tables show them."""


def baselines_named(names: Sequence[str], where: str = "baselines") -> tuple[Baseline, ...]:
    """Return baselines by name, each once, in the order of tables; all where no name is given.

    Raises:
        PlanError: with every name that there is not.
    """
    faults = [Fault(name, "is no baseline", _remedy(name)) for name in dict.fromkeys(names) if name not in BASELINES]
    if faults:
        raise PlanError(where, faults)
    return tuple(each for each in _EVERY if not names or each.name in names)


def _remedy(name: str) -> str:
    near = get_close_matches(name, BASELINES, n=1)
    known = f"there is {', '.join(BASELINES)}"
    return f"did you mean {near[0]}? {known}" if near else known
