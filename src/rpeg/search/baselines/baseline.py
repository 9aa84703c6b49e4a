"""A system beside this one: what it may choose, and the best plan that it could have."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from rpeg.errors import Fault, PlanError
from rpeg.graph.graph import Graph
from rpeg.search.baselines.bench import Bench
from rpeg.search.baselines.settings import SettingsOf
from rpeg.search.case import Case
from rpeg.search.find import Found
from rpeg.search.structures import Structure
from rpeg.search.what_if import Change, changed

__all__ = ["MODELLED", "Baseline", "Modelled"]

MODELLED = (
    "Baselines are modelled: each is the best plan within what that system allows, in this project's own "
    "representation, priced by the same model with the same constants; none of these systems was run."
)
"""What has to stand wherever a baseline is printed."""


@dataclass(frozen=True, slots=True, eq=False)
class Modelled:
    """The plan of a baseline."""

    found: Found
    share: float = 1.0
    """Prompts that were asked for, over those that the plan is for."""

    @property
    def step_s(self) -> float:
        """Seconds for as many prompts as were asked for."""
        return self.share * self.found.step_s


@dataclass(frozen=True, slots=True)
class Baseline:
    """A system as what it may choose."""

    name: str
    may: str
    """What it may choose, for people."""
    not_modelled: str
    """What it does that has no counterpart here, for people."""
    settings: tuple[SettingsOf, ...]
    """Kinds of settings; the best of every kind is looked for."""
    rewrites: frozenset[str] = frozenset()
    """Transformations that it has built in."""
    is_stale: bool = False
    """Whether samples may be older than the weights they train."""
    most_staleness: int | None = None
    """Steps that samples are old at most; None: as old as is allowed."""
    batch: Fraction = Fraction(1)
    """Prompts of a step of the plan, over those that are asked for."""

    def plan(self, case: Case, bench: Bench) -> Modelled:
        """Return the best plan that this system could have.

        Args:
            case: algorithm, models, machine; and how old samples may be, where the system allows any staleness.
            bench: of that case.

        Raises:
            PlanError: when it has none that fits: with what is short.
        """
        asked = case.graph if self.batch == 1 else changed(case, [Change("prompts", float(self.batch))]).graph
        return Modelled(bench.best_of(self._structures(asked, case, bench), self.settings), float(1 / self.batch))

    def _structures(self, graph: Graph, case: Case, bench: Bench) -> tuple[Structure, ...]:
        if not self.is_stale:
            return bench.structures(graph, 0, self.rewrites)
        bound = case.goal.max_staleness
        if not bound:
            raise PlanError(self.name, [Fault(self.name, "works with old samples only", "allow a staleness of 1")])
        most = min(bound, self.most_staleness or bound)
        every = bench.structures(graph, most, self.rewrites)
        # What is between is never faster than the most, nor does it need less memory than the least.
        return tuple(each for each in every if each.staleness in (1, most) and self._is_in_flight(each))

    def _is_in_flight(self, structure: Structure) -> bool:
        """Whether weights change while samples are under way, where the system does that: it always does."""
        names = {text.partition("{")[0] for text in structure.rewrites}
        return "in_flight" in names or "in_flight" not in self.rewrites
