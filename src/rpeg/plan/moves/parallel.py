"""Lay stages out over other degrees of parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, product
from typing import ClassVar, Self

from rpeg.plan.mesh import num_ranks
from rpeg.plan.moves.base import Deployment, Move, unknown_stages, with_bindings
from rpeg.plan.orders import rebound
from rpeg.plan.plan import Mesh, Plan
from rpeg.plan.rules_layout import divisors
from rpeg.shapes.tensor import LAYERS, extents
from rpeg.transforms.base import EffectClass, Reason

__all__ = ["Parallel"]

_BY_TENSOR = ("heads", "kv_heads", "ffn", "vocabulary")
"""What tensor parallelism splits, of a model that has them."""
_ZERO = (0, 1, 3)


@dataclass(frozen=True, slots=True)
class Parallel(Move):
    """Lay ``stages`` of one mesh out over ``axes``, their weights split as ``shard`` says.

    ``axes=[pp:2,dp:8,tp:4]`` are sizes, slowest first; ``shard=[heads:tp,layers:pp]`` are parts of the weights with the
    axis they are split over. Where other stages of the mesh stay as they are, these get a mesh of their own on the same
    devices. Sums are taken in another order, so results differ by rounding.
    """

    name: ClassVar[str] = "parallel"
    effect: ClassVar[EffectClass] = EffectClass.NUMERIC

    stages: tuple[str, ...]
    axes: tuple[str, ...]
    shard: tuple[str, ...] = ()
    zero: int = 0

    @classmethod
    def candidates(cls, deployment: Deployment) -> Iterator[Self]:
        """Yield the degrees that multiply up to the devices, for all stages of a model on a mesh together."""
        graph, plan, system = deployment.graph, deployment.plan, deployment.site.system
        groups: dict[tuple[str, str], list[str]] = {}
        for binding in plan.bindings:
            if model := graph.stage_of[binding.stage].model:
                groups.setdefault((model, binding.mesh), []).append(binding.stage)
        for (model, mesh), stages in groups.items():
            known, size = extents(deployment.site.tensors.get(model, ())), num_ranks(plan.mesh_named[mesh])
            for tp, pp, zero in product(divisors(system.levels[-1].count), divisors(known.get(LAYERS, 1)), _ZERO):
                if size % (tp * pp) == 0 and known:
                    axes = (f"pp:{pp}", f"dp:{size // (tp * pp)}", f"tp:{tp}")
                    split = [f"{part}:tp" for part in _BY_TENSOR if tp > 1 and part in known]
                    split += [f"{LAYERS}:pp"] if pp > 1 else []
                    yield cls(tuple(stages), axes, tuple(split), zero)

    def conditions(self, deployment: Deployment) -> Iterator[Reason]:
        """Stages of one mesh, and parameters that can be read; whether they divide is for the rules to say."""
        yield from unknown_stages(deployment, *self.stages)
        meshes = sorted({deployment.plan.mesh_of(s) for s in self.stages if s in deployment.plan.binding_of})
        if len(meshes) > 1:
            yield Reason(self.stages, f"are on {' and '.join(meshes)}", "name stages of one mesh")
        for text in self.axes:
            if not text.partition(":")[2].isdecimal():
                yield Reason((text,), "is no axis", "write tp:4")
        for text in self.shard:
            if not all(text.partition(":")):
                yield Reason((text,), "is no split", "write heads:tp")

    def rewrite(self, deployment: Deployment) -> Plan:
        """Change the mesh, or make one beside it, and the layouts."""
        plan = deployment.plan
        old = plan.mesh_named[plan.mesh_of(self.stages[0])]
        axes = tuple((name, int(size)) for name, _, size in (text.partition(":") for text in self.axes))
        is_alone = {b.stage for b in plan.bindings if b.mesh == old.name} <= {*self.stages}
        mesh = replace(old, axes=axes, name=old.name if is_alone or axes == old.axes else _free_name(plan, old))
        meshes = [mesh if each.name == mesh.name else each for each in plan.meshes]
        shard = tuple((part, axis) for part, _, axis in (text.partition(":") for text in self.shard))
        moved = [
            replace(b, mesh=mesh.name, layout=replace(b.layout, mesh=mesh.name, shard=shard, zero=self.zero))
            for b in (plan.binding_of[stage] for stage in self.stages)
        ]
        meshes += [] if mesh.name in plan.mesh_named else [mesh]
        return rebound(deployment.graph, plan, meshes, with_bindings(plan, *moved), deployment.site.system)


def _free_name(plan: Plan, mesh: Mesh) -> str:
    names = (f"{mesh.name}_{number}" for number in count(2))
    return next(name for name in names if name not in plan.mesh_named)
