"""Bind a stage to another mesh."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from rpeg.graph.stage import StageKind
from rpeg.plan.moves.base import Deployment, Move, is_on_host, layout_on, unknown_stages, with_bindings
from rpeg.plan.orders import rebound
from rpeg.plan.plan import Plan
from rpeg.transforms.base import EffectClass, Reason

__all__ = ["Place", "moved_to"]

_TIED = (StageKind.TRAIN, StageKind.UPDATE, StageKind.PUSH, StageKind.PULL)
"""Moving one of these alone leaves its weights or gradients behind: `Colocate` moves them together."""


@dataclass(frozen=True, slots=True)
class Place(Move):
    """Run ``stage`` on ``mesh``, where it stands in the order after all that it waits for.

    Its weights get the layout that its model has there already; if it has none, they are whole on every rank.
    """

    name: ClassVar[str] = "place"
    effect: ClassVar[EffectClass] = EffectClass.EXACT

    stage: str
    mesh: str

    @classmethod
    def candidates(cls, deployment: Deployment) -> Iterator[Self]:
        """Yield every other mesh for every stage that leaves nothing behind; models do not run on hosts."""
        for binding in deployment.plan.bindings:
            stage = deployment.graph.stage_of[binding.stage]
            for mesh in deployment.plan.mesh_named if stage.kind not in _TIED else ():
                if mesh != binding.mesh and not (stage.model and is_on_host(deployment, mesh)):
                    yield cls(binding.stage, mesh)

    def conditions(self, deployment: Deployment) -> Iterator[Reason]:
        """A stage of the graph, and a mesh of the plan that it is not on yet."""
        yield from unknown_stages(deployment, self.stage)
        if self.mesh not in deployment.plan.mesh_named:
            yield Reason((self.mesh,), "is no mesh", f"meshes: {', '.join(deployment.plan.mesh_named)}")
        elif self.stage in deployment.plan.binding_of and deployment.plan.mesh_of(self.stage) == self.mesh:
            yield Reason((self.stage,), f"is on {self.mesh} already", "name another mesh")

    def rewrite(self, deployment: Deployment) -> Plan:
        """Bind it there, and deal the work to the resources anew."""
        return moved_to(deployment, (self.stage,), self.mesh)


def moved_to(deployment: Deployment, stages: tuple[str, ...], mesh: str) -> Plan:
    """Return the plan with ``stages`` bound to a mesh of the plan."""
    plan = deployment.plan
    moved = [replace(plan.binding_of[s], mesh=mesh, layout=layout_on(deployment, s, mesh)) for s in stages]
    bindings = with_bindings(plan, *moved)
    return rebound(deployment.graph, plan, plan.meshes, bindings, deployment.site.system)
