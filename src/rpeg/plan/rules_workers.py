"""P7, workers: what those of a run cannot do is said before it starts, and never searched for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import prod

from rpeg.errors import Fault
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Stage, StageKind
from rpeg.plan.mesh import num_ranks
from rpeg.plan.plan import Binding, Mesh, Pipeline, Plan, Recompute
from rpeg.plan.rules_cuts import cut_faults
from rpeg.plan.site import Site
from rpeg.plan.workers import ROLLING, SAMPLING, SPLITS, Role, Workers, role_of
from rpeg.shapes.splits import ROW_AXES, divided_axes, misplaced_parts

__all__ = ["learners", "p7_workers", "plan_faults", "worker_faults"]

_ROUND = "round"
_LEARNING = (StageKind.FORWARD, StageKind.TRAIN, StageKind.UPDATE, StageKind.PUSH)
_ON_RANKS = (*_LEARNING, *ROLLING)
"""Kinds of stages that several ranks do together, where they have a model."""


def p7_workers(graph: Graph, plan: Plan, site: Site | None) -> Iterator[Fault]:
    """Workers can do what the plan says; nothing is said of a plan for other software."""
    if site is None or site.workers is None:
        return
    faults = [
        Fault(f"P7 {fault.where}", fault.what, fault.remedy)
        for binding in plan.bindings
        for fault in worker_faults(graph, binding, plan.mesh_named[binding.mesh], site.workers)
    ]
    faults += [Fault(f"P7 {fault.where}", fault.what, fault.remedy) for fault in plan_faults(graph, plan)]
    yield from dict.fromkeys(faults)


def worker_faults(graph: Graph, binding: Binding, mesh: Mesh, workers: Workers) -> Iterator[Fault]:
    """Yield what of a binding would not be done as it says."""
    stage = graph.stage_of[binding.stage]
    yield from _asked(stage, binding, workers)
    if num_ranks(mesh) == 1:
        return
    if not workers.has_ranks:
        text = f"has {num_ranks(mesh)} ranks, and run.home inline is one process"
        yield Fault(mesh.name, text, "set run.home=processes, or ray")
    yield from _on_ranks(graph, stage, mesh)
    if stage.kind in (StageKind.GENERATE, StageKind.FORWARD, StageKind.TRAIN) and stage.model is not None:
        yield from _split(stage, binding, mesh, workers)


def _asked(stage: Stage, binding: Binding, workers: Workers) -> Iterator[Fault]:
    """Yield what a binding asks for that no worker does."""
    asks = f"asks for the engine {binding.engine}"
    if stage.kind not in SAMPLING and binding.engine != "torch":
        yield Fault(stage.name, asks, "all but samplers compute with torch")
    if stage.kind in SAMPLING and binding.engine != workers.sampling_engine:
        remedy = "plan this recipe with the same overrides, or set sampling.engine alike"
        yield Fault(stage.name, f"{asks}, and sampling.engine is {workers.sampling_engine}", remedy)
    if binding.recompute is not Recompute.NONE:
        for what, remedy in _recomputed(stage, binding):
            yield Fault(binding.stage, f"asks to recompute {binding.recompute}, and {what}", remedy)
    if binding.pack:
        yield Fault(binding.stage, "asks for packed rows", "rows are padded yet: plan with pack false")
    if binding.servers > 1:
        yield Fault(binding.stage, f"asks for {binding.servers} servers", "the replicas of a mesh are one server yet")


def _recomputed(stage: Stage, binding: Binding) -> Iterator[tuple[str, str]]:
    """Yield why activations cannot be made again as a binding says, and what to do."""
    if binding.recompute is Recompute.SELECTIVE:
        yield "the attention of workers keeps no scores that could be made again", "recompute none, or full"
    if stage.kind is not StageKind.TRAIN:
        yield f"a {stage.kind} keeps no activations", "recompute none"
    if binding.pipeline is Pipeline.ZERO_BUBBLE:
        yield f"{binding.pipeline} keeps what it makes gradients of weights from", "choose 1f1b, or recompute none"


def _on_ranks(graph: Graph, stage: Stage, mesh: Mesh) -> Iterator[Fault]:
    """Yield what several ranks cannot do together, however a model lies on them."""
    count = num_ranks(mesh)
    if stage.kind not in _ON_RANKS or stage.model is None:
        text = f"is on the {count} ranks of {mesh.name}, and a {stage.kind} stage without a model runs on one"
        yield Fault(stage.name, text, "bind it to the mesh of the host")
    if stage.kind is not StageKind.GENERATE:
        return
    if stage.body is not None and stage.body.index == _ROUND:
        text = f"looks for groups in rounds on {count} ranks, and a round is over when there are enough of all"
        yield Fault(stage.name, text, "sample on a mesh of 1 rank")
    carries = any(graph.data_of[write.data].max_carry for write in graph.writes(stage.name))
    prompts, ranks = graph.batch_rows // graph.group_size, prod(mesh.sizes.get(axis, 1) for axis in ROW_AXES)
    if carries and prompts % ranks:  # what has to be complete when follows from how many groups of a step a rank has
        text = f"carries samples of {prompts} prompts over on {ranks} ranks with different rows"
        yield Fault(stage.name, text, f"choose ranks that divide {prompts}, or set algorithm.prompts to a multiple")


def _split(stage: Stage, binding: Binding, mesh: Mesh, workers: Workers) -> Iterator[Fault]:
    """Yield what keeps a model from lying on the ranks of a mesh as the layout of a binding says."""
    role, layout = role_of(stage), binding.layout
    has_zero = layout.zero > 0 and mesh.sizes.get("dp", 1) > 1
    splits, over = SPLITS[role], divided_axes(layout.shard, mesh.sizes)
    if not (over or has_zero):
        return
    beyond = [f"{axis} {mesh.sizes[axis]}" for axis in over if axis not in splits.axes]
    beyond += [f"dp (zero {layout.zero})"] if has_zero and layout.zero not in splits.zero else []
    how = "samples from weights split" if role is Role.SAMPLER else "is split"
    if beyond:
        yield Fault(stage.name, f"{how} over {', '.join(beyond)} of {mesh.name}", splits.remedy)
        return
    known = over if workers.axes is None else workers.axes.get(stage.model or "", frozenset[str]())
    if unknown := [f"{axis} {mesh.sizes[axis]}" for axis in over if axis not in known]:
        remedy = f"models like it can be split over {', '.join(sorted(known) or ['dp alone'])}"
        yield Fault(stage.name, f"{how} over {', '.join(unknown)} of {mesh.name}", remedy)
    for what, remedy in misplaced_parts(layout.shard, mesh.sizes):
        yield Fault(stage.name, f"{what} of {mesh.name}", remedy)
    if has_zero and binding.pipeline is Pipeline.ZERO_BUBBLE:
        text = f"has the schedule {binding.pipeline} and ZeRO {layout.zero} over dp of {mesh.name}"
        what = f"{text}, which splits weights and gradients on every level"
        yield Fault(stage.name, what, "choose 1f1b, or zero 0")
    if over and role is Role.SAMPLER and workers.sampling_engine != "torch":
        text = f"{how} over {', '.join(f'{axis} {mesh.sizes[axis]}' for axis in over)} of {mesh.name}"
        remedy = "set sampling.engine=torch, or a mesh of dp"
        yield Fault(stage.name, f"{text} by {workers.sampling_engine}", remedy)
    for what, remedy in _kept_whole(stage, over, workers):
        yield Fault(stage.name, f"{how} over ranks of {mesh.name}, and {what}", remedy)


def _kept_whole(stage: Stage, over: list[str], workers: Workers) -> Iterator[tuple[str, str]]:
    """Yield why a model that could be split must be whole in this run, and what to do."""
    role = role_of(stage)
    if role is Role.TRUNK and workers.has_value_layers:
        what = "a value head with layers of its own is whole on every rank yet"
        yield what, "split over dp alone, with zero 0, or share the full trunk"
    if role is not Role.SAMPLER and workers.has_adapter and over:
        what = f"a model with an adapter lies in parts over dp alone yet, not over {', '.join(over)}"
        yield what, "split it by zero 3"


def plan_faults(graph: Graph, plan: Plan) -> Iterator[Fault]:
    """Yield bindings of which each could be done, but not together, and orders that no checkpoint can cut."""
    yield from _apart(graph, plan)
    yield from _samplers(graph, plan)
    yield from _averaged(graph, plan)
    yield from cut_faults(graph, plan)


def _samplers(graph: Graph, plan: Plan) -> Iterator[Fault]:
    """Yield meshes whose one sampler is to be split in several ways."""
    ways: dict[str, dict[frozenset[tuple[str, str]], list[str]]] = defaultdict(lambda: defaultdict(list))
    for binding in plan.bindings:
        sizes = plan.mesh_named[binding.mesh].sizes
        if graph.stage_of[binding.stage].kind in ROLLING and max(sizes.values(), default=1) > 1:
            split = frozenset(pair for pair in binding.layout.shard if sizes.get(pair[1], 1) > 1)
            ways[binding.mesh][split].append(binding.stage)
    for mesh, stages in ways.items():
        if len(stages) > 1:
            names = " and ".join(", ".join(each) for each in stages.values())
            yield Fault(mesh, f"has one sampler, which {names} split differently", "give these stages one layout")


def _averaged(graph: Graph, plan: Plan) -> Iterator[Fault]:
    """Yield where a moving average would lie on the ranks in another way than the weights whose parts it follows."""
    for stages in learners(graph).values():
        train = next(name for name in stages if graph.stage_of[name].kind is StageKind.TRAIN)
        layout, model = plan.binding_of[train].layout, graph.stage_of[train].model
        for name in stages:
            stage, own = graph.stage_of[name], plan.binding_of[name].layout
            is_other = (own.shard, own.zero) != (layout.shard, layout.zero)
            if stage.kind is StageKind.FORWARD and stage.model != model and is_other:
                text = f"scores a moving average, whose ranks hold what {train} has them hold, by another layout"
                yield Fault(name, text, f"give it the layout of {train}")


def _apart(graph: Graph, plan: Plan) -> Iterator[Fault]:
    """Yield models whose stages are on several meshes, though all of them work on the same weights in memory."""
    for model, stages in learners(graph).items():
        meshes = {plan.mesh_of(stage) for stage in stages}
        if len(meshes) > 1:
            text = f"{', '.join(stages)} are on {len(meshes)} meshes: {', '.join(sorted(meshes))}"
            yield Fault(model, text, "put the stages of a trained model on one mesh")


def learners(graph: Graph) -> dict[str, list[str]]:
    """Return the stages that work on the weights of each trained model where these are trained."""
    trained = {stage.model for stage in graph.stages if stage.kind is StageKind.TRAIN}
    together: dict[str, list[str]] = defaultdict(list)
    for stage in graph.stages:
        if stage.model is not None and stage.model in trained and stage.kind in _LEARNING:
            together[stage.model].append(stage.name)
    for stage in graph.stages:  # an average of weights is beside them, and so is what reads it
        if stage.kind is StageKind.UPDATE and stage.model is not None and stage.model not in trained:
            reads = {read.data for read in graph.reads(stage.name)}
            (source,) = {model for model in together if f"{model}.master" in reads}
            together[source] += [each.name for each in graph.stages if each.model == stage.model]
    return dict(together)
