"""What has to be moved: nobody writes transfers into a plan, they follow from its layouts and residencies.

==========  ======================================================================================================
RESHARD     weights or gradients that a reader wants in another layout than their writer leaves them in. Where a PUSH
            or a PULL is at one end, moving them is that stage's own work; else an event is inserted between the two.
LOAD        data that rests elsewhere comes to its devices before the first stage that uses it.
STORE       it goes back after the last one; if no stage in between has changed it, giving up the copy is enough.
==========  ======================================================================================================

Rows of a step (rollouts, rewards, advantages) are not laid out: the data plane of the runtime carries them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from rpeg.graph.access import Access
from rpeg.graph.data import Data, DataKind, Per
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.plan.firings import num_events, optimizer_batches
from rpeg.plan.plan import Home, Layout, Plan, Residency, Transfer

__all__ = ["Cause", "Shipment", "hauls", "is_changed_between", "is_laid_out", "reshards", "shipments"]

_CARRIERS = (StageKind.PULL, StageKind.PUSH)


class Cause(StrEnum):
    """Why data moves."""

    RESHARD = "reshard"
    LOAD = "load"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class Shipment:
    """One kind of move that every step makes."""

    name: str
    """Stands for the stage in its events: ``reshard:actor.master>old``, ``load:critic.moments.0``."""
    cause: Cause
    data: str
    src: Layout
    dst: Layout
    """LOAD and STORE keep the layout; it is their ``home`` that is elsewhere."""
    writer: str
    """RESHARD: who made the data. STORE: the stage it comes after. LOAD: the stage it is for."""
    readers: tuple[str, ...] = ()
    firings: int = 1
    how: Transfer | None = None
    home: Home | None = None
    carrier: str | None = None
    """The PUSH or PULL whose work this is; None is an event of its own."""


def shipments(graph: Graph, plan: Plan) -> tuple[Shipment, ...]:
    """Return all moves of a step, in the order of data, then of residencies."""
    return (*reshards(graph, plan), *hauls(graph, plan))


def reshards(graph: Graph, plan: Plan) -> tuple[Shipment, ...]:
    """Return the moves between layouts; readers that want the same layout of the same writer share one."""
    found: list[Shipment] = []
    for data in graph.data:
        if is_laid_out(data):
            for writer in graph.writers(data.name):
                found += _of_writer(graph, plan, data, writer)
    return tuple(found)


def is_laid_out(data: Data) -> bool:
    """Whether ``data`` is weights or gradients of a model, rather than rows or a number."""
    return data.model is not None and data.per in (Per.RUN, Per.STEP)


def _of_writer(graph: Graph, plan: Plan, data: Data, writer: Access) -> list[Shipment]:
    src, groups = plan.binding_of[writer.stage].layout, list[list[Access]]()
    for reader in graph.readers(data.name):
        dst = plan.binding_of[reader.stage].layout
        if dst == src or not writer.shares_columns(reader) or dst.holds_like(src):
            continue
        joined = (g for g in groups if plan.binding_of[g[0].stage].layout.holds_like(dst))
        if data.kind is DataKind.STATE and (group := next(joined, None)):
            group.append(reader)
        else:
            groups.append([reader])
    return [_reshard(graph, plan, data, writer, src, group) for group in groups]


def _reshard(graph: Graph, plan: Plan, data: Data, writer: Access, src: Layout, group: list[Access]) -> Shipment:
    readers, made = tuple(reader.stage for reader in group), num_events(graph, writer.stage)
    # A PUSH into a staged copy leaves it where it was made; the PULL fetches it.
    ends = [graph.stage_of[name] for name in (*readers, writer.stage)]
    carriers = [stage.name for kind in _CARRIERS for stage in ends if stage.kind is kind]
    if data.kind is DataKind.STREAM:
        firings = num_events(graph, readers[0])
    else:
        firings = made if any(optimizer_batches(graph, reader, made) > 1 for reader in group) else 1
    return Shipment(
        name=f"{Cause.RESHARD}:{data.name}>{readers[0]}",
        cause=Cause.RESHARD,
        data=data.name,
        src=src,
        dst=plan.binding_of[readers[0]].layout,
        writer=writer.stage,
        readers=readers,
        firings=firings,
        how=next((t for t in plan.transfers if t.data == data.name and t.reader in readers), None),
        carrier=next(iter(carriers), None),
    )


def hauls(graph: Graph, plan: Plan) -> tuple[Shipment, ...]:
    """Return the moves between devices and where data rests."""
    return tuple(shipment for residency in plan.residencies for shipment in _hauls_of(graph, plan, residency))


def _hauls_of(graph: Graph, plan: Plan, residency: Residency) -> Iterator[Shipment]:
    if residency.home is Home.HBM:
        return
    for number, (first, last) in enumerate(residency.between):
        layout = plan.binding_of[first].layout
        for cause, stage in ((Cause.LOAD, first), (Cause.STORE, last)):
            if cause is Cause.LOAD or is_changed_between(graph, plan, residency.data, first, last):
                name = f"{cause}:{residency.data}.{number}"
                yield Shipment(name, cause, residency.data, layout, layout, stage, home=residency.home)


def is_changed_between(graph: Graph, plan: Plan, data: str, first: str, last: str) -> bool:
    """Whether a stage that stands from ``first`` to ``last`` in the order of their mesh writes ``data``."""
    _, slots = next(plan.slots_of(plan.mesh_of(first)))
    stages = [slot.stage for slot in slots]
    end = len(stages) - stages[::-1].index(last)
    writers = {access.stage for access in graph.writers(data)}
    return bool(writers & set(stages[stages.index(first) : end]))
