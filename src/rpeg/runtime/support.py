"""What this runtime can execute of what a graph can say; the rest is refused before anything starts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from rpeg.environments.catalog import has_tool
from rpeg.errors import Fault, PlanError
from rpeg.graph.access import Refresh
from rpeg.graph.contract import Enforce
from rpeg.graph.data import Per
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import generators
from rpeg.graph.stage import StageKind
from rpeg.plan.events import EventGraph
from rpeg.plan.plan import Plan
from rpeg.plan.shipments import hauls
from rpeg.recipe.schema import Recipe
from rpeg.runtime.carry import carry_of
from rpeg.runtime.flow import flows
from rpeg.runtime.hauls import residency_faults
from rpeg.runtime.holders import holder_of
from rpeg.runtime.support_layout import Outline, binding_faults

__all__ = ["EXECUTED", "check_plan_runs", "engine_faults", "loop_faults", "unsupported"]

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


def unsupported(graph: Graph) -> Iterator[Fault]:
    """Yield everything in ``graph`` that would not be done as it says."""
    for stage in graph.stages:
        if stage.kind not in EXECUTED:
            kinds = ", ".join(sorted(EXECUTED))
            yield Fault(stage.name, f"no worker carries out {stage.kind} stages yet", f"these run: {kinds}")
        if stage.body is not None and stage.body.index == _ROUND and graph.firings(stage.name) != 1:
            text = f"fires {graph.firings(stage.name)} times a step, each a loop over {_ROUND}"
            yield Fault(stage.name, text, "rounds look for groups for the whole step: 1 firing")
    yield from _repeated(graph)
    for access in graph.accesses:
        if access.refresh is Refresh.REQUEST or (access.refresh is Refresh.TOKEN and not flows(graph, access.stage)):
            remedy = "that runs per token, for one generator that samples neither in turns nor in rounds"
            yield Fault(access.stage, f"switches weights within a {access.refresh}", remedy)
        if access.delay and graph.stage_of[access.stage].kind is StageKind.PULL:
            text = f"installs weights {access.delay} steps late, and a checkpoint cannot hold weights in transit yet"
            yield Fault(access.stage, text, "let the generator read older ones instead")
    for stage in generators(graph):
        if carry_of(graph, stage.name) and (flows(graph, stage.name) or len(generators(graph)) > 1):
            remedy = "that runs with one generator of one firing, which takes new weights between steps"
            yield Fault(stage.name, "carries samples over", remedy)
    yield from _unkept(graph)


def _unkept(graph: Graph) -> Iterator[Fault]:
    """Yield a contract whose way to keep samples young is none for this graph."""
    enforce, carries = graph.contract.enforce, any(carry_of(graph, each.name) for each in generators(graph))
    if carries and enforce is Enforce.ADMIT:
        text = "is admit, which says nothing of samples that are carried over"
        yield Fault("contract.enforce", text, "wait, count or drop")
    if not carries and enforce is not Enforce.ADMIT:
        text = f"is {enforce}, and no samples are carried over: each step trains on all that began for it"
        yield Fault("contract.enforce", text, "admit, or let the generator carry samples over")


def _repeated(graph: Graph) -> Iterator[Fault]:
    """Yield stages that would do the same to the same model twice in a step; passes over rows may be any number."""
    alike: dict[tuple[StageKind, str | None, bool], list[str]] = defaultdict(list)
    for stage in graph.stages:
        is_per_group = any(graph.data_of[write.data].per is Per.GROUP for write in graph.writes(stage.name))
        if stage.kind is not StageKind.FORWARD:
            alike[stage.kind, stage.model, is_per_group].append(stage.name)
    for (kind, model, _), names in alike.items():
        if len(names) > 1:
            of_model = f" of {model}" if model is not None else ""
            text = f"{len(names)} {kind} stages{of_model} in one step"
            yield Fault(", ".join(names), text, "only 1 of a kind runs yet")


def _apart(graph: Graph, plan: Plan) -> Iterator[Fault]:
    """Yield models whose stages are on several meshes, though all of them work on the same weights in memory."""
    learning = (StageKind.FORWARD, StageKind.TRAIN, StageKind.UPDATE, StageKind.PUSH)
    trained = {stage.model for stage in graph.stages if stage.kind is StageKind.TRAIN}
    together: dict[str | None, list[str]] = {
        model: [stage.name for stage in graph.stages if stage.model == model and stage.kind in learning]
        for model in sorted(filter(None, trained))
    }
    for stage in graph.stages:  # an average of weights is beside them, and so is what reads it
        if stage.kind is StageKind.UPDATE and stage.model is not None and stage.model not in trained:
            reads = {read.data for read in graph.reads(stage.name)}
            (source,) = {model for model in together if model and f"{model}.master" in reads}
            together[source] += [each.name for each in graph.stages if each.model == stage.model]
    for model, stages in together.items():
        meshes = {plan.mesh_of(stage) for stage in stages}
        if len(meshes) > 1:
            text = f"{', '.join(stages)} are on {len(meshes)} meshes: {', '.join(sorted(meshes))}"
            yield Fault(str(model), text, "put the stages of a trained model on one mesh")


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


def engine_faults(graph: Graph, recipe: Recipe) -> Iterator[Fault]:
    """Yield what the graph asks of a sampler that only our own one can do."""
    for stage in generators(graph) if recipe.sampling.engine != "torch" else ():
        asks = {
            "hands groups on as they are complete, or takes new weights meanwhile": flows(graph, stage.name),
            "carries samples over": carry_of(graph, stage.name) is not None,
            "records values": "value" in stage.heads,
        }
        for text in [text for text, is_asked in asks.items() if is_asked]:
            yield Fault(stage.name, f"{text}, which {recipe.sampling.engine} cannot", "set sampling.engine=torch")


def check_plan_runs(recipe: Recipe, graph: Graph, plan: Plan, events: EventGraph, outline: Outline) -> None:
    """Refuse a plan that asks for more than the workers can do with models like those that ``outline`` makes.

    Raises:
        PlanError: with every binding, residency and transfer that would not be done as it says.
    """
    stages = {binding.stage for binding in plan.bindings}
    faults = list(binding_faults(recipe, graph, plan, outline))
    faults += residency_faults(graph, plan)
    if recipe.sampling.engine != "torch":
        holders = {each.data: holder_of(graph, each.data) for each in plan.residencies}
        sampled = [data for data, holder in holders.items() if holder is not None and holder.role == "generator"]
        keeps = f"is moved away, and {recipe.sampling.engine} keeps its weights where they are"
        faults += [Fault(data, keeps, "let it stay, or set sampling.engine=torch") for data in sampled]
    moves = {shipment.name for shipment in hauls(graph, plan)}
    faults += [
        Fault(event.id, "moves data between meshes", "keep the stages that share it on one mesh")
        for event in events.events
        if event.stage not in stages | moves
    ]
    faults += _apart(graph, plan)
    if faults:
        raise PlanError("plan", faults)
