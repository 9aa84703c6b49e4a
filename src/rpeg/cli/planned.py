"""What commands take for a plan: its file, the recipe that it is for, the machine, and what is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rpeg.errors import Fault, PlanError

if TYPE_CHECKING:
    from rpeg.cli.workload import Task
    from rpeg.graph.graph import Graph
    from rpeg.plan.plan import Plan
    from rpeg.search.bundle import Bundle
    from rpeg.search.case import Case
    from rpeg.search.find import Goal

__all__ = ["Allow", "Cluster", "MaxStaleness", "Planned", "SoftwareName", "read_planned"]

Cluster = Annotated[
    str | None, typer.Option(help="Machine: a name of the catalogue, a part such as alps:256, or a .toml file.")
]
MaxStaleness = Annotated[
    int | None, typer.Option("--staleness-max", min=0, help="How many steps old samples may be; default: as planned.")
]
Allow = Annotated[
    str | None,
    typer.Option(help="Transformations that change the learning and may be used: share_trunk,… Default: as planned."),
]
SoftwareName = Annotated[
    str | None, typer.Option(help="Profile of the software: generic, verl, nemo-rl; of a run on this machine rpeg.")
]

_HERE = "local"


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with all it takes to price it."""

    case: Case
    graph: Graph
    """The structure that the plan is for."""
    plan: Plan


def read_planned(
    path: Path,
    task: Task,
    cluster: str | None,
    staleness_max: int | None,
    allow: str | None,
    software: str | None,
    wishes: Sequence[str] = (),
) -> Planned:
    """Return a plan that was read and holds on the machine.

    Args:
        path: of what ``rpeg plan --out`` has written, or of a plan alone.
        task: the recipe.
        cluster: the machine; None is the one in the file.
        staleness_max: what was allowed; None is what the file says.
        allow: names with commas between; None alike.
        software: name of a profile; None is RPEG's own for a run on this machine, else the generic one.
        wishes: what searches have to keep: ``train.tp=4``.

    Raises:
        PlanError: when the file is none, or its plan is for something else or breaks a rule.
        HardwareError: when there is no such machine.
    """
    from rpeg.hardware.catalog import load_system
    from rpeg.search.bundle import read_bundle
    from rpeg.search.case import Case
    from rpeg.search.origin import graph_of
    from rpeg.search.reprice import checked
    from rpeg.search.wishes import read_wishes

    bundle = read_bundle(path)
    goal = replace(_goal(bundle, task.graph, staleness_max, allow), workers=task.workers)
    graph = graph_of(bundle, task.graph, goal, str(path))
    system = load_system(_machine(task, cluster, bundle, path))
    if wishes:
        pins, regions = read_wishes(wishes, [graph, task.graph], system)
        goal = replace(goal, pins=pins, regions=regions)
    case = Case(task.graph, task.workload, system, goal, task.software(software, system))
    return Planned(case, graph, checked(case, graph, bundle.plan))


def _goal(bundle: Bundle, base: Graph, staleness_max: int | None, allow: str | None) -> Goal:
    """Return what is allowed: as the options say, else as the graph of the plan shows."""
    from rpeg.graph.lineage import age
    from rpeg.search.find import Goal
    from rpeg.search.origin import allowed_by

    planned = Goal(age(base)) if bundle.graph is None else allowed_by(base, bundle.graph)
    names = planned.allow if allow is None else tuple(name for name in allow.split(",") if name)
    return Goal(planned.max_staleness if staleness_max is None else staleness_max, names)


def _machine(task: Task, cluster: str | None, bundle: Bundle, path: Path) -> str:
    if cluster or bundle.cluster:
        return cluster or bundle.cluster
    if task.has_devices:
        return _HERE
    remedy = "name it, such as --cluster alps:256 or --cluster dgx-h100:64"
    raise PlanError(
        str(path), [Fault("--cluster", "is missing: neither the plan nor the recipe names a machine", remedy)]
    )
