"""The other ranks that work on the same firing, and how all of them come to the same numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from rpeg.numerics.parallel.axes import axis_group, axis_rank, axis_size
from rpeg.numerics.parallel.collectives import add_up

__all__ = ["Peers"]


class Peers:
    """The ranks along some axes of a mesh. All methods are collective: each of them calls these in the same order."""

    def __init__(self, mesh: DeviceMesh | None = None, axes: Sequence[str] = ()) -> None:
        """Find the groups; without a mesh a rank is alone, and nothing is exchanged."""
        self.count, self.number = 1, 0
        self._groups: list[dist.ProcessGroup] = []
        self._device = torch.device("cpu" if mesh is None else mesh.device_type)
        if mesh is None:
            return
        for axis in axes:
            size = axis_size(mesh, axis)
            self.number = self.number * size + axis_rank(mesh, axis)
            self.count *= size
            if (group := axis_group(mesh, axis)) is not None:
                self._groups.append(group)

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over the ranks, on the device of ``values``; these stay as they are."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def most(self, values: Tensor) -> Tensor:
        """Return the greatest of the ranks' values, place by place."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def counts(self, *numbers: float) -> list[float]:
        """Return the sums of some numbers."""
        return self.total(torch.tensor(numbers, dtype=torch.float64)).tolist() if self._groups else list(numbers)

    def greatest(self, number: int) -> int:
        """Return the greatest of a number that every rank has."""
        return int(self.most(torch.tensor(number))) if self._groups else number

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make every gradient the sum over the ranks, which have gradients for the same parameters."""
        gradients = [each.grad for each in parameters if each.grad is not None]
        for group in self._groups:
            add_up(gradients, group)

    def _reduced(self, values: Tensor, how: dist.ReduceOp.RedOpType) -> Tensor:
        if not self._groups:
            return values
        found = values.detach().to(self._device, copy=True)
        for group in self._groups:
            dist.all_reduce(found, how, group)
        return found.to(values.device)
