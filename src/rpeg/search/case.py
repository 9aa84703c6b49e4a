"""What a search is asked: an algorithm, models and lengths, a machine, what is allowed, whose constants count."""

from __future__ import annotations

from dataclasses import dataclass

from rpeg.errors import Fault, PlanError
from rpeg.graph.graph import Graph
from rpeg.hardware.topology import System
from rpeg.perf.software import Software
from rpeg.perf.workload import Workload
from rpeg.search.find import Goal, Outcome, find_plans
from rpeg.search.problem import Market
from rpeg.search.space import places_of

__all__ = ["Case"]


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A question that `rpeg.search.find.find_plans` answers; what-ifs are changes of it."""

    graph: Graph
    """The algorithm's own, without rewrites."""
    workload: Workload
    system: System
    goal: Goal
    software: Software

    def market(self) -> Market:
        """Return what plans of this case are drawn and priced with."""
        return self.goal.market(self.workload, self.system, self.software)

    def search(self) -> Outcome:
        """Return the best plans.

        Raises:
            PlanError: when nothing fits: with what is short; when the machine has no such part as a call is to run on.
        """
        known = {place.where for place in places_of(self.system)}
        faults = [
            Fault(
                f"{call}.where", f"{where} is no part of {self.system.name} that is looked at", "fix another, or none"
            )
            for call, where in self.goal.regions.items()
            if where not in known
        ]
        if faults:
            raise PlanError(f"plans of {self.graph.name} on {self.system.name}", faults)
        return find_plans(self.graph, self.workload, self.system, self.goal, self.software)
