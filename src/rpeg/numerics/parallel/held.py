"""What a rank holds of a model, or of one part of it, apart from who passes rows through it and how.

A pipeline and a split along the sequence are put around this: they make passes, and leave it what belongs to weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from rpeg.numerics.parallel.parallel_model import Trained
from rpeg.numerics.parallel.shards import Tile

__all__ = ["Hold", "ModelPart", "reshard", "rest_of"]


class ModelPart(Protocol):
    """The half of a `rpeg.numerics.parallel.parallel_model.ParallelModel` that is about weights."""

    model: PreTrainedModel
    """Ready to be called."""

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Return what this rank holds and trains."""
        ...

    def sum_gradients(self, of: Trained | None = None) -> None:
        """Make every gradient the sum over all ranks of its mesh that have seen other rows."""
        ...

    def total_norm(self, of: Trained | None = None) -> float:
        """Return the L2 norm of the gradient of all that its mesh holds, every parameter counted once."""
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """Return copies of the complete weights, on every rank."""
        ...

    def tiles(self) -> Mapping[str, Tile]:
        """Return what this rank holds of every weight."""
        ...

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take over complete weights."""
        ...

    def gathered(self, held: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what belongs to the complete trained weights, on every rank, from what each has for its own."""
        ...

    def shared_out(self, whole: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what this rank has of what belongs to the complete trained weights."""
        ...


Hold = Callable[[PreTrainedModel, DeviceMesh], ModelPart]
"""Takes over a model, or one part of it, on a mesh of the axes that are left."""


def rest_of(mesh: DeviceMesh, *taken: str) -> DeviceMesh:
    """Return the mesh of the axes that are not taken; ``dp`` is always among them."""
    left = tuple(name for name in mesh.mesh_dim_names or () if name not in taken)
    assert left, f"a mesh of {mesh.mesh_dim_names} alone; see `rpeg.numerics.parallel.axes.device_mesh`"
    return mesh[left]


def reshard(model: nn.Module) -> None:
    """Let go of weights that FSDP2 gathered for a pass without gradients: an update would not change them."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
