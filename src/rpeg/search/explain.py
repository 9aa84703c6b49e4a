"""Why a step takes as long as it does, what would change that, and why other structures are slower.

Everything is computed: the cycle that limits and the slack of the rest come from the event graph, exactly; figures are
raised and the plan is priced again; changes are priced or searched anew, none is extrapolated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rpeg.graph.graph import Graph
from rpeg.graph.lineage import age
from rpeg.plan.plan import Plan
from rpeg.search.case import Case
from rpeg.search.figures import Slope, figures, slope_between
from rpeg.search.find import Found, Outcome
from rpeg.search.reprice import Step, priced
from rpeg.search.sensitivity import Margin, TokenWorth, margins, token_worths
from rpeg.search.sentence import CycleLine, cycle_lines, limit, seconds_text, sentence
from rpeg.search.single_changes import Effect, Leave, single_changes

__all__ = ["Explanation", "Rival", "explain", "reading"]

_BEST = 3
_RIVALS = 12
_SAME = 1e-3
"""Steps that differ by less, in proportion, take as long."""


@dataclass(frozen=True, slots=True)
class Rival:
    """The best plan of another structure, or another plan of the same one."""

    rewrites: tuple[str, ...]
    """What was done to the algorithm's graph."""
    staleness: int
    parts: int
    """In which its samples flow."""
    step_s: float
    ratio: float
    """Its step over the one that is explained."""
    reason: str
    """What limits it."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What there is to say about a plan."""

    graph: str
    plan: str
    """Digests."""
    system: str
    devices: int
    staleness: int
    rewrites: tuple[str, ...]
    step_s: float
    bound_s: float
    """No plan that is allowed takes less."""
    text: str
    """The sentence."""
    cycle: tuple[CycleLine, ...]
    """The cycle that limits, in the order of time."""
    stages: tuple[Margin, ...]
    """What each is worth, and its slack; those on the cycle first."""
    tokens: tuple[TokenWorth, ...]
    figures: tuple[Slope, ...]
    changes: tuple[Effect, ...]
    """Single changes, the best first, those that do not help as well."""
    rivals: tuple[Rival, ...]
    """Other structures, the best first."""
    refused: tuple[str, ...]
    """Why structures have no plan."""

    @property
    def best_changes(self) -> tuple[Effect, ...]:
        """The three best single changes, as far as they help."""
        return self.helping[:_BEST]

    @property
    def helping(self) -> tuple[Effect, ...]:
        """Single changes that shorten the step, the best first."""
        return _helping(self.changes, self.step_s)


def explain(case: Case, graph: Graph, plan: Plan, outcome: Outcome | None = None) -> Explanation:
    """Return why the step of a plan takes as long as it does.

    Args:
        case: the question that the plan answers.
        graph: the structure that the plan is for.
        plan: what is explained.
        outcome: what a search of the case has found; None searches.

    Raises:
        PlanError: when nothing fits.
    """
    found = outcome or replace(case, goal=replace(case.goal, top=_RIVALS)).search()
    step = priced(case, graph, plan)
    changes = single_changes(case, graph, plan)
    return Explanation(
        graph.digest(),
        plan.digest(),
        case.system.name,
        case.system.num_devices,
        age(graph),
        tuple(applied.transform for applied in graph.history),
        step.seconds,
        found.bound_s,
        reading(step, changes),
        cycle_lines(step),
        margins(step),
        token_worths(step),
        (*_by_devices(case, step, changes), *figures(case, graph, plan)),
        changes,
        tuple(_rivals(case, plan, step, found)),
        tuple(map(str, found.refused)),
    )


def reading(step: Step, changes: tuple[Effect, ...]) -> str:
    """Return the sentence with the best change that the user can decide on, else with the best of a machine."""
    text = sentence(step)
    helping = _helping(changes, step.seconds)
    decided = [each for each in helping if each.leave is not Leave.MACHINE]
    best = next(iter([*decided, *helping]), None)
    if best is None:
        return f"{text}; nothing that was tried makes it shorter"
    then = f"then {best.limit}" if best.limit != limit(step) else f"and {best.limit} still"
    return f"{text}; {best.change} makes it {seconds_text(best.step_s)}, {then}"


def _helping(changes: tuple[Effect, ...], now_s: float) -> tuple[Effect, ...]:
    return tuple(each for each in changes if each.step_s < now_s * (1.0 - _SAME))


def _by_devices(case: Case, step: Step, changes: tuple[Effect, ...]) -> Iterator[Slope]:
    """Yield the slope of the number of devices, from the larger machine that was searched."""
    before = case.system.num_devices
    for each in changes:
        if each.devices != before:
            elasticity = slope_between(step.seconds, each.step_s, each.devices / before)
            yield Slope(f"devices ({before} to {each.devices})", each.step_s, elasticity)


def _rivals(case: Case, plan: Plan, step: Step, found: Outcome) -> list[Rival]:
    """Return the plans of a search that are others than the one explained, one per structure."""
    mine = plan.digest()
    seen: set[str] = {step.graph.digest()}
    rivals: list[Rival] = []
    for each in found.plans:
        digest = each.structure.graph.digest()
        is_better = each.step_s < step.seconds * (1.0 - _SAME)
        if each.priced.plan.digest() == mine or (digest in seen and not is_better):
            continue
        seen.add(digest)
        rivals.append(_rival(case, each, step.seconds))
    return rivals


def _rival(case: Case, found: Found, mine_s: float) -> Rival:
    structure = found.structure
    theirs = priced(case, structure.graph, found.priced.plan)
    ratio = theirs.seconds / mine_s if mine_s else 1.0
    return Rival(structure.rewrites, structure.staleness, structure.firings, theirs.seconds, ratio, limit(theirs))
