"""Why a plan does not fit into memory: when, what lies there, how much is missing, and the least change that helps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rpeg.errors import Fault
from rpeg.graph.data import DataKind
from rpeg.graph.stage import StageKind
from rpeg.perf.activations import Kept
from rpeg.perf.estimate import Estimate
from rpeg.perf.layouts import table_of
from rpeg.perf.regions import choice_of
from rpeg.perf.shortfall import smallest_remedy
from rpeg.perf.stage_batches import batches_of
from rpeg.perf.training_memory import Training, training_memory
from rpeg.plan.memory import residents
from rpeg.plan.mesh import resources
from rpeg.plan.timeline import Peak, Schedule, peak
from rpeg.units import bytes_text

__all__ = ["memory_faults"]

_SHOWN = 6
_SENT = " (sent)"


def memory_faults(estimate: Estimate, played: Schedule) -> Iterator[Fault]:
    """Yield a fault for every resource whose devices have less memory than what lies there at some moment."""
    plan, system = estimate.plan, estimate.system
    where = resources(plan.meshes, system)
    for resource, found in residents(estimate.graph, plan, estimate, played).items():
        highest = peak(found)
        capacity = min(system.memory_bytes_of(place) for place in where[resource])
        if highest.num_bytes > capacity:
            yield _fault(estimate, played, resource, highest, capacity)


def _fault(estimate: Estimate, played: Schedule, resource: str, highest: Peak, capacity: int) -> Fault:
    running = _running(played, resource, highest.at_s)
    missing = highest.num_bytes - capacity
    shown = ", ".join(f"{each.name} {bytes_text(each.num_bytes)}" for each in highest.residents[:_SHOWN])
    during = f" during {', '.join(running)}" if running else ""
    text = (
        f"needs {bytes_text(highest.num_bytes)} of {bytes_text(capacity)} on every device at {highest.at_s:.1f} s"
        f"{during}, {bytes_text(missing)} too much: {shown}"
    )
    return Fault(f"memory of {resource}", text, _remedy(estimate, running, highest, missing))


def _running(played: Schedule, resource: str, at_s: float) -> list[str]:
    found = (
        played.events.event_of[firing.event].stage
        for firing in played.firings
        if firing.start_s <= at_s < firing.end_s and resource in played.events.event_of[firing.event].resources
    )
    return list(dict.fromkeys(found))


def _remedy(estimate: Estimate, running: list[str], highest: Peak, missing: int) -> str:
    """Return the least change: of the training that is under way, else what can be put away while nobody uses it."""
    graph = estimate.graph
    for stage in _training(estimate, running):
        beside = _alike(estimate, stage)
        job = _job(estimate, stage)
        # What lies there of models that are laid out alike shrinks with the same change.
        wanted = float(training_memory(job, estimate.software.memory).total) - missing / len(beside)
        found = smallest_remedy(job, wanted, estimate.software.memory)
        if found is not None:
            return f"{', '.join(beside)}: {' and '.join(found.changes)}"
    sent = [each for each in highest.residents if each.name.endswith(_SENT)]
    if sum(each.num_bytes for each in sent) > missing:
        names = ", ".join(dict.fromkeys(each.name.removesuffix(_SENT) for each in sent))
        return f"send {names} in buckets (a transfer with the method bucketed)"
    used = {access.data for name in running for access in graph.accesses if access.stage == name}
    kept = {data.name for data in graph.data if data.model is not None and data.kind is not DataKind.STREAM}
    idle = [each for each in highest.residents if each.name in kept - used]
    freed, names = 0, list[str]()
    for each in idle:
        freed, names = freed + each.num_bytes, [*names, each.name]
        if freed >= missing:
            return f"let {', '.join(names)} rest on the host meanwhile"
    return "split the models over more devices (tp, pp or ZeRO 3), or separate stages"


def _training(estimate: Estimate, stages: list[str]) -> list[str]:
    known = estimate.graph.stage_of
    return [name for name in stages if name in known and known[name].kind is StageKind.TRAIN]


def _alike(estimate: Estimate, stage: str) -> list[str]:
    """Return the trainings on the mesh of one, itself among them."""
    mesh = estimate.plan.mesh_of(stage)
    everything = [each.name for each in estimate.graph.stages]
    return [name for name in _training(estimate, everything) if estimate.plan.mesh_of(name) == mesh]


def _job(estimate: Estimate, stage: str) -> Training:
    """Return a TRAIN as the memory model sees it."""
    binding, demand = estimate.plan.binding_of[stage], estimate.tables.demand(stage)
    choice = choice_of(binding, estimate.plan.mesh_named[binding.mesh], estimate.graph.env)
    assert demand.shape is not None, demand
    table = table_of([choice])
    batches = batches_of(
        demand.workload.samples, demand.rows, table, is_packed=choice.is_packed, balance=choice.balance
    )
    degrees = replace(
        table.degrees, **{name: float(getattr(choice, name)) for name in ("tp", "pp", "dp", "cp", "ep", "zero")}
    )
    return Training(
        demand.shape,
        degrees,
        float(batches.rows[0] * batches.length_tokens[0]),
        float(batches.length_tokens[0]),
        float(batches.count[0]),
        Kept.of(choice.recompute),
        choice.pipeline,
        has_head=demand.has_logits,
    )
