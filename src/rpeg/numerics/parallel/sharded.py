"""A model of which data parallel ranks hold shares, and tensor and expert parallel ranks parts.

    whole model ─parts of tp and ep─▶ this rank's model ─shares of dp (FSDP2)─▶ what it trains

ZeRO level 0 keeps all of a rank's weights, gradients and moments on it. The others let FSDP2 shard all three over
``dp``: on level 3 a layer is gathered for its forward and again for its backward pass, on 1 and 2 it is kept from one
to the other. Gradients are sums, never means: what they are divided by is known only at the update.

Shapes: B rows, T tokens of the longest row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import sqrt

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from rpeg.numerics.head_input import language_head
from rpeg.numerics.parallel.axes import axis_group, axis_rank, axis_size
from rpeg.numerics.parallel.collectives import add_up, joined
from rpeg.numerics.parallel.held import reshard
from rpeg.numerics.parallel.parallel_model import Loss, Padded, Trained
from rpeg.numerics.parallel.shards import Box, Shard, Split, Tile
from rpeg.numerics.parallel.split import split_model
from rpeg.numerics.parallel.split_head import split_scores
from rpeg.numerics.parallel.tensor import partial
from rpeg.numerics.scores import Scores, response_scores, response_values
from rpeg.numerics.value_head import ValueHead
from rpeg.shapes.splits import ROW_AXES

__all__ = ["SHARDS_WEIGHTS", "Passing", "ShardedModel"]

SHARDS_WEIGHTS = 3
"""The ZeRO level on which weights are sharded between passes too."""


@dataclass(frozen=True, slots=True)
class Passing:
    """How rows go through the model; the same on all ranks."""

    temperature: float
    """What logits are divided by; above 0."""
    autocast: torch.dtype | None = None
    """The number format of the arithmetic, if not that of the weights."""
    is_chunked: bool = False
    """Whether logits are made a few tokens at a time; see `rpeg.numerics.scores.response_scores`."""
    is_sequence_parallel: bool = True
    """Whether tensor parallel ranks share the tokens between blocks, instead of all having all of them."""
    value_head: ValueHead | None = None
    """What makes values of the last states, whole on every rank; its gradients are left to who trains it."""
    has_logits: bool = True
    """Whether there are log-probabilities, which a critic does not make."""

    def __post_init__(self) -> None:
        """Refuse what passes through a split model cannot make."""
        assert self.value_head is None or self.value_head.trunk != "lower", "a head with layers of its own is not split"
        assert self.has_logits or self.value_head is not None, "neither log-probabilities nor values are wanted"


class ShardedModel:
    """A `ParallelModel` on the axes dp, ep and tp of a mesh."""

    def __init__(
        self,
        model: PreTrainedModel,
        mesh: DeviceMesh,
        split: Split,
        zero: int,
        passing: Passing,
        joins_logits: bool = False,
    ) -> None:
        """Take over a whole model, the same on every rank; it is this rank's part afterwards.

        Args:
            model: A causal language model on the device of the mesh.
            mesh: Its axes may be dp, ep and tp.
            split: Which parts of the weights are split over which axis.
            zero: ZeRO level.
            passing: How rows go through it.
            joins_logits: Whether others make the passes, as in a pipeline, and want the logits of the whole vocabulary.

        Raises:
            ModelError: when the model cannot be split like this.
        """
        self._mesh, self._passing = mesh, passing
        self._shards = split_model(model, mesh, split, passing.is_sequence_parallel, joins_logits)
        self._vocabulary = None if joins_logits else self._own_vocabulary(model)
        self._partial = partial(model, self._shards, mesh, passing.is_sequence_parallel)
        self._is_sharded = zero > 0 and axis_size(mesh, "dp") > 1
        if self._is_sharded:
            _shard_layers(model, mesh["dp"], zero)
        self.model = model
        # Asked for once: after a pass without a backward one, a module's own are the gathered ones.
        self._parameters = dict(model.named_parameters())

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Return what this rank holds and trains."""
        return {name: each for name, each in self._parameters.items() if each.requires_grad}

    def backward(self, batches: Sequence[Padded], loss: Loss) -> None:
        """Add the gradients of the losses of all micro-batches to those of the parameters."""
        for number, batch in enumerate(batches):
            loss(number, self._scores(batch)).backward()

    @torch.no_grad()
    def score(self, batches: Sequence[Padded]) -> list[Scores]:
        """Return the scores of all micro-batches, without gradients."""
        found = [self._scores(batch) for batch in batches]
        reshard(self.model)
        return found

    def _scores(self, batch: Padded) -> Scores:
        passing, tokens_BT, mask_BT = self._passing, batch.tokens_BT, batch.mask_BT
        num_tokens = tokens_BT.shape[1]
        if passing.is_sequence_parallel:
            padding = (0, -num_tokens % axis_size(self._mesh, "tp"))
            tokens_BT, mask_BT = nn.functional.pad(tokens_BT, padding), nn.functional.pad(mask_BT, padding)
        with torch.autocast(tokens_BT.device.type, passing.autocast, enabled=passing.autocast is not None):
            scores = self._scores_of_padded(tokens_BT, mask_BT)
        values_BT = None if scores.values_BT is None else scores.values_BT[:, :num_tokens]
        return Scores(scores.logps_BT[:, :num_tokens], scores.entropies_BT[:, :num_tokens], values_BT)

    def _scores_of_padded(self, tokens_BT: Tensor, mask_BT: Tensor) -> Scores:
        passing, group = self._passing, axis_group(self._mesh, "tp")
        head, padded = passing.value_head, (tokens_BT, mask_BT)
        if head is not None and not passing.has_logits:
            return Scores.of_values(response_values(self.model, head, *padded))
        if self._vocabulary is None or group is None:
            return response_scores(self.model, *padded, passing.temperature, head, passing.is_chunked)
        of_part = self._vocabulary, group
        return split_scores(self.model, *padded, passing.temperature, head, *of_part, passing.is_chunked)

    def _own_vocabulary(self, model: PreTrainedModel) -> tuple[int, int] | None:
        """Return the range of tokens that the head of this rank makes logits of; None for all."""
        head = language_head(model)
        name = next(name for name, each in model.named_parameters() if each is head.weight)
        shard = self._shards[name]
        return shard.box[0] if shard.cut_over("tp") else None

    @torch.no_grad()
    def sum_gradients(self, of: Trained | None = None) -> None:
        """Make every gradient the sum over all ranks that have seen other rows, or other heads or tokens."""
        summed: dict[str, list[Tensor]] = defaultdict(list)
        for name, parameter in (of or self.parameters()).items():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            for axis in self._sum_axes(name):
                summed[axis].append(_local(parameter.grad))
            self._sum_copies(self._shards[name], _local(parameter.grad))
        for axis, gradients in summed.items():
            if (group := axis_group(self._mesh, axis)) is not None:
                add_up(gradients, group)

    def _sum_axes(self, name: str) -> list[str]:
        """Return the axes over which ranks hold the same of a parameter, and have seen different parts of its loss."""
        axes = [axis for axis in ROW_AXES if self._shards[name].cut_over(axis) is None]
        if self._is_sharded:
            axes.remove("dp")  # FSDP2 has done it
        return axes + (["tp"] if name in self._partial else [])

    def _sum_copies(self, shard: Shard, gradient: Tensor) -> None:
        """Sum a gradient over the neighbours that hold the same key-value heads for different query heads."""
        for cut in shard.cuts:
            if cut.copies > 1 and (group := axis_group(self._mesh, cut.axis)) is not None:
                slots = gradient.new_zeros(cut.pieces, *gradient.shape)
                slots[cut.index] = gradient
                dist.all_reduce(slots, group=group)
                gradient.copy_(slots[cut.index])

    @torch.no_grad()
    def total_norm(self, of: Trained | None = None) -> float:
        """Return the L2 norm of the gradient of the whole model, every parameter counted once."""
        squares = torch.zeros((), dtype=torch.float64, device=self.model.device)
        for name, parameter in (of or self.parameters()).items():
            if parameter.grad is not None and self._is_first_holder(name):
                squares += torch.linalg.vector_norm(_local(parameter.grad), dtype=torch.float64) ** 2
        for axis in self._mesh.mesh_dim_names or ():
            if (group := axis_group(self._mesh, axis)) is not None:
                dist.all_reduce(squares, group=group)
        return sqrt(float(squares))

    def _is_first_holder(self, name: str) -> bool:
        """Whether no earlier rank of the mesh holds the same of a parameter."""
        for axis in self._mesh.mesh_dim_names or ():
            cut, rank = self._shards[name].cut_over(axis), axis_rank(self._mesh, axis)
            if cut is None and rank and not (axis == "dp" and self._is_sharded):
                return False
            if cut is not None and rank % cut.copies:
                return False
        return True

    @torch.no_grad()
    def weights(self) -> Mapping[str, Tensor]:
        """Return the whole model's weights by name, on every rank, each tied weight once."""
        return self.gathered(self._parameters)

    @torch.no_grad()
    def gathered(self, held: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what belongs to the whole model's weights, on every rank, from what each has for its own."""
        return {name: self._whole(self._shards[name], _part(each)) for name, each in held.items()}

    def _whole(self, shard: Shard, part: Tensor) -> Tensor:
        found = shard.unpacked(part)
        for cut in reversed(shard.cuts):
            group = axis_group(self._mesh, cut.axis)
            assert group is not None, "an axis of one rank splits nothing"
            pieces = joined(found, cut.dim, group).chunk(cut.pieces * cut.copies, cut.dim)
            found = torch.cat(pieces[:: cut.copies], cut.dim)
        # A copy: whoever reads it must not see the next update.
        return shard.packed(found.clone() if found.data_ptr() == part.data_ptr() else found)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take over the weights of a whole model."""
        assert weights.keys() >= self._parameters.keys(), f"{sorted(self._parameters.keys() - weights.keys())[:3]} lack"
        for name, parameter in self._parameters.items():
            self._take(name, parameter, weights[name])

    @torch.no_grad()
    def shared_out(self, whole: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what this rank has of what belongs to the whole model's weights."""
        like = self.parameters().items()
        found = {name: torch.zeros_like(each, dtype=whole[name].dtype, requires_grad=False) for name, each in like}
        for name, each in found.items():
            self._take(name, each, whole[name])
        return found

    def _take(self, name: str, mine: Tensor, whole: Tensor) -> None:
        """Fill what this rank has for a parameter from what belongs to the whole of it."""
        shard = self._shards[name]
        _local(mine).copy_(shard.of(whole, self._share(shard) if isinstance(mine, DTensor) else shard.box))

    def _share(self, shard: Shard) -> Box:
        """Return the box that FSDP2 leaves on this rank."""
        return shard.share(axis_rank(self._mesh, "dp"), axis_size(self._mesh, "dp"))

    @torch.no_grad()
    def tiles(self) -> dict[str, Tile]:
        """Return what this rank holds, parameter by parameter; what is written into the values is in the model.

        On level 3 that is the box of `rpeg.plan.layout.box_of`, wherever the data parallel ranks divide what the first
        dimension counts; else FSDP2 divides a head, which is no box in heads. On levels 1 and 2 it is the same share:
        what a plan counts there besides is gathered for passes only. Routers are whole.
        """
        return {name: self._tile(self._shards[name], parameter) for name, parameter in self._parameters.items()}

    def _tile(self, shard: Shard, parameter: nn.Parameter) -> Tile:
        if self._is_sharded:
            return Tile(shard.shape, self._share(shard), shard.unpacked(_local(parameter)))
        return shard.tile(parameter.detach())


def _shard_layers(model: PreTrainedModel, mesh: DeviceMesh, zero: int) -> None:
    """Let the ranks of a mesh hold shares of every layer, and of what is around the layers."""
    lists = [child for child in model.base_model.children() if isinstance(child, nn.ModuleList)]
    sums = MixedPrecisionPolicy(reduce_dtype=torch.float32)  # never in a narrow format
    for module in (*chain.from_iterable(lists), model):
        is_let_go = zero == SHARDS_WEIGHTS and module is not model
        shared = fully_shard(module, mesh=mesh, reshard_after_forward=is_let_go, mp_policy=sums)
        # The factor alone would ask gloo for a scaled sum, which it does not know.
        shared.set_gradient_divide_factor(1.0)
        shared.set_force_sum_reduction_for_comms(True)


def _local(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _part(parameter: Tensor) -> Tensor:
    """Return the part of a parameter that this rank's share belongs to, gathered where it is shared."""
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach()
