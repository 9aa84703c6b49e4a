"""Scores from parts of a vocabulary equal those from all of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from tests.numerics.parallel.ranks import Ranks
from tests.numerics.parallel.training import TEMPERATURE, Case, batches, seeded_model
from torch import Tensor

from rpeg.numerics.logprobs import logit_sums, token_logprobs
from rpeg.numerics.parallel import split_head
from rpeg.numerics.parallel.axes import device_mesh
from rpeg.numerics.parallel.sharded import Passing, ShardedModel
from rpeg.numerics.scores import Scores, response_scores

pytestmark = pytest.mark.multiproc

SPLIT = (("vocabulary", "tp"),)


def _parts(logits_NV: Tensor, targets_N: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities, entropies and the gradient of this rank's part of the logits."""
    world = dist.group.WORLD
    assert world is not None
    width = logits_NV.shape[1] // dist.get_world_size()
    first = dist.get_rank() * width
    own_NV = logits_NV[:, first : first + width].clone().requires_grad_()
    is_here_N = (targets_N >= first) & (targets_N < first + width)
    local_N = (targets_N - first).masked_fill(~is_here_N, 0)
    logps_N, entropies_N = split_head._joined(*logit_sums(own_NV, local_N, temperature), is_here_N, world)
    (logps_N * torch.arange(1.0, 1 + len(logps_N))).sum().backward()
    assert own_NV.grad is not None
    return logps_N.detach(), entropies_N, own_NV.grad


def _whole(logits_NV: Tensor, targets_N: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    leaf_NV = logits_NV.clone().requires_grad_()
    logps_N, entropies_N = token_logprobs(leaf_NV, targets_N, temperature)
    (logps_N * torch.arange(1.0, 1 + len(logps_N))).sum().backward()
    assert leaf_NV.grad is not None
    return logps_N.detach(), entropies_N, leaf_NV.grad


def ordinary() -> Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(0)) * 3


def one_part_is_impossible() -> Tensor:
    logits_NV = ordinary()
    logits_NV[:, :4] -= 200.0
    return logits_NV


@pytest.mark.parametrize("make", [ordinary, one_part_is_impossible])
def test_parts_make_the_whole(two_ranks: Ranks, make: Callable[[], Tensor]) -> None:
    logits_NV, targets_N = make(), torch.tensor([0, 3, 4, 7, 5, 1])
    wanted = _whole(logits_NV, targets_N, 0.7)
    found = two_ranks.run(_parts, logits_NV, targets_N, 0.7)
    for logps_N, entropies_N, _ in found:
        assert torch.allclose(logps_N, wanted[0], atol=1e-5)
        assert torch.allclose(entropies_N, wanted[1], atol=1e-5)
    assert torch.allclose(torch.cat([each[2] for each in found], 1), wanted[2], atol=1e-5)


def test_two_equal_parts_by_hand(two_ranks: Ranks) -> None:
    """Four equal logits: 1/4 each, log 4 nats."""
    for logps_N, entropies_N, grad_NV in two_ranks.run(_parts, torch.zeros(1, 4), torch.tensor([2]), 1.0):
        assert logps_N.tolist() == pytest.approx([-1.3862944])
        assert entropies_N.tolist() == pytest.approx([1.3862944])
        assert grad_NV.tolist() in ([[-0.25, -0.25]], [[0.75, -0.25]])


def _scored(case: Case) -> list[Scores]:
    mesh = device_mesh((("tp", 2),), torch.device("cpu"))
    return ShardedModel(seeded_model(case), mesh, SPLIT, 0, Passing(TEMPERATURE, None, case.is_chunked)).score(
        batches(0)
    )


@pytest.mark.parametrize("case", [Case(), Case(is_chunked=True), Case("gemma2")])
def test_entropies_and_capped_logits(two_ranks: Ranks, case: Case) -> None:
    model = seeded_model(case)
    with torch.no_grad():
        wanted = [response_scores(model, each.tokens_BT, each.mask_BT, TEMPERATURE) for each in batches(0)]
    for found in two_ranks.run(_scored, case):
        for a, b in zip(found, wanted, strict=True):
            assert torch.allclose(a.logps_BT, b.logps_BT, atol=1e-4)
            assert torch.allclose(a.entropies_BT, b.entropies_BT, atol=1e-4)
