"""Experts on several ranks train as they do on one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.numerics.parallel.ranks import Ranks
from tests.numerics.parallel.training import TEMPERATURE, Case, assert_same, seeded_model

from rpeg.errors import ModelError
from rpeg.numerics.parallel.axes import device_mesh
from rpeg.numerics.parallel.sharded import Passing, ShardedModel

pytestmark = pytest.mark.multiproc

ATTENTION, FFN, VOCABULARY = (("heads", "tp"), ("kv_heads", "tp")), (("ffn", "tp"),), (("vocabulary", "tp"),)
TP = ATTENTION + VOCABULARY
EP = (("experts", "ep"),)
MOE = Case("qwen3_moe", optimizer="sgd")
SHARED = (("shared_expert_intermediate_size", 24),)


def test_experts_of_ranks_with_different_rows(two_ranks: Ranks) -> None:
    assert_same(two_ranks.run, replace(MOE, axes=(("ep", 2),), split=EP))


@pytest.mark.parametrize(
    ("axes", "split", "zero"),
    [
        ((("ep", 4),), EP, 0),
        ((("dp", 2), ("ep", 2)), EP, 0),
        ((("dp", 2), ("ep", 2)), EP, 3),
        ((("ep", 2), ("tp", 2)), TP + EP, 0),
        ((("ep", 2), ("tp", 2)), (*TP, *EP, ("experts", "tp")), 0),
        ((("ep", 2), ("tp", 2)), (*TP, ("experts", "tp"), *EP), 0),
        ((("dp", 2), ("tp", 2)), (*TP, ("experts", "tp")), 3),
        ((("dp", 2), ("tp", 2)), (*TP, ("expert_ffn", "tp")), 3),
    ],
)
def test_experts_with_other_axes(
    four_ranks: Ranks, axes: tuple[tuple[str, int], ...], split: tuple[tuple[str, str], ...], zero: int
) -> None:
    assert_same(four_ranks.run, replace(MOE, axes=axes, split=split, zero=zero))


@pytest.mark.parametrize("is_sequence_parallel", [False, True])
@pytest.mark.parametrize("part", ["experts", "expert_ffn"])
def test_experts_of_ranks_with_the_same_rows(two_ranks: Ranks, part: str, is_sequence_parallel: bool) -> None:
    case = replace(MOE, axes=(("tp", 2),), split=(*TP, (part, "tp")))
    assert_same(two_ranks.run, replace(case, is_sequence_parallel=is_sequence_parallel))


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [
        ("mixtral", (("num_local_experts", 4),)),
        ("qwen2_moe", SHARED),
        ("qwen3_moe", (("mlp_only_layers", [0]),)),
    ],
)
@pytest.mark.parametrize("is_sequence_parallel", [False, True])
def test_other_mixtures(
    two_ranks: Ranks, architecture: str, sizes: tuple[tuple[str, Any], ...], is_sequence_parallel: bool
) -> None:
    split = (*TP, ("experts", "tp"), *((("shared_ffn", "tp"),) if sizes == SHARED else ()))
    split += FFN if architecture == "qwen3_moe" else ()
    case = replace(MOE, architecture=architecture, sizes=sizes, axes=(("tp", 2),), split=split)
    assert_same(two_ranks.run, replace(case, is_sequence_parallel=is_sequence_parallel))


def _answers_of_one_expert() -> tuple[list[float], bool]:
    """Let all tokens of both ranks choose the last expert; return distances of the answers and of their gradients."""
    mesh = device_mesh((("ep", 2),), torch.device("cpu"))
    whole = seeded_model(MOE).model.layers[0].mlp.experts
    model = ShardedModel(seeded_model(MOE), mesh, EP, 0, Passing(TEMPERATURE)).model
    own = model.model.layers[0].mlp.experts
    draw = torch.Generator().manual_seed(dist.get_rank())
    hidden_ND, weights_N1 = torch.randn(5, 32, generator=draw), torch.rand(5, 1, generator=draw)
    chosen_N1 = torch.full((5, 1), 7)
    results = []
    for experts in (whole, own):
        inputs = [each.clone().requires_grad_() for each in (hidden_ND, weights_N1)]
        answers_ND = experts(inputs[0], chosen_N1, inputs[1])
        answers_ND.sum().backward()
        results.append((answers_ND.detach(), *(each.grad for each in inputs)))
    return [float((a - b).abs().max()) for a, b in zip(*results, strict=True)], bool(own.down_proj.grad.any())


def test_a_rank_whose_experts_nobody_chooses_goes_along(two_ranks: Ranks) -> None:
    for rank, (apart, has_gradient) in enumerate(two_ranks.run(_answers_of_one_expert)):
        assert max(apart) < 1e-5
        assert has_gradient is (rank == 1)


def _refusal(split: tuple[tuple[str, str], ...]) -> str:
    mesh = device_mesh((("ep", 2),), torch.device("cpu"))
    case = replace(MOE, sizes=(("num_experts", 7),))
    with pytest.raises(ModelError) as refused:
        ShardedModel(seeded_model(case), mesh, split, 0, Passing(TEMPERATURE))
    return str(refused.value)


def test_experts_that_do_not_divide_are_refused(two_ranks: Ranks) -> None:
    for message in two_ranks.run(_refusal, EP):
        assert "ep = 2 does not divide 7 experts" in message
