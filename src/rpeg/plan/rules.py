"""Is this plan legal for this graph? P1 bindings, P2 meshes, P3 layouts, P4 memory, P5 orders, P6 waiting, P7 workers.

All problems are reported at once. What a rule needs to know of the machine is in the `Site`; without one, a plan is
held against its graph only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

from rpeg.errors import Fault, HardwareError, PlanError
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.hardware.region import Region
from rpeg.plan.mesh import num_ranks
from rpeg.plan.plan import Mesh, Plan
from rpeg.plan.rules_layout import p3_layouts
from rpeg.plan.rules_memory import p4_memory, p4_residencies
from rpeg.plan.rules_order import p5_alive, p5_orders, p6_collectives
from rpeg.plan.rules_workers import p7_workers
from rpeg.plan.shipments import reshards
from rpeg.plan.site import Site

__all__ = ["PLAN_RULES", "check_plan", "p1_bindings", "p1_pulls", "p1_transfers", "p2_meshes", "validate_plan"]

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def p1_bindings(graph: Graph, plan: Plan, site: Site | None) -> Iterator[Fault]:
    """Every stage is bound exactly once, to a mesh that exists and with a layout on it; the plan is for this graph."""
    if plan.graph != graph.digest():
        text = f"is for graph {plan.graph[:8]}, this one is {graph.digest()[:8]}"
        yield Fault("P1 plan", text, "bind this graph anew")
    bound = Counter(binding.stage for binding in plan.bindings)
    for stage in graph.stages:
        if bound[stage.name] != 1:
            yield Fault(f"P1 {stage.name}", f"is bound {bound[stage.name]} times", "bind each stage once")
    meshes = {mesh.name for mesh in plan.meshes}
    for binding in plan.bindings:
        if binding.stage not in graph.stage_of:
            yield Fault(f"P1 {binding.stage}", "is bound but is no stage of the graph", "drop the binding")
        if binding.mesh not in meshes:
            yield Fault(f"P1 {binding.stage}", f"is bound to the unknown mesh {binding.mesh}", "declare the mesh")
        if binding.layout.mesh != binding.mesh:
            text = f"is bound to {binding.mesh} with a layout on {binding.layout.mesh}"
            yield Fault(f"P1 {binding.stage}", text, "lay it out on its own mesh")


def p2_meshes(graph: Graph, plan: Plan, site: Site | None) -> Iterator[Fault]:
    """Names are unique, axes multiply up to the devices of the region, and data parallel ranks divide the batch."""
    for name, count in Counter(mesh.name for mesh in plan.meshes).items():
        if count > 1:
            yield Fault(f"P2 {name}", f"is declared {count} times", "rename all but one")
        if not _NAME.fullmatch(name):
            yield Fault(f"P2 {name}", "is no name of a mesh", "begin with a letter; a-z, 0-9 and _ may follow")
    for mesh in plan.meshes:
        if any(size < 1 for _, size in mesh.axes) or len(mesh.sizes) < len(mesh.axes):
            yield Fault(f"P2 {mesh.name}", f"has axes {_axes(mesh)}", "every axis is named once and has a slot")
            continue
        yield from _region(mesh, site)
        ranks = mesh.sizes.get("dp", 1)
        if graph.batch_rows % ranks:
            text = f"{ranks} data parallel ranks do not divide {graph.batch_rows} rows"
            divisors = [n for n in range(1, min(graph.batch_rows, 2 * ranks) + 1) if graph.batch_rows % n == 0]
            yield Fault(f"P2 {mesh.name}", text, f"choose a divisor: {', '.join(map(str, divisors))}")


def _axes(mesh: Mesh) -> str:
    return " ".join(f"{name} {size}" for name, size in mesh.axes)


def _region(mesh: Mesh, site: Site | None) -> Iterator[Fault]:
    where = f"P2 {mesh.name}"
    try:
        region = Region.parse(mesh.where)
        count = len(region.places(site.system)) if site else num_ranks(mesh)
    except HardwareError as error:
        yield from (Fault(f"{where} {fault.where}", fault.what, fault.remedy) for fault in error.faults)
        return
    if count != num_ranks(mesh):
        text = f"its axes {_axes(mesh)} make {num_ranks(mesh)} ranks, {mesh.where} has {count} devices"
        yield Fault(where, text, f"let the sizes multiply up to {count}")


def p1_transfers(graph: Graph, plan: Plan, site: Site | None) -> Iterator[Fault]:
    """What the plan says about a transfer is about one that happens."""
    found = {(shipment.data, reader) for shipment in reshards(graph, plan) for reader in shipment.readers}
    for transfer in plan.transfers:
        where = f"P1 transfer of {transfer.data} to {transfer.reader}"
        if (transfer.data, transfer.reader) not in found:
            happens = ", ".join(f"{data} to {reader}" for data, reader in sorted(found)) or "none"
            yield Fault(where, "does not happen: the layouts do not ask for it", f"those that do: {happens}")
        if transfer.bucket_bytes is not None and transfer.bucket_bytes < 1:
            yield Fault(where, f"has buckets of {transfer.bucket_bytes} bytes", "give them room")


def p1_pulls(graph: Graph, plan: Plan, site: Site | None) -> Iterator[Fault]:
    """A PULL installs weights where it runs, so whoever samples from them is bound there too."""
    for stage in graph.stages:
        for written in graph.writes(stage.name) if stage.kind is StageKind.PULL else ():
            here = plan.mesh_of(stage.name)
            away = [r.stage for r in graph.readers(written.data) if plan.mesh_of(r.stage) != here]
            if away:
                text = f"installs {written.data} on {here}, but {', '.join(away)} reads it on {plan.mesh_of(away[0])}"
                yield Fault(f"P1 {stage.name}", text, "bind both to one mesh")


_Rule = Callable[[Graph, Plan, Site | None], Iterator[Fault]]

PLAN_RULES: tuple[tuple[_Rule, ...], ...] = (
    (p1_bindings, p2_meshes, p3_layouts, p5_orders),
    (p1_pulls, p1_transfers, p4_residencies, p6_collectives, p7_workers),
    (p5_alive,),
    (p4_memory,),
)
"""In the order of what they rely on: while a rule is broken, those of later groups cannot say anything."""


def validate_plan(graph: Graph, plan: Plan, site: Site | None = None) -> list[Fault]:
    """Return every violation, in the order of the rules."""
    for group in PLAN_RULES:
        if faults := [fault for rule in group for fault in rule(graph, plan, site)]:
            return faults
    return []


def check_plan(graph: Graph, plan: Plan, site: Site | None = None) -> Plan:
    """Return ``plan`` when it is legal.

    Raises:
        PlanError: with all violations.
    """
    if faults := validate_plan(graph, plan, site):
        raise PlanError(f"plan of {graph.name}", faults)
    return plan
