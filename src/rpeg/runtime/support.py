"""What this runtime can execute of what a graph can say; the rest is refused before anything starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from rpeg.environments.catalog import has_tool
from rpeg.errors import Fault, PlanError
from rpeg.graph.access import Refresh
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.plan.events import EventGraph
from rpeg.plan.plan import Binding, Plan
from rpeg.recipe.schema import Recipe

__all__ = ["EXECUTED", "check_plan_runs", "loop_faults", "unsupported"]

EXECUTED = frozenset(
    {
        StageKind.GENERATE,
        StageKind.VERIFY,
        StageKind.ADVANTAGE,
        StageKind.FORWARD,
        StageKind.TRAIN,
        StageKind.UPDATE,
        StageKind.PUSH,
        StageKind.PULL,
        StageKind.EVALUATE,
    }
)
"""Kinds of stages that some role of a worker carries out."""

_ROUND = "round"
_LOOPS: Mapping[str, tuple[str, Callable[[Recipe], bool]]] = {
    _ROUND: ("algorithm.dynamic_sampling", lambda recipe: recipe.algorithm.dynamic_sampling is not None),
    "turn": ("data.task with a tool", lambda recipe: has_tool(recipe.data.task)),
}
"""Loops that a generator carries out, by their index: the key that asks for it, and whether a recipe does."""
_ONCE = EXECUTED - {StageKind.FORWARD}


def unsupported(graph: Graph) -> Iterator[Fault]:
    """Yield everything in ``graph`` that would not be done as it says."""
    for stage in graph.stages:
        if stage.kind not in EXECUTED:
            kinds = ", ".join(sorted(EXECUTED))
            yield Fault(stage.name, f"no worker carries out {stage.kind} stages yet", f"these run: {kinds}")
        if stage.body is not None and stage.body.index == _ROUND and graph.firings(stage.name) != 1:
            text = f"fires {graph.firings(stage.name)} times a step, each a loop over {_ROUND}"
            yield Fault(stage.name, text, "rounds look for groups for the whole step: 1 firing")
        if stage.kind is StageKind.TRAIN and stage.passes > 1:
            yield Fault(stage.name, f"sweeps {stage.passes} times over the data of a step", "only 1 sweep runs yet")
    for kind, count in Counter(stage.kind for stage in graph.stages).items():
        if kind in _ONCE and count > 1:
            names = ", ".join(stage.name for stage in graph.stages if stage.kind is kind)
            yield Fault(names, f"{count} {kind} stages in one step", "only 1 of a kind runs yet")
    for access in graph.accesses:
        if access.refresh is not Refresh.STEP:
            yield Fault(
                access.stage, f"switches weights within a {access.refresh}", "only switches between steps run yet"
            )
        if access.delay and graph.stage_of[access.stage].kind is StageKind.PULL:
            text = f"installs weights {access.delay} steps late, and a checkpoint cannot hold weights in transit yet"
            yield Fault(access.stage, text, "let the generator read older ones instead")
    for data in graph.data:
        if data.max_carry:
            yield Fault(data.name, f"carries samples over up to {data.max_carry} steps", "only whole samples run yet")


def loop_faults(graph: Graph, recipe: Recipe) -> Iterator[Fault]:
    """Yield what the loops inside the graph's stages and the recipe say differently."""
    there = {stage.body.index: stage.name for stage in graph.stages if stage.body is not None}
    for index, stage in there.items():
        if index not in _LOOPS:
            yield Fault(stage, f"its body, a loop over {index}, cannot run yet", f"these run: {', '.join(_LOOPS)}")
    for index, (key, is_asked_for) in _LOOPS.items():
        if is_asked_for(recipe) and index not in there:
            yield Fault(key, f"asks for a loop over {index}, and the graph has none", "take the graph of this recipe")
        if index in there and not is_asked_for(recipe):
            yield Fault(there[index], f"loops over {index}, and the recipe has no {key}", "add it to the recipe")


def check_plan_runs(plan: Plan, events: EventGraph) -> None:
    """Refuse a plan that asks for more than placement and order.

    Raises:
        PlanError: with every binding, residency and transfer that would not be done as it says.
    """
    stages = {binding.stage for binding in plan.bindings}
    faults = [
        Fault(binding.stage, "asks for more than a mesh", "only placement and order run yet")
        for binding in plan.bindings
        if binding != Binding(binding.stage, binding.mesh, binding.layout)
    ]
    faults += [Fault(each.data, f"lives at {each.home}", "data cannot be moved away yet") for each in plan.residencies]
    faults += [
        Fault(event.id, "moves data between meshes", "keep the stages that share it on one mesh")
        for event in events.events
        if event.stage not in stages
    ]
    if faults:
        raise PlanError("plan", faults)
