"""The answer to a what-if: the step before and after, found by a search or with the plan as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rpeg.errors import Fault, PlanError
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import age
from rpeg.plan.plan import Plan
from rpeg.search.case import Case
from rpeg.search.compare import Difference, differences
from rpeg.search.reprice import Step, checked, priced, transplanted
from rpeg.search.sentence import sentence
from rpeg.search.single_changes import How
from rpeg.search.structures import Structure, structures
from rpeg.search.what_if import Change, changed, read_changes

__all__ = ["Answer", "Outlook", "what_if"]


@dataclass(frozen=True, slots=True)
class Outlook:
    """One side of a what-if."""

    step_s: float
    text: str
    """What limits it, as a sentence."""
    devices: int
    staleness: int
    rewrites: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What changes make of a step."""

    changes: tuple[str, ...]
    how: How
    before: Outlook
    after: Outlook
    differences: tuple[Difference, ...]
    """What is not the same in the plan."""

    @property
    def ratio(self) -> float:
        """The step after over the step before."""
        return self.after.step_s / self.before.step_s if self.before.step_s else 1.0


def what_if(case: Case, texts: Sequence[str], graph: Graph, plan: Plan, *, same_plan: bool = False) -> Answer:
    """Return what changes make of the step of a plan.

    Args:
        case: the question that the plan answers.
        texts: the changes, such as ``nic=2x``; see `rpeg.search.what_if`.
        graph: the structure that the plan is for.
        plan: what runs now.
        same_plan: keep its meshes and layouts; otherwise the best plan of the changed question is searched.

    Raises:
        PlanError: with every text that cannot be read, when the plan cannot stay, or when nothing fits any more.
    """
    changes = read_changes(texts, case.system)
    other = changed(case, changes)
    before = priced(case, graph, plan)
    if same_plan:
        how, after_graph, after_plan = _kept(case, other, changes, graph, plan)
    else:
        best = other.search().plans[0]
        how, after_graph, after_plan = How.SEARCHED, best.structure.graph, best.priced.plan
    after = priced(other, after_graph, after_plan)
    return Answer(
        tuple(map(str, changes)),
        how,
        _outlook(case, before),
        _outlook(other, after),
        tuple(differences((graph, plan), (after_graph, after_plan))),
    )


def _outlook(case: Case, step: Step) -> Outlook:
    rewrites = tuple(applied.transform for applied in step.graph.history)
    return Outlook(step.seconds, sentence(step), case.system.num_devices, age(step.graph), rewrites)


def _kept(case: Case, other: Case, changes: Sequence[Change], graph: Graph, plan: Plan) -> tuple[How, Graph, Plan]:
    """Return the plan itself where its graph stays, else its layouts on the structure that is like its own."""
    if other.system.num_devices != case.system.num_devices:
        text = (
            f"changes {case.system.num_devices} devices to {other.system.num_devices}, and the plan is for the former"
        )
        raise PlanError("what if", [Fault("gpus", text, "leave out --same-plan")])
    names = {change.name for change in changes}
    if not names & {"staleness", "prompts"}:
        return How.PRICED, graph, checked(other, graph, plan)
    wanted = other.goal.max_staleness if "staleness" in names else age(graph)
    like = _alike(other, graph, wanted)
    return How.MOVED, like.graph, transplanted(other, plan, like.graph).plan


def _alike(case: Case, graph: Graph, staleness: int) -> Structure:
    """Return the structure with the same stages in as many parts, of that staleness."""
    stages = {stage.name: graph.firings(stage.name) for stage in graph.stages}
    for each in structures(case.graph, max(staleness, case.goal.max_staleness), case.goal.allow):
        theirs = {stage.name: each.graph.firings(stage.name) for stage in each.graph.stages}
        if each.staleness == staleness and theirs == stages:
            return each
    text = f"no structure with staleness {staleness} has the stages of the plan in as many parts"
    raise PlanError("what if", [Fault("--same-plan", text, "leave it out")])
