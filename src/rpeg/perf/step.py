"""A whole step as people ask for it: how long, limited by what, which stage takes how much, how full devices are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from rpeg.errors import Fault, PlanError
from rpeg.graph.access import Bound
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import generators, staleness
from rpeg.hardware.topology import System
from rpeg.perf.estimate import Estimate
from rpeg.perf.kernels import kernels_for
from rpeg.perf.refusal import memory_faults
from rpeg.perf.software import Software
from rpeg.perf.spread import Spread, spread_of
from rpeg.perf.workload import Workload
from rpeg.plan.events import EventGraph, cycle_ratio
from rpeg.plan.firings import event_id, num_events
from rpeg.plan.lower import lower
from rpeg.plan.memory import residents
from rpeg.plan.mesh import meshes_of, resources
from rpeg.plan.plan import Plan
from rpeg.plan.rules import check_plan
from rpeg.plan.site import Site
from rpeg.plan.timeline import Resident, Schedule, levels, peak, schedule
from rpeg.shapes.parameters import tensors

__all__ = ["GroupLine", "Prediction", "StageLine", "StalenessLine", "predict", "site_of"]


@dataclass(frozen=True, slots=True)
class StageLine:
    """What one stage, or one transfer, takes of a step."""

    name: str
    kind: str
    where: tuple[str, ...]
    """The resources it occupies."""
    firings: int
    occupancy_s: float
    """Of all its firings in a step."""
    tail_s: float
    """From when its devices are free until its last row is out."""
    share: float
    """Of the step that its devices are busy with it."""
    is_limiting: bool
    """Whether it lies on the cycle that sets the step time."""


@dataclass(frozen=True, slots=True)
class GroupLine:
    """Devices that share the same work."""

    name: str
    devices: int
    """0 for hosts."""
    busy_share: float
    mfu: float
    """Model operations over what the devices could do in a step: recomputation does not count."""
    capacity_bytes: int
    peak_bytes: int
    peak_during: str
    residents: tuple[tuple[str, int], ...]
    """At the peak, by size."""
    phases: tuple[tuple[str, int], ...]
    """Per stage, the most that lies there while it runs."""


@dataclass(frozen=True, slots=True)
class StalenessLine:
    """How many versions samples are behind the weights they train."""

    generator: str
    mean: float
    max: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a plan is expected to do."""

    graph: str
    plan: str
    system: str
    devices: int
    step_s: float
    cycle: tuple[str, ...]
    """Events on the cycle that limits the step."""
    cycle_steps: int
    """Steps that its last event is behind its first."""
    rows: int
    """Samples of a step."""
    tokens: float
    """Of prompts and responses of a step."""
    stages: tuple[StageLine, ...]
    groups: tuple[GroupLine, ...]
    staleness: tuple[StalenessLine, ...]
    spread: Spread
    mfu: float
    profiles: tuple[str, ...]
    extrapolates: str

    @property
    def tokens_per_s(self) -> float:
        """Tokens of prompts and responses per second."""
        return self.tokens / self.step_s

    @property
    def tokens_per_s_per_device(self) -> float:
        """The same per device."""
        return self.tokens_per_s / max(1, self.devices)

    @property
    def gpu_hours_per_1000_steps(self) -> float:
        """Devices times hours of a thousand steps."""
        return self.devices * self.step_s * 1000.0 / 3600.0


def site_of(graph: Graph, workload: Workload, system: System) -> Site:
    """Return what a plan is held against besides its graph: the machine, and the weights of every model."""
    return Site(system, {model.name: tensors(workload.shape(model.name)) for model in graph.models})


def predict(
    graph: Graph, plan: Plan, workload: Workload, system: System, software: Software | None = None
) -> Prediction:
    """Return what ``plan`` is expected to do.

    Args:
        graph: what the plan is for.
        plan: where and how.
        workload: models and lengths.
        system: the machine.
        software: whose constants count; None is the generic one.

    Raises:
        PlanError: when the plan breaks a rule, or does not fit into memory: when, what lies there, how much is missing.
        InvalidInput: when a role has no model.
    """
    if plan.graph != graph.digest():
        text = f"is for graph {plan.graph[:8]}, this one is {graph.digest()[:8]}"
        raise PlanError(f"plan of {graph.name}", [Fault("plan", text, "give the plan of this recipe, or bind it anew")])
    check_plan(graph, plan, site_of(graph, workload, system))
    estimate = Estimate(graph, plan, workload, system, software)
    played = schedule(graph, plan, estimate)
    if faults := list(memory_faults(estimate, played)):
        raise PlanError(f"plan of {graph.name}", faults)
    events = lower(graph, plan, estimate)
    period, cycle = cycle_ratio(events)
    step_s = float(period)
    on_cycle = {arc.src for arc in cycle}
    groups = tuple(_groups(estimate, events, played, step_s))
    return Prediction(
        graph.digest(),
        plan.digest(),
        system.name,
        sum(group.devices for group in groups),
        step_s,
        tuple(arc.src for arc in cycle),
        sum(arc.tokens for arc in cycle),
        graph.batch_rows,
        graph.batch_rows * workload.samples.mean_tokens,
        tuple(_stages(estimate, events, step_s, on_cycle)),
        groups,
        tuple(_staleness(graph, played)),
        spread_of(graph, plan, estimate, events),
        _mfu(groups),
        tuple(_profiles(estimate)),
        estimate.extrapolates,
    )


def _stages(estimate: Estimate, events: EventGraph, step_s: float, on_cycle: set[str]) -> list[StageLine]:
    found: list[StageLine] = []
    for name in dict.fromkeys(event.stage for event in events.events):
        mine = [event for event in events.events if event.stage == name]
        stage = estimate.graph.stage_of.get(name)
        tail_s = estimate.seconds(name, estimate.plan.binding_of[name]).tail_s if stage else 0.0
        busy_s = sum(event.occupancy_s for event in mine)
        kind = stage.kind.value if stage else name.partition(":")[0]
        is_limiting = any(event.id in on_cycle for event in mine)
        share = busy_s / step_s if step_s else 0.0
        found.append(StageLine(name, kind, mine[0].resources, len(mine), busy_s, tail_s, share, is_limiting))
    return found


def _groups(estimate: Estimate, events: EventGraph, played: Schedule, step_s: float) -> list[GroupLine]:
    system, plan = estimate.system, estimate.plan
    lying = residents(estimate.graph, plan, estimate, played)
    found: list[GroupLine] = []
    for name, places in resources(plan.meshes, system).items():
        is_host = system.is_host(places[0])
        busy_s = sum(event.occupancy_s for event in events.events if name in event.resources)
        highest = peak(lying[name])
        peak_flops = dict(system.device.peak_flops).get("bfloat16") or max(dict(system.device.peak_flops).values())
        able = peak_flops * len(places) * step_s
        found.append(
            GroupLine(
                name,
                0 if is_host else len(places),
                busy_s / step_s if step_s else 0.0,
                0.0 if is_host or not able else _flops(estimate, name, len(places)) / able,
                system.memory_bytes_of(places[0]),
                highest.num_bytes,
                ", ".join(_running(played, name, highest.at_s)),
                tuple((each.name, each.num_bytes) for each in highest.residents),
                tuple(_phases(played, name, lying[name]).items()),
            )
        )
    return found


def _flops(estimate: Estimate, resource: str, devices: int) -> float:
    """Return the model operations of a step on a resource: of a stage on more devices its part."""
    total = 0.0
    for binding in estimate.plan.bindings:
        if binding.mesh in meshes_of(resource):
            mesh = estimate.plan.mesh_named[binding.mesh]
            each = float(estimate.prices(binding.stage, binding).device_flops[0])
            share = devices / prod(size for _, size in mesh.axes)
            total += each * num_events(estimate.graph, binding.stage) * min(1.0, share)
    return total


def _mfu(groups: tuple[GroupLine, ...]) -> float:
    devices = sum(group.devices for group in groups)
    return sum(group.mfu * group.devices for group in groups) / devices if devices else 0.0


def _running(played: Schedule, resource: str, at_s: float) -> list[str]:
    found = (
        firing.event
        for firing in played.firings
        if firing.start_s <= at_s < firing.end_s and resource in played.events.event_of[firing.event].resources
    )
    return list(dict.fromkeys(found))


def _phases(played: Schedule, resource: str, lying: list[Resident]) -> Mapping[str, int]:
    """Return per stage the most that lies on a device of a resource while it runs, in a step of full stride."""
    steps = levels(lying)
    found: dict[str, int] = {}
    for firing in played.firings:
        event = played.events.event_of[firing.event]
        if resource in event.resources:
            before = [size for at_s, size in steps if at_s <= firing.start_s][-1:]
            during = [size for at_s, size in steps if firing.start_s < at_s < firing.end_s]
            found[event.stage] = max([found.get(event.stage, 0), *before, *during])
    return found


def _staleness(graph: Graph, played: Schedule) -> list[StalenessLine]:
    """Return the age of samples: fixed where versions are exact, else counted in the schedule."""
    found: list[StalenessLine] = []
    for stage in generators(graph):
        oldest = staleness(graph, stage.name)
        reads = [read for read in graph.reads(stage.name) if graph.is_state(read.data)]
        newest = next((read for read in reads if read.bound is Bound.AT_LEAST), None)
        if oldest < 0:
            continue
        mean = float(oldest) if newest is None else _mean_age(graph, played, stage.name, newest.data, oldest)
        found.append(StalenessLine(stage.name, mean, oldest))
    return found


def _mean_age(graph: Graph, played: Schedule, stage: str, weights: str, oldest: int) -> float:
    """Return the mean age at which a generator that takes the newest weights begins and ends its steps."""
    maker = graph.writers(weights)[0].stage
    installs = event_id(maker, num_events(graph, maker) - 1)
    installed = sorted(played.end_of(installs, step) for step in played.steps_of(installs))
    ages: list[float] = []
    for step in played.steps_of(event_id(stage, 0))[len(installed) // 2 :]:
        for at_s in (played.start_of(event_id(stage, 0), step), played.end_of(event_id(stage, 0), step)):
            ages.append(min(float(oldest), max(0.0, step - sum(end_s <= at_s for end_s in installed))))
    return sum(ages) / len(ages) if ages else float(oldest)


def _profiles(estimate: Estimate) -> list[str]:
    software, system = estimate.software, estimate.system
    kinds = dict.fromkeys(level.link.kind for level in system.levels if level.link is not None and level.count > 1)
    device = kernels_for(system.device).profile
    return [software.name, device, f"links {', '.join(kinds)}" if kinds else "no links"]
