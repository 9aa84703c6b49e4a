"""The one place that turns a layout into a model on a mesh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from rpeg.errors import Fault
from rpeg.numerics.parallel.parallel_model import ParallelModel
from rpeg.numerics.parallel.peers import ROW_AXES, Peers
from rpeg.numerics.parallel.whole import ScoreBatch, WholeModel

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


WHOLE = ModelLayout()
"""All of it on every rank."""


def is_split(layout: ModelLayout, sizes: Mapping[str, int]) -> bool:
    """Whether ranks along axes of these sizes hold different parts of a model, or of what its optimizer keeps."""
    others = any(size > 1 for axis, size in sizes.items() if axis not in ROW_AXES)
    over_rows = any(sizes.get(axis, 1) > 1 for _, axis in layout.split)
    return others or over_rows or (layout.zero > 0 and sizes.get("dp", 1) > 1)


def layout_faults(model: PreTrainedModel, layout: ModelLayout, sizes: Mapping[str, int]) -> Iterator[Fault]:
    """Yield what keeps a model from lying like this on ranks along axes of these sizes.

    Args:
        model: Its weights are not looked at.
        layout: How it is to be split.
        sizes: By axis.
    """
    if is_split(layout, sizes):
        axes = " ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1)
        text = f"splits a {model.config.model_type} over {axes} with zero {layout.zero}"
        yield Fault("layout", text, "replicas run yet: dp alone, zero 0")


def parallel_model(
    model: PreTrainedModel, layout: ModelLayout, mesh: DeviceMesh | None, score: ScoreBatch
) -> ParallelModel:
    """Return a model, the same on every rank, on a mesh.

    Args:
        model: Not to be used any more but through what is returned, unless it is not split.
        layout: How it is split.
        mesh: None for a rank that is alone.
        score: How rows go through a whole model.
    """
    sizes = {} if mesh is None else dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=True))
    assert not is_split(layout, sizes), f"{layout} on {sizes} is refused by layout_faults"
    return WholeModel(model, score, Peers(mesh, ROW_AXES))
