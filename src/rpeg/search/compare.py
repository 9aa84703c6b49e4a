"""Two plans side by side: what each is expected to do, what limits it, and in what they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.perf.regions import choice_of
from rpeg.perf.step import Prediction, predict
from rpeg.plan.plan import Binding, Plan, Recompute
from rpeg.search.case import Case
from rpeg.search.reprice import priced
from rpeg.search.sentence import sentence

__all__ = ["Comparison", "Difference", "Side", "compare", "differences"]

_DEGREES = ("tp", "pp", "dp", "cp", "ep")


@dataclass(frozen=True, slots=True)
class Side:
    """One of two plans."""

    name: str
    """What the user calls it."""
    rewrites: tuple[str, ...]
    prediction: Prediction
    limit: str
    """What limits it, as a sentence."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not the same."""

    part: str
    """``rewrites``, ``order``, or the name of a stage or of data."""
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """What there is to say about two plans."""

    a: Side
    b: Side
    differences: tuple[Difference, ...]

    @property
    def ratio(self) -> float:
        """Step of b over step of a."""
        return self.b.prediction.step_s / self.a.prediction.step_s if self.a.prediction.step_s else 1.0


def compare(a: tuple[str, Case, Graph, Plan], b: tuple[str, Case, Graph, Plan]) -> Comparison:
    """Return two plans side by side.

    Args:
        a: a name, what is asked, the structure, the plan.
        b: the same.

    Raises:
        PlanError: when a plan breaks a rule, or does not fit into memory.
    """
    return Comparison(_side(*a), _side(*b), tuple(differences((a[2], a[3]), (b[2], b[3]))))


def _side(name: str, case: Case, graph: Graph, plan: Plan) -> Side:
    prediction = predict(graph, plan, case.workload, case.system, case.software)
    rewrites = tuple(applied.transform for applied in graph.history)
    return Side(name, rewrites, prediction, sentence(priced(case, graph, plan)))


def differences(a: tuple[Graph, Plan], b: tuple[Graph, Plan]) -> Iterator[Difference]:
    """Yield what of two plans, each with its graph, is not the same."""
    yield from _different("rewrites", *(_rewrites(graph) for graph, _ in (a, b)))
    both = [_stages(graph, plan) for graph, plan in (a, b)]
    for name in dict.fromkeys([*both[0], *both[1]]):
        yield from _different(name, *(each.get(name, "is not there") for each in both))
    rests = [_residencies(plan) for _, plan in (a, b)]
    for name in dict.fromkeys([*rests[0], *rests[1]]):
        yield from _different(name, *(each.get(name, "stays on its devices") for each in rests))
    if both[0] == both[1]:  # else orders are of different things
        yield from _different("order", *(_orders(plan) for _, plan in (a, b)))


def _different(part: str, a: str, b: str) -> Iterator[Difference]:
    if a != b:
        yield Difference(part, a, b)


def _rewrites(graph: Graph) -> str:
    return ", ".join(applied.transform for applied in graph.history) or "none"


def _stages(graph: Graph, plan: Plan) -> dict[str, str]:
    """Return where and how every stage runs, in words."""
    return {binding.stage: ", ".join(_words(graph, plan, binding)) for binding in plan.bindings}


def _words(graph: Graph, plan: Plan, binding: Binding) -> Iterator[str]:
    mesh = plan.mesh_named[binding.mesh]
    choice = choice_of(binding, mesh, graph.env)
    degrees = [f"{name} {getattr(choice, name)}" for name in _DEGREES if getattr(choice, name) > 1]
    yield f"{mesh.where}{' ' if degrees else ''}{' x '.join(degrees)}"
    yield from [f"in {graph.firings(binding.stage)} parts"] if graph.firings(binding.stage) > 1 else []
    yield from [f"zero {choice.zero}"] if choice.zero else []
    yield from [f"{binding.micro_rows} rows at a time"] if binding.micro_rows not in (Dim("0"), Dim("1")) else []
    yield from [f"recompute {binding.recompute}"] if binding.recompute is not Recompute.NONE else []
    yield from [str(binding.pipeline)] if binding.pipeline else []
    yield from [f"{binding.servers} servers"] if binding.servers > 1 else []


def _residencies(plan: Plan) -> dict[str, str]:
    return {each.data: f"rests on {each.home}" for each in plan.residencies}


def _orders(plan: Plan) -> str:
    """Return the order of work with nothing but what is common: one line of stages and shifts per resource."""
    return "; ".join(_order([slot.stage for slot in slots], [slot.shift for slot in slots]) for _, slots in plan.order)


def _order(stages: Sequence[str], shifts: Sequence[int]) -> str:
    """Return stages in their order, several firings in a row once."""
    texts = [f"{stage}{f'+{shift}' if shift else ''}" for stage, shift in zip(stages, shifts, strict=True)]
    return " ".join(text for i, text in enumerate(texts) if not i or text != texts[i - 1])
