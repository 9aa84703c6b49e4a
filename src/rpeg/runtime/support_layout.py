"""Which meshes, layouts and bindings of a plan workers can carry out; the rest is refused before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rpeg.errors import Fault, RecipeError
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Stage, StageKind
from rpeg.numerics.parallel.peers import ROW_AXES
from rpeg.numerics.precision import device
from rpeg.plan.mesh import num_ranks
from rpeg.plan.plan import Binding, Mesh, Plan
from rpeg.recipe.schema import Recipe
from rpeg.runtime.world import slots

__all__ = ["layout_faults"]

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


def layout_faults(recipe: Recipe, graph: Graph, plan: Plan) -> Iterator[Fault]:
    """Yield what of the meshes and bindings would not be done as the plan says."""
    several = {mesh.name: mesh for mesh in plan.meshes if num_ranks(mesh) > 1}
    for mesh in several.values():
        if recipe.run.home == "inline":
            text = f"has {num_ranks(mesh)} ranks, and run.home inline is one process"
            yield Fault(mesh.name, text, "set run.home=processes")
        yield from _devices(recipe, mesh)
    for binding in plan.bindings:
        yield from _asked(binding)
        if binding.mesh in several:
            yield from _on_ranks(recipe, graph.stage_of[binding.stage], several[binding.mesh])
            yield from _split(binding, several[binding.mesh])


def _devices(recipe: Recipe, mesh: Mesh) -> Iterator[Fault]:
    """Yield the ranks that have no device of their own; those of a CPU share its cores."""
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
    if binding.pipeline is not None:
        yield Fault(binding.stage, f"asks for the pipeline schedule {binding.pipeline}", "pipelines do not run yet")
    if binding.engine != "torch":
        yield Fault(binding.stage, f"asks for the engine {binding.engine}", "only torch runs yet")
    if binding.pack:
        yield Fault(binding.stage, "asks for packed rows", "rows are padded yet: plan with pack false")
    if binding.servers > 1:
        yield Fault(binding.stage, f"asks for {binding.servers} servers", "the replicas of a mesh are one server yet")


def _on_ranks(recipe: Recipe, stage: Stage, mesh: Mesh) -> Iterator[Fault]:
    count = num_ranks(mesh)
    if stage.kind not in _ON_RANKS or stage.model is None:
        text = f"is on the {count} ranks of {mesh.name}, and a {stage.kind} stage without a model runs on one"
        yield Fault(stage.name, text, "bind it to the mesh of the host")
    elif stage.kind is StageKind.GENERATE and recipe.algorithm.dynamic_sampling is not None:
        text = f"looks for groups in rounds on {count} ranks, and a round is over when there are enough of all"
        yield Fault(stage.name, text, "sample on a mesh of 1 rank")


def _split(binding: Binding, mesh: Mesh) -> Iterator[Fault]:
    """Yield how the weights are split, as far as no rank holds such a part."""
    axes = [f"{axis} {size}" for axis, size in mesh.axes if size > 1 and axis not in ROW_AXES]
    if axes:
        yield Fault(binding.stage, f"is split over {' '.join(axes)} of {mesh.name}", "only dp runs yet")
    elif binding.layout.zero and mesh.sizes.get("dp", 1) > 1:
        yield Fault(binding.stage, f"asks for ZeRO level {binding.layout.zero}", "replicas (zero 0) run yet")
