"""The plainest holder of a model, to put a pipeline around: ranks along ``dp`` have copies, or shares (FSDP2)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from rpeg.numerics.parallel.axes import axis_group
from rpeg.numerics.parallel.parallel_model import Trained
from rpeg.numerics.parallel.token_runs import sum_gradients_over


class Plain:
    """What a rank holds of a model: its parameters and their gradients; passes are made by whoever has this."""

    def __init__(self, model: PreTrainedModel, mesh: DeviceMesh, zero: int = 0) -> None:
        """Take over a model, the same on every rank.

        Args:
            model: Complete, or one part of a pipeline.
            mesh: Its axis ``dp``, if any, has the ranks that see other rows.
            zero: 3 splits the weights, and with them gradients and moments, over ``dp``; 0 splits nothing.
        """
        self.model, self._group = model, axis_group(mesh, "dp")
        self._is_split = zero == 3 and self._group is not None
        if self._is_split:
            _split(model, mesh["dp"])
        self._parameters = dict(model.named_parameters())

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Return the parameters, each tied one once."""
        return self._parameters

    def sum_gradients(self, of: Trained | None = None) -> None:
        """Sum the gradients over ``dp``; split ones are sums already."""
        if self._group is not None and not self._is_split:
            sum_gradients_over(self._group, (of or self.parameters()).values())

    @torch.no_grad()
    def total_norm(self, of: Trained | None = None) -> float:
        """Return the L2 norm of the gradient."""
        gradients = [each.grad for each in (of or self.parameters()).values() if each.grad is not None]
        squares = [_whole(torch.linalg.vector_norm(each)).square() for each in gradients]
        return float(torch.stack(squares).sum().sqrt()) if squares else 0.0

    def weights(self) -> Mapping[str, Tensor]:
        """Return copies of the complete weights."""
        return {
            name: each.detach().full_tensor() if isinstance(each, DTensor) else each.detach().clone()
            for name, each in self.parameters().items()
        }

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take over complete weights; every rank is given the same."""
        with torch.no_grad():
            for name, parameter in self.parameters().items():
                value = weights[name].to(parameter.device, parameter.dtype)
                if isinstance(parameter, DTensor):
                    value = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
                parameter.copy_(value)

    def gathered(self, held: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what belongs to the complete weights."""
        return {name: _whole(each) for name, each in held.items()}

    def shared_out(self, whole: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what this rank has of what belongs to the complete weights."""
        raise NotImplementedError


def _split(model: PreTrainedModel, mesh: DeviceMesh) -> None:
    """Split every layer by itself, so that one is complete at a time, and the rest together."""
    for layer in model.base_model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # gloo has no reduction with a factor, and none is needed.
            module.set_force_sum_reduction_for_comms(True)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
