"""How tokens lie on ranks along cp, and how what is made of them is joined."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from tests.numerics.parallel.ranks import Ranks

from rpeg.numerics.parallel.axes import device_mesh
from rpeg.numerics.parallel.parallel_model import Padded
from rpeg.numerics.parallel.token_runs import TokenRuns, sum_gradients_over

pytestmark = pytest.mark.multiproc
BATCH = Padded(torch.tensor([[10, 11, 12, 13, 14]]), torch.tensor([[False, False, True, True, True]]))


def _run_of_five_tokens() -> tuple[list[int], list[int], list[bool], list[int]]:
    run = TokenRuns(device_mesh((("cp", 2),), torch.device("cpu"))).run(BATCH)
    return run.tokens_BL[0].tolist(), run.positions_1L[0].tolist(), run.slots_BL[0].tolist(), run.targets_N.tolist()


def test_a_token_may_be_predicted_on_the_rank_before_its_own(two_ranks: Ranks) -> None:
    """Five tokens and one of padding: the first rank, which ends with 12, predicts 13."""
    assert two_ranks.run(_run_of_five_tokens) == [
        ([10, 11, 12], [0, 1, 2], [False, True, True], [12, 13]),
        ([13, 14, 0], [3, 4, 5], [True, False, False], [14]),
    ]


def _joined() -> tuple[list[float], list[float]]:
    runs = TokenRuns(device_mesh((("cp", 2),), torch.device("cpu")))
    run = runs.run(BATCH)
    values_N = run.targets_N.float().requires_grad_()
    whole_BT = runs.whole(values_N, run, BATCH)
    (whole_BT * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])).sum().backward()
    assert values_N.grad is not None
    return whole_BT[0].tolist(), values_N.grad.tolist()


def test_all_ranks_have_the_whole_and_each_its_own_gradient(two_ranks: Ranks) -> None:
    whole = [0.0, 0.0, 12.0, 13.0, 14.0]
    assert two_ranks.run(_joined) == [(whole, [3.0, 4.0]), (whole, [5.0])]


def _shape_beside_tp() -> tuple[int, int]:
    return TokenRuns(device_mesh((("cp", 2), ("tp", 2)), torch.device("cpu"))).shape(BATCH)


def test_tensor_parallel_ranks_may_share_the_tokens_of_a_run(four_ranks: Ranks) -> None:
    assert four_ranks.run(_shape_beside_tp) == [(1, 4)] * 4


def _summed() -> list[float]:
    with_gradient, without = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    with_gradient.grad = torch.tensor([1.0, 10.0]) * (dist.get_rank() + 1)
    group = dist.group.WORLD
    assert group is not None
    sum_gradients_over(group, [with_gradient, without])
    assert without.grad is None
    return with_gradient.grad.tolist()


def test_gradients_are_summed_where_there_are_any(two_ranks: Ranks) -> None:
    assert two_ranks.run(_summed) == [[3.0, 30.0]] * 2
