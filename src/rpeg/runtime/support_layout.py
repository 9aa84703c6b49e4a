"""Which meshes, layouts and bindings of a plan workers can carry out; the rest is refused before anything starts.

What no worker does is in the table of `rpeg.plan.workers`. Here it is asked what this machine has, and what torch can
do with the very model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

import torch
from transformers import PreTrainedModel

from rpeg.errors import Fault, RecipeError
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.numerics.model import model_outline
from rpeg.numerics.parallel.build import ModelLayout, is_split, layout_faults
from rpeg.numerics.precision import device
from rpeg.plan.mesh import num_ranks
from rpeg.plan.plan import Binding, Mesh, Plan
from rpeg.plan.rules_workers import plan_faults, worker_faults
from rpeg.plan.workers import Workers
from rpeg.recipe.schema import Recipe
from rpeg.runtime.homes.ranks import own_rank
from rpeg.runtime.world import slots

__all__ = ["Outline", "binding_faults"]

Outline = Callable[[], PreTrainedModel]
"""Makes a model of which only names and sizes are looked at."""


def binding_faults(recipe: Recipe, graph: Graph, plan: Plan, outline: Outline) -> Iterator[Fault]:
    """Yield what of the meshes and bindings would not be done as the plan says; ``outline`` makes the policy's."""
    workers = Workers(
        recipe.run.home != "inline",
        has_adapter=recipe.model.adapter is not None,
        has_value_layers=recipe.critic is not None and recipe.critic.sharing == "lower",
        sampling_engine=recipe.sampling.engine,
    )
    own = recipe.critic.path if recipe.critic is not None else None
    for mesh in plan.meshes:
        if num_ranks(mesh) > 1:
            yield from _devices(recipe, mesh)
    for binding in plan.bindings:
        mesh = plan.mesh_named[binding.mesh]
        faults = list(worker_faults(graph, binding, mesh, workers))
        yield from faults
        stage = graph.stage_of[binding.stage]
        if not faults and stage.kind in (StageKind.GENERATE, StageKind.TRAIN, StageKind.FORWARD):
            asked = outline if own is None or stage.model != "critic" else partial(model_outline, own)
            yield from _torn(binding, mesh, asked)
    yield from plan_faults(graph, plan)


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


def _torn(binding: Binding, mesh: Mesh, outline: Outline) -> Iterator[Fault]:
    """Yield what keeps a model from lying on the ranks as the plan says."""
    layout = ModelLayout(binding.layout.shard, binding.layout.zero, binding.pipeline)
    if not is_split(layout, mesh.sizes):
        return
    for fault in layout_faults(outline(), layout, mesh.sizes):
        yield Fault(f"{binding.stage} {fault.where}", fault.what, fault.remedy)
