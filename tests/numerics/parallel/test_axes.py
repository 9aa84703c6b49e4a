"""Process groups along the axes of a mesh."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from tests.numerics.parallel.ranks import Ranks

from rpeg.numerics.parallel.axes import axis_group, axis_rank, axis_size, device_mesh

pytestmark = pytest.mark.multiproc


def _sums_along_axes() -> tuple[int, int, int, int, bool]:
    mesh = device_mesh((("dp", 2), ("pp", 1), ("tp", 2)), torch.device("cpu"))
    value = torch.tensor(float(10 ** dist.get_rank()))
    sums = []
    for axis in ("dp", "tp"):
        summed = value.clone()
        dist.all_reduce(summed, group=axis_group(mesh, axis))
        sums.append(int(summed))
    return *sums, axis_rank(mesh, "dp"), axis_rank(mesh, "tp"), axis_group(mesh, "pp") is None


def test_the_last_axis_runs_over_neighbours(four_ranks: Ranks) -> None:
    # dp pairs ranks 0,2 and 1,3; tp pairs 0,1 and 2,3: rank r adds 10**r.
    assert four_ranks.run(_sums_along_axes) == [
        (101, 11, 0, 0, True),
        (1010, 11, 0, 1, True),
        (101, 1100, 1, 0, True),
        (1010, 1100, 1, 1, True),
    ]


def _size_of_a_mesh_elsewhere() -> tuple[int, int] | None:
    mesh = device_mesh((("dp", 2),), torch.device("cpu"), ranks=(1, 3))
    outside = mesh.get_coordinate() is None
    return None if outside else (axis_size(mesh, "dp"), axis_rank(mesh, "dp"))


def test_a_mesh_is_made_of_any_ranks(four_ranks: Ranks) -> None:
    assert four_ranks.run(_size_of_a_mesh_elsewhere) == [None, (2, 0), None, (2, 1)]


def test_ranks_in_another_order_than_torch_keeps_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match=r"\[1, 0\] are not in ascending order"):
        device_mesh((("dp", 2),), torch.device("cpu"), ranks=(1, 0))


def _fails_on_rank_one() -> None:
    assert dist.get_rank() != 1, "this is rank one"


def test_what_a_rank_raises_is_told_and_the_world_starts_anew(two_ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match=r"(?s)rank 1.*this is rank one"):
        two_ranks.run(_fails_on_rank_one)
    assert two_ranks.run(dist.get_rank) == [0, 1]
