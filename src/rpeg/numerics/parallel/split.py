"""A whole model made into the part that a rank of the axes tp and ep holds and computes."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from rpeg.numerics.parallel.axes import places
from rpeg.numerics.parallel.experts import split_experts
from rpeg.numerics.parallel.shards import Shard, Split, shards_of
from rpeg.numerics.parallel.tensor import split_blocks, take_parts

__all__ = ["split_model"]


def split_model(
    model: PreTrainedModel, mesh: DeviceMesh, split: Split, is_sequence_parallel: bool, joins_logits: bool
) -> dict[str, Shard]:
    """Make a whole model, the same on every rank, this rank's part of it, and return what it holds of each parameter.

    It is called like the whole one, on all ranks of the mesh at a time, and returns what the whole one would.

    Args:
        model: Changed in place.
        mesh: Its axes may be any; ``tp`` and ``ep`` split.
        split: Which part of the weights is split over which axis.
        is_sequence_parallel: Whether tp ranks share the tokens between blocks; their number must divide by tp then.
        joins_logits: Whether every rank returns all logits, instead of those of its part of the vocabulary.

    Raises:
        ModelError: when the model cannot be split like this; it is as it was then.
    """
    shards = shards_of(model, split, places(mesh))
    take_parts(model, shards)
    split_blocks(model, shards, mesh, is_sequence_parallel, joins_logits)
    split_experts(model, shards, mesh)
    return shards
