"""What a move is: one change of a plan with its parameters, as a value that is checked, applied, written and read.

As with graphs, what a move needs to make sense at all is its own `Move.conditions`; whether the result is legal is for
the rules P1-P6 to say, memory included, and what they find is a reason as well.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from rpeg.errors import Fault, TransformError
from rpeg.graph.graph import Applied, Graph
from rpeg.hardware.region import Region
from rpeg.hardware.topology import HOST
from rpeg.plan.plan import Binding, Layout, Plan
from rpeg.plan.rules import validate_plan
from rpeg.plan.site import Site
from rpeg.transforms.base import Reason, Rewrite

__all__ = ["Deployment", "Move", "is_on_host", "layout_on", "unknown_stages", "with_bindings"]


@dataclass(frozen=True, slots=True)
class Deployment:
    """A graph under a plan on a machine: what a move looks at."""

    graph: Graph
    plan: Plan
    site: Site


class Move(Rewrite):
    """A rewrite of a plan."""

    __slots__ = ()

    @classmethod
    @abstractmethod
    def candidates(cls, deployment: Deployment) -> Iterator[Self]:
        """Yield the moves worth looking at; `check` says which of them fit."""

    @abstractmethod
    def conditions(self, deployment: Deployment) -> Iterator[Reason]:
        """Yield what stands in the way, apart from the rules that the result has to keep."""

    @abstractmethod
    def rewrite(self, deployment: Deployment) -> Plan:
        """Return the changed plan without checking anything; only where `conditions` yields no reason."""

    def check(self, deployment: Deployment) -> list[Reason]:
        """Return every reason why this does not fit; empty when it does."""
        return self._try(deployment)[0]

    def apply(self, deployment: Deployment) -> Plan:
        """Return the changed plan, this move being the last entry of its history.

        Raises:
            TransformError: with all the reasons of `check`.
        """
        reasons, result = self._try(deployment)
        if reasons:
            raise TransformError(f"{self} on {deployment.graph.name}", [reason.fault() for reason in reasons])
        assert result is not None
        entry = Applied(str(self), deployment.plan.digest(), result.digest())
        return replace(result, history=(*deployment.plan.history, entry))

    def _try(self, deployment: Deployment) -> tuple[list[Reason], Plan | None]:
        if unmet := list(self.conditions(deployment)):
            return unmet, None
        result = self.rewrite(deployment)
        return _broken_rules(deployment, result), result


def _broken_rules(deployment: Deployment, after: Plan) -> list[Reason]:
    """Return the rules that ``after`` breaks and the plan before does not."""
    faults = validate_plan(deployment.graph, after, deployment.site)
    old = validate_plan(deployment.graph, deployment.plan, deployment.site) if faults else []
    return [_reason(fault) for fault in faults if fault not in old]


def _reason(fault: Fault) -> Reason:
    rule, _, subject = fault.where.partition(" ")
    return Reason((subject,), fault.what, fault.remedy, rule)


def unknown_stages(deployment: Deployment, *stages: str) -> Iterator[Reason]:
    """Yield a reason for every name that is no stage of the graph, and one when there is none at all."""
    for stage in stages:
        if stage not in deployment.graph.stage_of:
            yield Reason((stage,), "is no stage", f"stages: {', '.join(deployment.graph.stage_of)}")
    if not stages:
        yield Reason(("stages",), "are none", "name at least one")


def with_bindings(plan: Plan, *bindings: Binding) -> tuple[Binding, ...]:
    """Return the bindings of ``plan``, those of the same stages replaced by ``bindings``."""
    new = {binding.stage: binding for binding in bindings}
    return tuple(new.get(binding.stage, binding) for binding in plan.bindings)


def is_on_host(deployment: Deployment, mesh: str) -> bool:
    """Whether a mesh consists of hosts, which run verifiers but no models."""
    return Region.parse(deployment.plan.mesh_named[mesh].where).steps[-1].level == HOST


def layout_on(deployment: Deployment, stage: str, mesh: str) -> Layout:
    """Return the layout that the weights of the model of ``stage`` have on ``mesh``, whole if there are none yet."""
    graph, plan = deployment.graph, deployment.plan
    model = graph.stage_of[stage].model
    there = (b.layout for b in plan.bindings if b.mesh == mesh and graph.stage_of[b.stage].model == model)
    found = next(there, None) if model else None
    return found or Layout(mesh, dtype=plan.binding_of[stage].layout.dtype)
