"""Change the order of work on a resource."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from rpeg.graph.stage import StageKind
from rpeg.plan.moves.base import Deployment, Move
from rpeg.plan.orders import dealt, guests, sequence
from rpeg.plan.plan import Plan
from rpeg.transforms.base import EffectClass, Reason

__all__ = ["Reorder"]


@dataclass(frozen=True, slots=True)
class Reorder(Move):
    """Move the firing at place ``i`` of the order of ``resource`` to place ``j``, counted from 0.

    A firing that occupies several resources moves past the same others on all of them. Besides, or with ``i = j``
    instead, all firings of its stage run ``shift`` steps further ahead: software pipelining.
    """

    name: ClassVar[str] = "reorder"
    effect: ClassVar[EffectClass] = EffectClass.EXACT

    resource: str
    i: int
    j: int
    shift: int = 0

    @classmethod
    def candidates(cls, deployment: Deployment) -> Iterator[Self]:
        """Yield the exchange of any two neighbours, and generators that run a step earlier or later."""
        for resource, slots in deployment.plan.order:
            yield from (cls(resource, i, i + 1) for i in range(len(slots) - 1))
            for i, slot in enumerate(slots):
                if deployment.graph.stage_of[slot.stage].kind is StageKind.GENERATE and slot.firing == 0:
                    yield from (cls(resource, i, i, shift) for shift in (1, -1) if slot.shift + shift >= 0)

    def conditions(self, deployment: Deployment) -> Iterator[Reason]:
        """A resource of the plan, places in its order, and something that changes."""
        orders = dict(deployment.plan.order)
        if self.resource not in orders:
            yield Reason((self.resource,), "has no order", f"orders are of {', '.join(orders)}")
            return
        places = range(len(orders[self.resource]))
        for place in dict.fromkeys((self.i, self.j)):
            if place not in places:
                yield Reason((self.resource,), f"has no place {place}", f"places are 0 to {len(places) - 1}")
        if self.i == self.j and not self.shift:
            yield Reason((self.resource,), f"place {self.i} stays where it is", "name another place, or a shift")

    def rewrite(self, deployment: Deployment) -> Plan:
        """Move it in the sequence of all firings, and deal that to the resources anew."""
        plan = deployment.plan
        slots = dict(plan.order)[self.resource]
        moved, target = slots[self.i], slots[self.j]
        everything = sequence(deployment.graph, plan)
        if moved != target:
            everything.remove(moved)
            everything.insert(everything.index(target) + (self.j > self.i), moved)
        shifted = [replace(s, shift=s.shift + self.shift) if s.stage == moved.stage else s for s in everything]
        order = dealt(shifted, plan.meshes, plan.bindings, guests(plan), deployment.site.system)
        return replace(plan, order=order)
