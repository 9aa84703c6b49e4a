"""By how much the step follows every figure of the machine and the workload: raised by a hundredth and priced again.

A plan stays as it is. Where it is cut to the bone by one figure, a percent more of it takes nearly a percent off the
step; the others tell what would come next. Devices are whole: the next machine that is larger is searched.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from rpeg.graph.graph import Graph
from rpeg.plan.plan import Plan
from rpeg.search.case import Case
from rpeg.search.reprice import priced
from rpeg.search.what_if import Change, changed, knobs

__all__ = ["Slope", "figures", "slope_between"]

_RAISED = 1.01
_SKIPPED = ("gpus", "memory", "staleness", "prompts", "nic")
"""Counts, what only a search turns into time, and what the links say one by one."""


@dataclass(frozen=True, slots=True)
class Slope:
    """One figure."""

    figure: str
    step_s: float
    """The step with a hundredth more of it; with so many devices, of these."""
    elasticity: float
    """Percent that the step gets longer for a percent more: -1 where it is all that counts, 0 where it does not."""


def figures(case: Case, graph: Graph, plan: Plan) -> tuple[Slope, ...]:
    """Return the slope of every figure, what counts most first."""
    now_s = priced(case, graph, plan).seconds
    found: list[Slope] = []
    for name in _names(case):
        step_s = priced(changed(case, [Change(name, _RAISED)]), graph, plan).seconds
        found.append(Slope(name, step_s, slope_between(now_s, step_s, _RAISED)))
    return tuple(sorted(found, key=lambda each: -abs(each.elasticity)))


def slope_between(before_s: float, after_s: float, factor: float) -> float:
    """Return the elasticity of a step between two amounts of a figure.

    >>> round(slope_between(60.0, 30.0, 2.0), 12)
    -1.0
    """
    return log(after_s / before_s) / log(factor) if before_s and after_s else 0.0


def _names(case: Case) -> list[str]:
    """Return what is raised: of links with a name and a make the name."""
    makes = {level.link.kind for level in case.system.levels if level.link is not None}
    names = {level.link.name for level in case.system.levels if level.link is not None}
    return [name for name in knobs(case.system) if name not in _SKIPPED and not (name in makes and name not in names)]
