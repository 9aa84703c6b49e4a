"""The one place that turns a layout into a model on a mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from rpeg.errors import Fault
from rpeg.numerics.parallel.axes import axis_size, places
from rpeg.numerics.parallel.context import ContextModel
from rpeg.numerics.parallel.context_attention import context_faults
from rpeg.numerics.parallel.parallel_model import ParallelModel
from rpeg.numerics.parallel.peers import Peers
from rpeg.numerics.parallel.pipeline import PipelineModel
from rpeg.numerics.parallel.pipeline_order import Schedule, num_parts
from rpeg.numerics.parallel.pipeline_parts import pipeline_faults
from rpeg.numerics.parallel.sharded import Passing, ShardedModel
from rpeg.numerics.parallel.shards import family_faults, split_faults
from rpeg.numerics.parallel.whole import ScoreBatch, WholeModel
from rpeg.numerics.recompute import recompute_layers
from rpeg.shapes.splits import ROW_AXES, divided_axes
from rpeg.shapes.tensor import LAYERS

__all__ = ["WHOLE", "ModelLayout", "is_split", "layout_faults", "parallel_model"]


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """How a model lies on a mesh; plain values, as `rpeg.plan.plan.Layout` and `rpeg.plan.plan.Binding` have them."""

    split: tuple[tuple[str, str], ...] = ()
    """Which part of the weights is split over which axis."""
    zero: int = 0
    """ZeRO level."""
    schedule: str | None = None
    """In which order micro-batches pass a pipeline; None, as of passes without gradients, is one after the other."""
    recomputes: bool = False
    """Whether activations inside of layers are made again in the backward pass instead of being kept."""


WHOLE = ModelLayout()
"""All of it on every rank."""


def is_split(layout: ModelLayout, sizes: Mapping[str, int]) -> bool:
    """Whether ranks along axes of these sizes hold different parts of a model, or of what its optimizer keeps."""
    return bool(divided_axes(layout.split, sizes)) or (layout.zero > 0 and sizes.get("dp", 1) > 1)


def layout_faults(model: PreTrainedModel, layout: ModelLayout, sizes: Mapping[str, int]) -> Iterator[Fault]:
    """Yield what keeps a model from lying like this on ranks along axes of these sizes.

    Args:
        model: Its weights are not looked at.
        layout: How it is to be split.
        sizes: By axis.
    """
    if faults := list(family_faults(model.config, divided_axes(layout.split, sizes))):
        yield from faults
        return
    yield from split_faults(model.config, layout.split, sizes)
    if sizes.get("cp", 1) > 1:
        yield from context_faults(model.config)
    if sizes.get("pp", 1) > 1:
        yield from pipeline_faults(model)
        yield from _stages(model, layout, sizes)


def _stages(model: PreTrainedModel, layout: ModelLayout, sizes: Mapping[str, int]) -> Iterator[Fault]:
    stages, layers = sizes["pp"], model.config.get_text_config(decoder=True).num_hidden_layers
    parts = num_parts(_schedule(layout), stages)
    if (parts - 1) * -(-layers // parts) >= layers:
        text = f"pp = {stages} cuts {layers} layers into {parts} parts, some of them empty"
        yield Fault("layout", text, f"lower pp: {layers} layers make at most {layers} parts")
    further = sorted({axis for part, axis in layout.split if part != LAYERS and sizes.get(axis, 1) > 1})
    further += ["dp by ZeRO"] if layout.zero and sizes.get("dp", 1) > 1 else []
    if layout.schedule == "zero_bubble" and further:
        text = f"puts off gradients of weights that are split over {' and '.join(further)}, too"
        yield Fault("schedule zero_bubble", text, "choose 1f1b, or split layers alone, with zero 0")


def _schedule(layout: ModelLayout) -> Schedule:
    return cast(Schedule, layout.schedule or "1f1b")


def _without_layers(layout: ModelLayout) -> tuple[tuple[str, str], ...]:
    """Return how what one part of a pipeline has is split."""
    return tuple((part, axis) for part, axis in layout.split if part != LAYERS)


def parallel_model(
    model: PreTrainedModel,
    layout: ModelLayout,
    mesh: DeviceMesh | None,
    passing: Callable[[], Passing],
    score: ScoreBatch,
) -> ParallelModel:
    """Return a model, the same on every rank, on a mesh.

    Args:
        model: Not to be used any more but through what is returned, unless it is not split.
        layout: How it is split; `layout_faults` has nothing against it.
        mesh: None for a rank that is alone.
        passing: Says how rows go through a split model; not asked for a whole one.
        score: How they go through a whole one.
    """
    if layout.recomputes:
        recompute_layers(model)
    if mesh is None or not is_split(layout, {axis: size for axis, (_, size) in places(mesh).items()}):
        return WholeModel(model, score, Peers(mesh, ROW_AXES))
    split, is_plain = _without_layers(layout), axis_size(mesh, "pp") == axis_size(mesh, "cp") == 1
    if is_plain:
        return ShardedModel(model, mesh, split, layout.zero, passing())
    # States go from part to part whole, and rows are cut along the sequence already.
    inner = replace(passing(), is_sequence_parallel=False)

    def hold(part: PreTrainedModel, rest: DeviceMesh) -> ShardedModel:
        return ShardedModel(part, rest, split, layout.zero, inner, joins_logits=True)

    if axis_size(mesh, "pp") == 1:
        return ContextModel(model, mesh, hold, inner)
    return PipelineModel(model, mesh, hold, _schedule(layout), inner)
