"""Keep data away from the device while nobody uses it, and bring it back in time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from rpeg.graph.data import DataKind
from rpeg.plan.memory import copies, residency_on
from rpeg.plan.moves.base import Deployment, Move, is_on_host, unknown_stages
from rpeg.plan.plan import Home, Plan, Residency
from rpeg.plan.shipments import is_laid_out
from rpeg.transforms.base import EffectClass, Reason

__all__ = ["Offload", "Prefetch"]

_LEADS = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Offload(Move):
    """Let ``data`` rest at ``home``, and on the device only ``between`` stages: ``[train,update]``, or several pairs.

    Transfers are inserted on the link to the host, where they overlap with other work as far as the order allows.
    """

    name: ClassVar[str] = "offload"
    effect: ClassVar[EffectClass] = EffectClass.EXACT

    data: str
    between: tuple[str, ...]
    home: Home = Home.HOST

    @classmethod
    def candidates(cls, deployment: Deployment) -> Iterator[Self]:
        """Yield for every copy of weights that it is on its device from its first user to its last."""
        graph, plan = deployment.graph, deployment.plan
        for copy in copies(graph, plan):
            mesh, users = copy.layout.mesh, {access.stage for access in graph.accesses if access.data == copy.data}
            _, slots = next(plan.slots_of(mesh))
            used = [slot.stage for slot in slots if slot.stage in users]
            if used and is_laid_out(graph.data_of[copy.data]) and not is_on_host(deployment, mesh):
                yield cls(copy.data, (used[0], used[-1]))

    def conditions(self, deployment: Deployment) -> Iterator[Reason]:
        """Weights that are on the device all the time so far, and a part of the order in which nobody needs them."""
        data = deployment.graph.data_of.get(self.data)
        if data is None or not is_laid_out(data) or data.kind is DataKind.STREAM:
            known = [each.name for each in deployment.graph.data if is_laid_out(each)]
            yield Reason((self.data,), "is no weights that last", f"there are {', '.join(known)}")
        if self.home is Home.HBM:
            yield Reason((self.data,), "is on the device all the time already", "name host or disk")
        yield from unknown_stages(deployment, *self.between)
        if len(self.between) % 2:
            yield Reason(
                self.between, f"are {len(self.between)} stages", "name pairs: the first and the last to use it"
            )
        if not self.between or any(stage not in deployment.plan.binding_of for stage in self.between):
            return
        mesh = deployment.plan.mesh_of(self.between[0])
        if residency_on(deployment.plan, self.data, mesh) is not None:
            yield Reason((self.data,), f"is away from {mesh} for a time already", "change that first")
        _, slots = next(deployment.plan.slots_of(mesh))
        if len(self.between) == 2 and (slots[0].stage, slots[-1].stage) == self.between:
            yield Reason(
                (self.data,), f"is needed from the first firing of {mesh} to the last", "there is no time away"
            )

    def rewrite(self, deployment: Deployment) -> Plan:
        """Add the residency."""
        pairs = tuple(zip(self.between[::2], self.between[1::2], strict=True))
        plan = deployment.plan
        return replace(plan, residencies=(*plan.residencies, Residency(self.data, self.home, pairs)))


@dataclass(frozen=True, slots=True)
class Prefetch(Move):
    """Begin to load ``data`` up to ``lead`` firings before it has to be there, so that the link works meanwhile.

    It takes its room on the device that much earlier.
    """

    name: ClassVar[str] = "prefetch"
    effect: ClassVar[EffectClass] = EffectClass.EXACT

    data: str
    lead: int

    @classmethod
    def candidates(cls, deployment: Deployment) -> Iterator[Self]:
        """Yield a few leads for everything that is brought to a device."""
        for name in dict.fromkeys(each.data for each in deployment.plan.residencies if each.between):
            yield from (cls(name, lead) for lead in _LEADS)

    def conditions(self, deployment: Deployment) -> Iterator[Reason]:
        """Data with a residency, and another lead than it has."""
        found = [each for each in deployment.plan.residencies if each.data == self.data and each.between]
        if not found:
            names = dict.fromkeys(each.data for each in deployment.plan.residencies if each.between)
            yield Reason((self.data,), "is never loaded", f"loaded are {', '.join(names) or 'none'}")
        elif all(each.lead == self.lead for each in found):
            yield Reason((self.data,), f"is loaded {self.lead} firings ahead already", "choose another lead")

    def rewrite(self, deployment: Deployment) -> Plan:
        """Change the lead."""
        plan = deployment.plan
        changed = (replace(r, lead=self.lead) if r.data == self.data else r for r in plan.residencies)
        return replace(plan, residencies=tuple(changed))
