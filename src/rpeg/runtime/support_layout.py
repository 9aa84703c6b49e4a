"""Which meshes, layouts and bindings of a plan workers can carry out; the rest is refused before anything starts."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from math import prod

import torch
from transformers import PreTrainedModel

from rpeg.errors import Fault, RecipeError
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Stage, StageKind
from rpeg.numerics.model import model_outline
from rpeg.numerics.parallel.build import ModelLayout, is_split, layout_faults
from rpeg.numerics.parallel.peers import ROW_AXES
from rpeg.numerics.parallel.sharded import SHARDS_WEIGHTS
from rpeg.numerics.precision import device
from rpeg.plan.bind import ROLLING, SAMPLING
from rpeg.plan.mesh import num_ranks
from rpeg.plan.plan import Binding, Mesh, Plan, Recompute
from rpeg.recipe.schema import Recipe
from rpeg.runtime.carry import carry_of
from rpeg.runtime.homes.ranks import own_rank
from rpeg.runtime.world import slots

__all__ = ["Outline", "binding_faults"]

Outline = Callable[[], PreTrainedModel]
"""Makes a model of which only names and sizes are looked at."""
_HEADS = ("logprob", "entropy", "value", "value_detached")
"""What a model that is split over ranks is asked for."""
_ON_RANKS = frozenset(
    {
        StageKind.GENERATE,
        StageKind.PULL,
        StageKind.EVALUATE,
        StageKind.FORWARD,
        StageKind.TRAIN,
        StageKind.UPDATE,
        StageKind.PUSH,
    }
)
"""Kinds of stages that several ranks do together, where they have a model."""
_OF_REPLICA = "tp"
"""The axis over which the ranks of a sampler's replica share its model."""


def binding_faults(recipe: Recipe, graph: Graph, plan: Plan, outline: Outline) -> Iterator[Fault]:
    """Yield what of the meshes and bindings would not be done as the plan says; ``outline`` makes the policy's."""
    several = {mesh.name: mesh for mesh in plan.meshes if num_ranks(mesh) > 1}
    for mesh in several.values():
        if recipe.run.home == "inline":
            text = f"has {num_ranks(mesh)} ranks, and run.home inline is one process"
            yield Fault(mesh.name, text, "set run.home=processes, or ray")
        yield from _devices(recipe, mesh)
    for binding in plan.bindings:
        stage = graph.stage_of[binding.stage]
        yield from _asked(binding)
        yield from _engine(recipe, stage, binding)
        if binding.mesh in several:
            yield from _on_ranks(recipe, stage, several[binding.mesh])
            yield from _carried(graph, stage, several[binding.mesh])
            if stage.kind is StageKind.GENERATE:
                yield from _sampled(recipe, stage, binding, several[binding.mesh], outline)
            elif stage.kind in (StageKind.TRAIN, StageKind.FORWARD):
                yield from _split(recipe, stage, binding, several[binding.mesh], outline)
                if recipe.algorithm.reference == "ema":
                    yield from _averaged(graph, plan, stage, binding)
    yield from _samplers(graph, plan, several)


def _devices(recipe: Recipe, mesh: Mesh) -> Iterator[Fault]:
    """Yield the ranks that have no device of their own; those of a CPU share its cores.

    Ray and launchers give every worker its device, and find out themselves where there are too few.
    """
    if recipe.run.home == "ray" or own_rank(os.environ) is not None:
        return
    try:
        if device(recipe.run.device).type != "cuda":
            return
    except RecipeError:  # said elsewhere
        return
    found, last = torch.cuda.device_count(), max(slots(mesh), default=0)
    if last >= found:
        text = f"its ranks compute on the devices up to {last} of {mesh.where}, and this machine has {found}"
        yield Fault(mesh.name, text, f"plan for --cluster local:{found}, or set run.device=cpu")


def _asked(binding: Binding) -> Iterator[Fault]:
    """Yield what a binding asks for that no worker does."""
    if binding.recompute is not Recompute.NONE:
        yield Fault(binding.stage, f"asks to recompute {binding.recompute}", "activations are kept yet: recompute none")
    if binding.pack:
        yield Fault(binding.stage, "asks for packed rows", "rows are padded yet: plan with pack false")
    if binding.servers > 1:
        yield Fault(binding.stage, f"asks for {binding.servers} servers", "the replicas of a mesh are one server yet")


def _engine(recipe: Recipe, stage: Stage, binding: Binding) -> Iterator[Fault]:
    """Yield an engine that is not the recipe's, where it samples, or that is none."""
    if stage.kind not in SAMPLING:
        if binding.engine != "torch":
            yield Fault(stage.name, f"asks for the engine {binding.engine}", "all but samplers compute with torch")
    elif binding.engine != recipe.sampling.engine:
        text = f"asks for the engine {binding.engine}, and sampling.engine is {recipe.sampling.engine}"
        yield Fault(stage.name, text, "plan this recipe with the same overrides, or set sampling.engine alike")


def _on_ranks(recipe: Recipe, stage: Stage, mesh: Mesh) -> Iterator[Fault]:
    count = num_ranks(mesh)
    if stage.kind not in _ON_RANKS or stage.model is None:
        text = f"is on the {count} ranks of {mesh.name}, and a {stage.kind} stage without a model runs on one"
        yield Fault(stage.name, text, "bind it to the mesh of the host")
    elif stage.kind is StageKind.GENERATE and recipe.algorithm.dynamic_sampling is not None:
        text = f"looks for groups in rounds on {count} ranks, and a round is over when there are enough of all"
        yield Fault(stage.name, text, "sample on a mesh of 1 rank")


def _carried(graph: Graph, stage: Stage, mesh: Mesh) -> Iterator[Fault]:
    """Yield where ranks would not have equally many groups of a step, which says what has to be complete when."""
    prompts, ranks = graph.batch_rows // graph.group_size, prod(mesh.sizes.get(axis, 1) for axis in ROW_AXES)
    if stage.kind is StageKind.GENERATE and carry_of(graph, stage.name) and prompts % ranks:
        text = f"carries samples of {prompts} prompts over on {ranks} ranks with different rows"
        yield Fault(stage.name, text, f"choose ranks that divide {prompts}, or set algorithm.prompts to a multiple")


def _sampled(recipe: Recipe, stage: Stage, binding: Binding, mesh: Mesh, outline: Outline) -> Iterator[Fault]:
    """Yield what keeps a sampler from lying on the ranks as the plan says: those of a replica go on token by token."""
    split = {axis for _, axis in binding.layout.shard if mesh.sizes.get(axis, 1) > 1}
    others = {axis for axis, size in mesh.axes if size > 1 and axis not in ROW_AXES} | split
    axes = [f"{axis} {mesh.sizes[axis]}" for axis in sorted(others - {_OF_REPLICA})]
    axes += ["dp (zero 3)"] if binding.layout.zero == SHARDS_WEIGHTS and mesh.sizes.get("dp", 1) > 1 else []
    text = f"samples from weights split over {', '.join(axes or [f'{axis} {mesh.sizes[axis]}' for axis in split])}"
    text += f" of {mesh.name}"
    if axes:
        yield Fault(stage.name, text, f"samplers are split over {_OF_REPLICA} alone: a mesh of dp and tp, zero 0")
    elif split and recipe.sampling.engine != "torch":
        yield Fault(stage.name, f"{text} by {recipe.sampling.engine}", "set sampling.engine=torch, or a mesh of dp")
    elif split:
        for fault in layout_faults(outline(), ModelLayout(binding.layout.shard), mesh.sizes):
            yield Fault(f"{stage.name} {fault.where}", fault.what, fault.remedy)


def _samplers(graph: Graph, plan: Plan, several: Mapping[str, Mesh]) -> Iterator[Fault]:
    """Yield meshes whose one sampler is to be split in several ways."""
    ways: dict[str, dict[frozenset[tuple[str, str]], list[str]]] = defaultdict(lambda: defaultdict(list))
    for binding in plan.bindings:
        if binding.mesh in several and graph.stage_of[binding.stage].kind in ROLLING:
            sizes = several[binding.mesh].sizes
            split = frozenset(pair for pair in binding.layout.shard if sizes.get(pair[1], 1) > 1)
            ways[binding.mesh][split].append(binding.stage)
    for mesh, stages in ways.items():
        if len(stages) > 1:
            names = " and ".join(", ".join(each) for each in stages.values())
            yield Fault(mesh, f"has one sampler, which {names} split differently", "give these stages one layout")


def _split(recipe: Recipe, stage: Stage, binding: Binding, mesh: Mesh, outline: Outline) -> Iterator[Fault]:
    """Yield what keeps a model from lying on the ranks as the plan says."""
    layout = ModelLayout(binding.layout.shard, binding.layout.zero, binding.pipeline)
    if not is_split(layout, mesh.sizes):
        return
    others = list(_whole(recipe, stage, mesh))
    for what, remedy in others:
        yield Fault(stage.name, f"is split over ranks of {mesh.name}, and {what}", remedy)
    if not others:
        own = recipe.critic.path if recipe.critic is not None and stage.model == "critic" else None
        model = outline() if own is None else model_outline(own)
        for fault in layout_faults(model, layout, mesh.sizes):
            yield Fault(f"{stage.name} {fault.where}", fault.what, fault.remedy)


def _averaged(graph: Graph, plan: Plan, stage: Stage, binding: Binding) -> Iterator[Fault]:
    """Yield where a moving average would lie on the ranks in another way than the policy, whose parts it follows."""
    trains = [each for each in graph.stages if each.kind is StageKind.TRAIN and each.model != "critic"]
    trained = {each.model: each.name for each in trains}
    if stage.model in trained or stage.heads != ("logprob",):
        return
    for train in (each for each in plan.bindings if each.stage in trained.values()):
        if (train.layout.shard, train.layout.zero) != (binding.layout.shard, binding.layout.zero):
            text = f"scores a moving average, whose ranks hold what {train.stage} has them hold, by another layout"
            yield Fault(stage.name, text, f"give it the layout of {train.stage}")


def _whole(recipe: Recipe, stage: Stage, mesh: Mesh) -> Iterator[tuple[str, str]]:
    """Yield why the model of a stage must be whole on every rank, and what to do."""
    remedy = "split over dp alone, with zero 0"
    if heads := [head for head in stage.heads if head not in _HEADS]:
        yield f"a model with the head {', '.join(heads)} is whole on every rank yet", remedy
    if "value" in stage.heads and recipe.critic is not None and recipe.critic.sharing == "lower":
        yield "a value head with layers of its own is whole on every rank yet", f"{remedy}, or share the full trunk"
    axes = [axis for axis, size in mesh.axes if size > 1 and axis != "dp"]
    if recipe.model.adapter is not None and axes:
        yield (
            f"a model with an adapter lies in parts over dp alone yet, not over {', '.join(axes)}",
            "split it by zero 3",
        )
