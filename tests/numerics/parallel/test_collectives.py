"""Collectives and their mirrors, with numbers by hand: rank r of two has r + 1."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from tests.numerics.parallel.ranks import Ranks
from torch import Tensor

from rpeg.numerics.parallel import collectives
from rpeg.numerics.parallel.collectives import add_up, enter, exchange, gather, join, leave, part, scatter

pytestmark = pytest.mark.multiproc

Result = tuple[list[float], list[float]]


def _apply(name: str) -> Result:
    """Return the output for ``r + 1`` in every place, and the gradient of the input when that of it is 10 (r + 1)."""
    world, scale = dist.group.WORLD, float(dist.get_rank() + 1)
    assert world is not None
    calls: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
        "enter": (2, lambda x: enter(x, world)),
        "leave": (2, lambda x: leave(x, world)),
        "gather": (1, lambda x: gather(x, 0, world)),
        "scatter": (2, lambda x: scatter(x, 0, world)),
        "join": (1, lambda x: join(x, 0, world)),
        "part": (2, lambda x: part(x, 0, world)),
    }
    size, call = calls[name]
    x = torch.full((size,), scale, requires_grad=True)
    y = call(x)
    y.backward(torch.full_like(y, 10 * scale))
    assert x.grad is not None
    return y.tolist(), x.grad.tolist()


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("enter", ([1, 1], [30, 30]), ([2, 2], [30, 30])),
        ("leave", ([3, 3], [10, 10]), ([3, 3], [20, 20])),
        ("gather", ([1, 2], [30]), ([1, 2], [30])),
        ("scatter", ([3], [10, 20]), ([3], [10, 20])),
        ("join", ([1, 2], [10]), ([1, 2], [20])),
        ("part", ([1], [10, 20]), ([2], [10, 20])),
    ],
)
def test_a_collective_and_its_mirror(two_ranks: Ranks, name: str, first: Result, second: Result) -> None:
    assert two_ranks.run(_apply, name) == [first, second]


def _exchange() -> Result:
    """Rank 0 keeps one row and sends two; rank 1 sends one and keeps none."""
    world = dist.group.WORLD
    assert world is not None
    sent, received, rows = ([1, 2], [1, 1], [1.0, 2.0, 3.0]) if dist.get_rank() == 0 else ([1, 0], [2, 0], [4.0])
    x = torch.tensor(rows, requires_grad=True)
    y = exchange(x, sent, received, world)
    y.backward(10 * y.detach())
    assert x.grad is not None
    return y.tolist(), x.grad.tolist()


def test_rows_travel_there_and_their_gradients_back(two_ranks: Ranks) -> None:
    assert two_ranks.run(_exchange) == [([1.0, 4.0], [10.0, 20.0, 30.0]), ([2.0, 3.0], [40.0])]


def _added(bucket_elements: int) -> list[list[float]]:
    world, rank = dist.group.WORLD, dist.get_rank()
    assert world is not None
    collectives._BUCKET_ELEMENTS = bucket_elements
    tensors = [torch.full((2,), rank + 1.0), torch.full((3,), 10.0), torch.full((1,), 0.5, dtype=torch.float64)]
    add_up(tensors, world)
    collectives._BUCKET_ELEMENTS = 1 << 24
    return [each.tolist() for each in tensors]


@pytest.mark.parametrize("bucket_elements", [1, 4, 100])
def test_sums_do_not_depend_on_the_size_of_messages(two_ranks: Ranks, bucket_elements: int) -> None:
    wanted = [[3.0, 3.0], [20.0, 20.0, 20.0], [1.0]]
    assert two_ranks.run(_added, bucket_elements) == [wanted, wanted]


def _uneven() -> None:
    assert dist.group.WORLD is not None
    part(torch.zeros(3), 0, dist.group.WORLD)


def test_what_does_not_divide_is_a_mistake(two_ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match=r"2 ranks do not divide dimension 0 of \(3,\)"):
        two_ranks.run(_uneven)
