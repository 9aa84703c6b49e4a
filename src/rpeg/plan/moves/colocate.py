"""Bring stages together on one mesh, or give them one of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from rpeg.errors import HardwareError
from rpeg.graph.stage import StageKind
from rpeg.hardware.region import Region
from rpeg.plan.mesh import num_ranks
from rpeg.plan.moves.base import Deployment, Move, is_on_host, unknown_stages, with_bindings
from rpeg.plan.moves.place import moved_to
from rpeg.plan.orders import rebound
from rpeg.plan.plan import Layout, Mesh, Plan
from rpeg.transforms.base import EffectClass, Reason

__all__ = ["Colocate", "Separate"]

_WITH_GENERATOR = (StageKind.GENERATE, StageKind.PULL, StageKind.EVALUATE)
_PARTS = 4


@dataclass(frozen=True, slots=True)
class Colocate(Move):
    """Run ``stages`` on ``mesh``, in one order with what is there: they share its devices in time."""

    name: ClassVar[str] = "colocate"
    effect: ClassVar[EffectClass] = EffectClass.EXACT

    stages: tuple[str, ...]
    mesh: str

    @classmethod
    def candidates(cls, deployment: Deployment) -> Iterator[Self]:
        """Yield for every pair of meshes of devices that all work of one goes to the other."""
        meshes = [name for name in deployment.plan.mesh_named if not is_on_host(deployment, name)]
        for source in meshes:
            stages = tuple(b.stage for b in deployment.plan.bindings if b.mesh == source)
            yield from (cls(stages, mesh) for mesh in meshes if mesh != source)

    def conditions(self, deployment: Deployment) -> Iterator[Reason]:
        """Stages of the graph, not all of them there already, and a mesh of the plan."""
        yield from unknown_stages(deployment, *self.stages)
        if self.mesh not in deployment.plan.mesh_named:
            yield Reason((self.mesh,), "is no mesh", f"meshes: {', '.join(deployment.plan.mesh_named)}")
        here = [stage for stage in self.stages if stage in deployment.plan.binding_of]
        if here and all(deployment.plan.mesh_of(stage) == self.mesh for stage in here):
            yield Reason(self.stages, f"are on {self.mesh} already", "name another mesh")

    def rewrite(self, deployment: Deployment) -> Plan:
        """Bind those that are elsewhere, and deal the work to the resources anew."""
        away = tuple(stage for stage in self.stages if deployment.plan.mesh_of(stage) != self.mesh)
        return moved_to(deployment, away, self.mesh)


@dataclass(frozen=True, slots=True)
class Separate(Move):
    """Give ``stages`` the mesh ``mesh`` on the region ``where``; what stays behind may shrink to the region ``rest``.

    Both meshes have as many data parallel ranks as their other axes leave room for. Where the regions overlap, the
    order of work stays common.
    """

    name: ClassVar[str] = "separate"
    effect: ClassVar[EffectClass] = EffectClass.EXACT

    stages: tuple[str, ...]
    mesh: str
    where: str
    rest: str = ""

    @classmethod
    def candidates(cls, deployment: Deployment) -> Iterator[Self]:
        """Yield one to three quarters of a mesh for the generator that shares it, and what goes with it."""
        for mesh in deployment.plan.meshes:
            kinds = {b.stage: deployment.graph.stage_of[b.stage].kind for b in deployment.plan.bindings}
            here = [b.stage for b in deployment.plan.bindings if b.mesh == mesh.name]
            going = tuple(stage for stage in here if kinds[stage] in _WITH_GENERATOR)
            if len(going) < len(here) and any(kinds[stage] is StageKind.GENERATE for stage in going):
                region = Region.parse(mesh.where)
                for part in range(1, _PARTS):
                    if (cut := region.cut(deployment.site.system, part, _PARTS)) is not None:
                        yield cls(going, "roll" if mesh.name != "roll" else "gen", cut[0].text, cut[1].text)

    def conditions(self, deployment: Deployment) -> Iterator[Reason]:
        """Stages of one mesh that leave others there, a new name, and regions that the machine has."""
        yield from unknown_stages(deployment, *self.stages)
        plan = deployment.plan
        if self.mesh in plan.mesh_named:
            yield Reason((self.mesh,), "is a mesh already", "choose another name, or colocate the stages there")
        meshes = sorted({plan.mesh_of(stage) for stage in self.stages if stage in plan.binding_of})
        if len(meshes) > 1:
            yield Reason(self.stages, f"are on {' and '.join(meshes)}", "name stages of one mesh")
        for text in (self.where, self.rest):
            if text:
                yield from _region_reasons(deployment, text)
        if self.rest and len(meshes) == 1 and {b.stage for b in plan.bindings if b.mesh == meshes[0]} <= {*self.stages}:
            yield Reason((meshes[0],), "has no other work, so nothing stays behind", "leave rest out")

    def rewrite(self, deployment: Deployment) -> Plan:
        """Make the mesh, shrink the old one, and deal the work to the resources anew."""
        plan, system = deployment.plan, deployment.site.system
        old = plan.mesh_named[plan.mesh_of(self.stages[0])]
        new = _sized(replace(old, name=self.mesh, where=self.where), deployment)
        left = _sized(replace(old, where=self.rest), deployment) if self.rest else old
        meshes = [left if mesh == old else mesh for mesh in plan.meshes]
        moved = [replace(plan.binding_of[stage], mesh=self.mesh) for stage in self.stages]
        moved = [replace(binding, layout=_on(binding.layout, new)) for binding in moved]
        return rebound(deployment.graph, plan, [*meshes, new], with_bindings(plan, *moved), system)


def _on(layout: Layout, mesh: Mesh) -> Layout:
    return replace(layout, mesh=mesh.name)


def _sized(mesh: Mesh, deployment: Deployment) -> Mesh:
    """Return the mesh with as many data parallel ranks as its region has room for; P2 says if there are none."""
    count = len(Region.parse(mesh.where).places(deployment.site.system))
    others = num_ranks(mesh) // mesh.sizes.get("dp", 1)
    axes = mesh.axes if "dp" in mesh.sizes else (("dp", 1), *mesh.axes)
    return replace(mesh, axes=tuple((name, max(1, count // others) if name == "dp" else size) for name, size in axes))


def _region_reasons(deployment: Deployment, text: str) -> Iterator[Reason]:
    try:
        faults = Region.parse(text).faults(deployment.site.system)
    except HardwareError as error:
        faults = list(error.faults)
    yield from (Reason((fault.where,), fault.what, fault.remedy) for fault in faults)
