"""Collectives that autograd goes through, and sums of gradients.

A block of a model that is split over ranks begins where all of them have the same states and ends where their partial
results are added up. In the backward pass it is the other way round, so every collective here comes with its mirror:

==============  =====================  =====================
                forward                backward
==============  =====================  =====================
`enter`         nothing                sum
`leave`         sum                    nothing
`gather`        join parts             own part of the sum
`scatter`       own part of the sum    join parts
`join`          join parts             own part
`part`          own part               join parts
`exchange`      rows to their ranks    rows back
==============  =====================  =====================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["add_up", "enter", "exchange", "gather", "join", "joined", "leave", "part", "scatter"]

_Way = Callable[[Tensor, int, dist.ProcessGroup], Tensor]
_BUCKET_ELEMENTS = 1 << 24
"""Gradients that are summed at once (64 MiB in float32): large messages, and little memory beside the gradients."""


def enter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return what all ranks have, for each to go on with a part of the model: gradients of their parts add up."""
    return _Enter.apply(x, group)


def leave(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the sum of the results of all ranks, which all go on with."""
    return _Leave.apply(x, group)


def gather(x: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """Return the whole of what each rank has a part of along ``dim``; ranks do different things with it."""
    return _Along.apply(x, dim, group, joined, _own_of_sum)


def scatter(x: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """Return this rank's part along ``dim`` of the sum of the results of all ranks."""
    return _Along.apply(x, dim, group, _own_of_sum, joined)


def join(x: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """Return the whole of what each rank has a part of along ``dim``; all do the same with it."""
    return _Along.apply(x, dim, group, joined, _own)


def part(x: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """Return this rank's part along ``dim`` of what all ranks have."""
    return _Along.apply(x, dim, group, _own, joined)


def exchange(x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    """Return the rows that all ranks send here, of which ``received`` come from each; ``sent`` rows go to each."""
    return _Exchange.apply(x, sent, received, group)


def joined(x: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """Return the parts of all ranks, side by side along ``dim``; without gradient."""
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim)


def add_up(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Replace tensors by their sums over the ranks of a group, many in one message."""
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        flat = flat.to(torch.promote_types(flat.dtype, torch.float32))  # no sum in a narrow format
        dist.all_reduce(flat, group=group)
        for tensor, summed in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
            tensor.copy_(summed.view_as(tensor))


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield tensors of one dtype, in their order, as many as a bucket holds and at least one."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        size = sum(each.numel() for each in bucket) + tensor.numel()
        if bucket and (size > _BUCKET_ELEMENTS or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def _summed(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    found = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(found, group=group)
    return found


def _own(x: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    size = dist.get_world_size(group)
    assert x.shape[dim] % size == 0, f"{size} ranks do not divide dimension {dim} of {tuple(x.shape)}"
    return x.chunk(size, dim)[dist.get_rank(group)].contiguous()


def _own_of_sum(x: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    size = dist.get_world_size(group)
    assert x.shape[dim] % size == 0, f"{size} ranks do not divide dimension {dim} of {tuple(x.shape)}"
    parts = [each.contiguous() for each in x.chunk(size, dim)]
    found = torch.empty_like(parts[0])
    dist.reduce_scatter(found, parts, group=group)
    return found


def _exchanged(x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    found = x.new_empty(sum(received), *x.shape[1:])
    dist.all_to_all_single(found, x.contiguous(), received, sent, group=group)
    return found


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _summed(grads[0], ctx.group), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _summed(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _Along(torch.autograd.Function):
    """A way along a dimension, and the way back that its gradients take."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: dist.ProcessGroup, there: _Way, back: _Way) -> Tensor:
        ctx.dim, ctx.group, ctx.back = dim, group, back
        return there(x, dim, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        return ctx.back(grads[0], ctx.dim, ctx.group), None, None, None, None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchanged(x, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(grads[0], ctx.received, ctx.sent, ctx.group), None, None, None
