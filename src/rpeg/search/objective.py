"""What a plan is good for: a short step, few GPU-hours, or much learned per GPU-hour."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum

from rpeg.errors import HardwareError, PlanError
from rpeg.graph.graph import Graph
from rpeg.hardware.catalog import part_of
from rpeg.hardware.topology import System
from rpeg.perf.software import Software
from rpeg.perf.workload import Workload
from rpeg.search.find import Found, Goal, Outcome, find_plans

__all__ = ["Objective", "cost_s", "find_for", "learned_share"]

_FREE_STEPS, _LOSS_PER_STEP = 4, 0.021
"""What staleness costs in learning where the loss is corrected for it (decoupled PPO): nothing up to four steps, then
about 2.1 % of what a step gains for each further one. Source: AReaL, AIME24 against its bound, blog/AReaL_v0_3.md."""


class Objective(StrEnum):
    """What is made small."""

    STEP = "step"
    """Seconds of a step, on all devices."""
    GPU_HOURS = "gpu_hours"
    """Devices times seconds: fewer devices than there are may be better."""
    REWARD = "reward"
    """Devices times seconds for what is learned, which is less where samples are stale."""


def learned_share(staleness: int) -> float:
    """Return what a step teaches, relative to one with fresh samples.

    >>> learned_share(4), round(learned_share(6), 3)
    (1.0, 0.958)
    """
    return max(0.0, 1.0 - _LOSS_PER_STEP * max(0, staleness - _FREE_STEPS))


def cost_s(found: Found, devices: int, objective: Objective) -> float:
    """Return what an objective makes of a plan; less is better."""
    if objective is Objective.STEP:
        return found.step_s
    learned = learned_share(found.structure.staleness) if objective is Objective.REWARD else 1.0
    return found.step_s * devices / max(learned, 1e-9)


def find_for(
    objective: Objective, graph: Graph, workload: Workload, system: System, goal: Goal, software: Software
) -> tuple[Outcome, System]:
    """Return the plans that are best for an objective, and the part of the machine that they are for.

    For anything but the step, halves, quarters and so on of the machine are looked at as well.

    Raises:
        PlanError: when nothing fits on any part; what is wrong on all of the machine.
    """
    parts = [system] if objective is Objective.STEP else list(_parts(system))
    found: list[tuple[Outcome, System]] = []
    for part in parts:
        try:
            outcome = find_plans(graph, workload, part, goal, software)
        except PlanError:
            if part is system:
                raise
            continue
        order = sorted(outcome.plans, key=lambda each: cost_s(each, part.num_devices, objective))
        found.append((replace(outcome, plans=tuple(order)), part))
    return min(found, key=lambda each: cost_s(each[0].plans[0], each[1].num_devices, objective))


def _parts(system: System) -> Iterator[System]:
    """Yield a machine, its half, its quarter, as long as they are whole nodes or one."""
    yield system
    size = system.num_devices // 2
    while size >= 1:
        try:
            yield replace(part_of(system, size), name=f"{system.name.partition(':')[0]}:{size}")
        except HardwareError:
            return
        size //= 2
