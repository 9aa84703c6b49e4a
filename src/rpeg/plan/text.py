"""The printed form of a plan: one line per mesh with the order of its work."""

from __future__ import annotations

from collections.abc import Sequence

from rpeg.plan.plan import Mesh, Plan, Slot

__all__ = ["plan_text"]


def plan_text(plan: Plan) -> str:
    """Return the plan as text; ``gen+1`` runs one step ahead of its neighbours, ``train.1`` is a second firing."""
    order = dict(plan.order)
    width = max((len(mesh.name) for mesh in plan.meshes), default=0)
    lines = [_line(mesh, order.get(mesh.name, ()), width) for mesh in plan.meshes]
    return "\n".join([f"plan for graph {plan.graph[:8]}", *lines])


def _line(mesh: Mesh, slots: Sequence[Slot], width: int) -> str:
    return f"  {mesh.name.ljust(width)}  {mesh.where}  {' '.join(map(_slot, slots))}".rstrip()


def _slot(slot: Slot) -> str:
    return f"{slot.stage}{f'.{slot.firing}' if slot.firing else ''}{f'+{slot.shift}' if slot.shift else ''}"
