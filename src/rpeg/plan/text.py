"""The printed form of a plan: one line per mesh with the order of its work."""

from __future__ import annotations

from rpeg.plan.plan import Plan, Slot

__all__ = ["plan_text"]


def plan_text(plan: Plan) -> str:
    """Return the plan as text; ``gen+1`` runs one step ahead of its neighbours, ``train.1`` is a second firing."""
    order = dict(plan.order)
    width = max(len(mesh.name) for mesh in plan.meshes)
    lines = [
        f"  {mesh.name.ljust(width)}  {mesh.where}  {' '.join(map(_slot, order[mesh.name]))}" for mesh in plan.meshes
    ]
    return "\n".join([f"plan for graph {plan.graph[:8]}", *lines])


def _slot(slot: Slot) -> str:
    return f"{slot.stage}{f'.{slot.firing}' if slot.firing else ''}{f'+{slot.shift}' if slot.shift else ''}"
