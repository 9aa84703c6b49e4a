"""The printed form of a plan: a line per mesh with the order of its work, then what is not as usual."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rpeg.hardware.topology import System
from rpeg.plan.mesh import coordinates, meshes_of, num_ranks, places
from rpeg.plan.plan import Balance, Binding, Mesh, Plan, Recompute, Residency, Slot, Transfer

__all__ = ["plan_text", "ranks_text"]


def plan_text(plan: Plan) -> str:
    """Return the plan as text; ``gen+1`` runs one step ahead of its neighbours, ``train.1`` is a second firing.

    What meshes share has a line of its own; layouts, residencies and transfers are told where they are not the default.
    """
    order = dict(plan.order)
    shared = [name for name in order if len(meshes_of(name)) > 1]
    width = max((len(name) for name in (*plan.mesh_named, *shared)), default=0)
    lines = [_line(mesh, order.get(mesh.name, ()), width) for mesh in plan.meshes]
    lines += [f"  {name.ljust(width)}  shared  {_slots(order[name])}" for name in shared]
    lines += [f"  {text}" for text in _details(plan)]
    return "\n".join([f"plan for graph {plan.graph[:8]}", *lines])


def _line(mesh: Mesh, slots: Sequence[Slot], width: int) -> str:
    axes = f"  {' x '.join(f'{axis} {size}' for axis, size in mesh.axes)}" if num_ranks(mesh) > 1 else ""
    return f"  {mesh.name.ljust(width)}  {mesh.where}{axes}  {_slots(slots)}".rstrip()


def _slots(slots: Sequence[Slot]) -> str:
    return " ".join(map(_slot, slots))


def _slot(slot: Slot) -> str:
    return f"{slot.stage}{f'.{slot.firing}' if slot.firing else ''}{f'+{slot.shift}' if slot.shift else ''}"


def _details(plan: Plan) -> Iterator[str]:
    told: dict[str, list[str]] = {}
    for binding in plan.bindings:
        if text := ", ".join(_binding(binding)):
            told.setdefault(text, []).append(binding.stage)
    yield from (f"{', '.join(stages)}: {text}" for text, stages in told.items())
    yield from map(_residency, plan.residencies)
    yield from map(_transfer, plan.transfers)


def _binding(binding: Binding) -> Iterator[str]:
    layout = binding.layout
    yield from (f"{part} over {axis}" for part, axis in layout.shard)
    yield from [f"zero {layout.zero}"] if layout.zero else []
    yield from [layout.dtype] if layout.dtype != "float32" else []
    yield from [f"{binding.micro_rows} rows at a time"] if binding.micro_rows.text != "1" else []
    yield from [binding.pipeline] if binding.pipeline else []
    yield from [f"recompute {binding.recompute}"] if binding.recompute is not Recompute.NONE else []
    yield from ["packed"] if binding.pack else []
    yield from [f"balanced by {binding.balance}"] if binding.balance is not Balance.ROWS else []
    yield from [f"{binding.servers} servers"] if binding.servers > 1 else []


def _residency(residency: Residency) -> str:
    times = ", ".join(f"{first} to {last}" for first, last in residency.between)
    lead = f", loaded up to {residency.lead} firings ahead" if residency.lead else ""
    return f"{residency.data} rests on {residency.home}" + (f" but from {times}{lead}" if times else "")


def _transfer(transfer: Transfer) -> str:
    bucket = f" in pieces of {transfer.bucket_bytes} bytes" if transfer.bucket_bytes else ""
    dtype = f" as {transfer.dtype}" if transfer.dtype else ""
    return f"{transfer.data} goes to {transfer.reader} by {transfer.method}{bucket}{dtype}"


def ranks_text(plan: Plan, system: System) -> str:
    """Return where every rank sits: one line per rank with its coordinates and its place in the tree."""
    return "\n".join(line for mesh in plan.meshes for line in _ranks(mesh, system))


def _ranks(mesh: Mesh, system: System) -> Iterator[str]:
    for rank, place in enumerate(places(mesh, system)):
        where = coordinates(mesh, rank)
        axes = " ".join(f"{axis} {where[axis]}" for axis, _ in mesh.axes)
        yield f"{mesh.name} rank {rank}  {axes}  {system.place_name(place)}"
