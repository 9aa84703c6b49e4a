"""Changes of one thing at a time, each computed anew: what it makes of the step, and whose leave it takes.

==================================  ===============================================  ===============================
change                              how it is computed                               leave
==================================  ===============================================  ===============================
samples in other parts              the same meshes and layouts on the streamed      free
                                    graph, its order made anew
a step of the grid more, or less,   searched again, the places of all calls fixed    free
for one of two neighbours
staleness one up, a shared trunk,   searched again from the graph after that one     learning: the user has to allow it
a pass less, weights in flight      rewrite; or the same layouts, if they are better
devices, memory                     the graph as it is, searched again               another machine
bandwidths, operations per second   the same plan, priced again                      another machine
==================================  ===============================================  ===============================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from rpeg.errors import InvalidInput, PlanError
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import age
from rpeg.hardware.region import Region
from rpeg.plan.plan import Plan
from rpeg.search.calls import calls_of
from rpeg.search.case import Case
from rpeg.search.origin import unqueued
from rpeg.search.reprice import Step, priced, transplanted
from rpeg.search.sentence import limit
from rpeg.search.space import Place, places_of
from rpeg.search.structures import structures
from rpeg.search.what_if import Change, changed
from rpeg.transforms.base import Transform
from rpeg.transforms.registry import TRANSFORMS

__all__ = ["Effect", "How", "Leave", "single_changes"]

_LEARNING = ("relax", "share_trunk", "use_recorded_logprob", "use_recorded_value", "in_flight")
"""Rewrites that may shorten a step; the others of their class make more work, or other samples."""
_MORE_DEVICES = (1.25, 1.5, 2.0)
"""The first of these that a machine can have is looked at."""
_FASTER = (Change("hbm", 2.0), Change("flops", 2.0), Change("nic", 2.0), Change("nvlink", 2.0), Change("host", 2.0))


class Leave(StrEnum):
    """Whose leave a change takes."""

    FREE = "free"
    """Nobody's: nothing is learned otherwise, and the machine is the same."""
    LEARNING = "learning"
    """It changes what is learned: the user has to allow it."""
    MACHINE = "machine"
    """It takes another machine."""


class How(StrEnum):
    """How the effect was computed."""

    PRICED = "same plan, priced again"
    MOVED = "same layouts, order made anew"
    SEARCHED = "searched again"


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change makes of a step."""

    change: str
    """In words: ``allowing staleness 1``."""
    option: str
    """How a user says it: ``--staleness-max 1``; empty where there is nothing to say."""
    leave: Leave
    how: How
    step_s: float
    limit: str
    """What limits the step then."""
    devices: int
    """Of the machine then."""


def single_changes(case: Case, graph: Graph, plan: Plan) -> tuple[Effect, ...]:
    """Return what single changes make of the step of a plan, the shortest first; what cannot be done is left out.

    Args:
        case: the question.
        graph: the structure that the plan is for.
        plan: what runs now.
    """
    whole = _in_one_part(case, graph)
    tried = (
        *_in_other_parts(case, graph, whole, plan),
        *_other_splits(case, whole, plan),
        *_rewritten(case, graph, whole, plan),
        *_other_machines(case, graph, whole, plan),
    )
    best: dict[str, Effect] = {}
    for effect in sorted(tried, key=lambda each: each.step_s):
        best.setdefault(effect.change, effect)
    return tuple(best.values())


def _searched(case: Case, graph: Graph, regions: Mapping[str, str] | None = None) -> Step | None:
    """Return the best step from a graph on, nothing more allowed; None where nothing fits."""
    goal = replace(case.goal, max_staleness=age(graph), allow=(), regions=regions or case.goal.regions, top=1)
    try:
        found = replace(case, graph=graph, goal=goal).search().plans[0]
    except PlanError:
        return None
    return priced(case, found.structure.graph, found.priced.plan)


def _moved(case: Case, plan: Plan, graph: Graph) -> Step | None:
    """Return the step of the same layouts under another graph; None where that is no plan."""
    if {binding.stage for binding in plan.bindings} != set(graph.stage_of):
        return None
    try:
        return priced(case, graph, transplanted(case, plan, graph).plan)
    except PlanError:
        return None


def _effect(case: Case, change: str, option: str, leave: Leave, how: How, step: Step | None) -> Iterator[Effect]:
    if step is not None:
        yield Effect(change, option, leave, how, step.seconds, limit(step), case.system.num_devices)


def _in_one_part(case: Case, graph: Graph) -> Graph:
    """Return a structure with its samples in one part, from which a search may stream them as it likes."""
    k, form = age(graph), {stage.name for stage in graph.stages}
    found = structures(case.graph, max(k, case.goal.max_staleness), case.goal.allow)
    alike = [each for each in found if each.staleness == k and {*each.graph.stage_of} == form]
    return min(alike, key=lambda each: each.firings).graph if alike else graph


# Free.


def _in_other_parts(case: Case, graph: Graph, whole: Graph, plan: Plan) -> Iterator[Effect]:
    """Yield the plan with samples in one part, in two, and so on, as the graph allows."""
    for other in structures(whole, age(whole)):
        if {*other.graph.stage_of} == {*graph.stage_of} and other.graph.digest() != graph.digest():
            words = f"streaming in {other.firings} parts" if other.firings > 1 else "samples in one part"
            yield from _effect(case, words, "", Leave.FREE, How.MOVED, _moved(case, plan, other.graph))


def _other_splits(case: Case, graph: Graph, plan: Plan) -> Iterator[Effect]:
    """Yield what becomes of two groups side by side when one of them gets a step of the grid from the other."""
    homes = {call.name: plan.mesh_named[plan.mesh_of(call.name)].where for call in calls_of(graph)}
    devices = {where: frozenset(Region.parse(where).places(case.system)) for where in dict.fromkeys(homes.values())}
    for a, b in _neighbours(devices):
        for place, rest in _next_splits(devices[a], devices[b], places_of(case.system)):
            moved = {devices[a]: place.where, devices[b]: rest.where}
            regions = {name: moved.get(devices[where], where) for name, where in homes.items()}
            text = f"{len(place.devices)} : {len(rest.devices)} devices for {a} : {b}"
            step = _searched(case, graph, regions)
            yield from _effect(case, text, "", Leave.FREE, How.SEARCHED, step)


def _neighbours(devices: Mapping[str, frozenset[int]]) -> Iterator[tuple[str, str]]:
    """Yield pairs of places without a device in common."""
    names = list(devices)
    for i, a in enumerate(names):
        yield from ((a, b) for b in names[i + 1 :] if not devices[a] & devices[b])


def _next_splits(a: frozenset[int], b: frozenset[int], places: tuple[Place, ...]) -> Iterator[tuple[Place, Place]]:
    """Yield the split with a little more for ``a``, and the one with a little less."""
    both = a | b
    by_devices = {place.devices: place for place in places}
    splits = [place for place in places if place.devices < both and both - place.devices in by_devices]
    more = min((p for p in splits if p.devices > a), key=lambda p: len(p.devices), default=None)
    less = max((p for p in splits if p.devices < a), key=lambda p: len(p.devices), default=None)
    yield from ((p, by_devices[both - p.devices]) for p in (more, less) if p is not None)


# What changes the learning.


def _rewritten(case: Case, graph: Graph, whole: Graph, plan: Plan) -> Iterator[Effect]:
    for name in _LEARNING:
        kind = TRANSFORMS[name]
        for after in _matches(unqueued(case.graph, graph), kind):
            yield from _effect(case, *_words(case, name, after), How.MOVED, _moved(case, plan, after))
        if name != "in_flight":  # which changes when weights come, not what a layout takes
            for after in _matches(unqueued(case.graph, whole), kind):
                yield from _effect(case, *_words(case, name, after), How.SEARCHED, _searched(case, after))


def _matches(graph: Graph, kind: type[Transform]) -> Iterator[Graph]:
    """Yield what each match of a transformation makes of a graph that allows it."""
    relaxed = graph.contract.max_staleness + (kind.name == "relax")
    allowed = graph.contract.allowed | {kind.name}
    wider = replace(graph, contract=replace(graph.contract, max_staleness=relaxed, allowed=allowed))
    for rewrite in kind.candidates(wider):
        if not rewrite.check(wider):
            after = rewrite.apply(wider)
            yield structures(after, age(after))[0].graph


def _words(case: Case, name: str, after: Graph) -> tuple[str, str, Leave]:
    k = age(after)
    if name == "relax":
        leave = Leave.LEARNING if k > case.goal.max_staleness else Leave.FREE
        return f"allowing staleness {k}", f"--staleness-max {k}", leave
    return f"allowing {name}", f"--allow {name}", Leave.FREE if name in case.goal.allow else Leave.LEARNING


# Other machines.


def _other_machines(case: Case, graph: Graph, whole: Graph, plan: Plan) -> Iterator[Effect]:
    yield from _more_devices(case, whole)
    memory = Change("memory", 1.5)
    larger = changed(case, [memory])
    yield from _effect(
        larger, _machine(memory), f"--what-if {memory}", Leave.MACHINE, How.SEARCHED, _searched(larger, whole)
    )
    for change in _FASTER:
        if (faster := _changed(case, change)) is not None:
            step = priced(faster, graph, plan)
            yield from _effect(faster, _machine(change), f"--what-if {change}", Leave.MACHINE, How.PRICED, step)


def _more_devices(case: Case, graph: Graph) -> Iterator[Effect]:
    for factor in _MORE_DEVICES:
        larger = _changed(case, Change("gpus", factor))
        if larger is not None:
            count = larger.system.num_devices
            step = _searched(larger, graph)
            yield from _effect(larger, f"{count} devices", f"--what-if gpus={count}", Leave.MACHINE, How.SEARCHED, step)
            return


def _changed(case: Case, change: Change) -> Case | None:
    """Return the question after a change; None where the machine has nothing of the kind."""
    try:
        return changed(case, [change])
    except InvalidInput:
        return None


def _machine(change: Change) -> str:
    return f"{change.name} {change.amount:g}x"
