"""A sampler whose model is split over the ranks of a replica: each has its heads' keys and values only.

All ranks choose the same tokens without telling each other: their logits are the same bit by bit, because sums and
joins of a group are, and so are the random numbers, which are counted and not drawn from a state.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from rpeg.errors import Fault, ModelError
from rpeg.numerics.parallel.axes import axis_size
from rpeg.numerics.parallel.shards import Split, Tile
from rpeg.numerics.parallel.split import split_model
from rpeg.numerics.sampler import TorchSampler
from rpeg.numerics.value_head import ValueHead

__all__ = ["SplitSampler"]


class SplitSampler(TorchSampler):
    """A `TorchSampler` on the axis tp of a mesh.

    All ranks of tp call `generate` with the same arguments, and take its samples at the same pace: each sample is the
    work of all of them. Ranks along dp sample for themselves.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        mesh: DeviceMesh,
        split: Split,
        slots: int,
        pad_id: int,
        head: ValueHead | None = None,
    ) -> None:
        """Take over a whole model, the same on every rank; it is this rank's part afterwards.

        A value ``head``, with the layers that are its own, is whole on every rank.

        Raises:
            ModelError: when it cannot be split like this, or cannot be decoded row by row.
        """
        if axes := sorted({axis for _, axis in split if axis != "tp" and axis_size(mesh, axis) > 1}):
            what = f"splits weights over {', '.join(axes)}, whose ranks sample different rows and would wait for others"
            raise ModelError("layout", [Fault("sampler", what, "split them over tp")])
        self._shards = split_model(model, mesh, split, is_sequence_parallel=False, joins_logits=True)
        super().__init__(model, slots, pad_id, head)

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy this rank's part of whole weights in place; take their version. See `TorchSampler.load`."""
        super().load({name: self._part(name, weight) for name, weight in weights.items()}, version)

    def tiles(self) -> dict[str, Tile]:
        """Return what this rank holds, parameter by parameter; what is written into the values is in the model."""
        named = self.model.named_parameters()
        return {name: self._shards[name].tile(parameter.detach()) for name, parameter in named}

    def _part(self, name: str, weight: Tensor) -> Tensor:
        """Return what this rank holds of a weight; one that does not fit as it is, and is refused later."""
        shard = self._shards.get(name)
        return shard.of(weight, shard.box) if shard is not None and shard.is_of(weight) else weight
