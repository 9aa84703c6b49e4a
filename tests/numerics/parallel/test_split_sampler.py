"""A replica of several ranks samples what one process samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.numerics.parallel.ranks import Ranks
from tests.numerics.parallel.sampling import PARAMS, SLOTS, sampled, sampled_alone, sampled_on_mesh
from tests.numerics.parallel.training import Case, seeded_model

from rpeg.errors import ModelError
from rpeg.numerics.parallel.axes import axis_rank, device_mesh
from rpeg.numerics.parallel.split_sampler import SplitSampler
from rpeg.numerics.samples import Sampled, SamplingParams

pytestmark = pytest.mark.multiproc

SPLIT = (("heads", "tp"), ("kv_heads", "tp"), ("ffn", "tp"), ("vocabulary", "tp"))
SPARSE = (*SPLIT[:2], SPLIT[3])
TP2 = Case(axes=(("tp", 2),), split=SPLIT)


def assert_same(ranks: Ranks, case: Case, params: SamplingParams = PARAMS) -> None:
    """Ranks agree bit by bit, and with one process in every token and to 1e-5 in log-probabilities."""
    wanted = sampled_alone(case, params)
    first, *others = ranks.run(sampled_on_mesh, case, params)
    assert all(other == first for other in others)
    assert [(each.ids, each.finished) for each in first] == [(each.ids, each.finished) for each in wanted]
    for found, each in zip(first, wanted, strict=True):
        assert found.logps == pytest.approx(each.logps, abs=1e-5)
    assert len({each.finished for each in first}) == 2  # some ended by themselves and made room, some were cut


@pytest.mark.parametrize("architecture", ["qwen3", "llama", "gemma2"])
def test_two_ranks_sample_what_one_process_samples(two_ranks: Ranks, architecture: str) -> None:
    assert_same(two_ranks, replace(TP2, architecture=architecture))


def test_greedy_answers(two_ranks: Ranks) -> None:
    wanted = sampled_alone(TP2, replace(PARAMS, greedy=True))
    for found in two_ranks.run(sampled_on_mesh, TP2, replace(PARAMS, greedy=True)):
        assert [each.ids for each in found] == [each.ids for each in wanted]


def test_four_ranks_with_two_key_value_heads(four_ranks: Ranks) -> None:
    assert_same(four_ranks, replace(TP2, axes=(("tp", 4),)))


@pytest.mark.parametrize("split", [(*SPARSE, ("experts", "tp")), (*SPARSE, ("expert_ffn", "tp"))])
def test_experts(two_ranks: Ranks, split: tuple[tuple[str, str], ...]) -> None:
    assert_same(two_ranks, replace(TP2, architecture="qwen3_moe", split=split))


def test_a_tied_embedding(two_ranks: Ranks) -> None:
    assert_same(two_ranks, replace(TP2, sizes=(("tie_word_embeddings", True),)))


def _replica_with_its_own_rows() -> list[Sampled]:
    """Sample in two replicas, one of which has twice as many tokens to write."""
    mesh = device_mesh((("dp", 2), ("tp", 2)), torch.device("cpu"))
    sampler = SplitSampler(seeded_model(TP2), mesh, SPLIT, SLOTS, pad_id=0)
    return sampled(sampler, replace(PARAMS, max_new_tokens=PARAMS.max_new_tokens * (1 + axis_rank(mesh, "dp"))))


def test_replicas_do_not_wait_for_each_other(four_ranks: Ranks) -> None:
    found = four_ranks.run(_replica_with_its_own_rows)
    wanted = [sampled_alone(TP2, replace(PARAMS, max_new_tokens=count)) for count in (10, 10, 20, 20)]
    for samples, others in zip(found, wanted, strict=True):
        assert [each.ids for each in samples] == [each.ids for each in others]


def _key_value_heads_held() -> list[int]:
    mesh = device_mesh((("tp", 4),), torch.device("cpu"))
    sampler = SplitSampler(seeded_model(TP2), mesh, SPLIT, SLOTS, pad_id=0)
    block, _ = sampler._decoder.prefill([[3, 4, 5]])
    layers: Any = block.layers
    return [layer.keys.shape[1] for layer in layers]


def test_a_rank_caches_its_own_heads(four_ranks: Ranks) -> None:
    assert four_ranks.run(_key_value_heads_held) == [[1, 1]] * 4


def _after_loading() -> tuple[list[Sampled], int]:
    """Return the samples of a model of zeros after it was given weights."""
    mesh = device_mesh((("tp", 2),), torch.device("cpu"))
    weights = {name: each.detach().clone() for name, each in seeded_model(TP2).named_parameters()}
    empty = seeded_model(TP2)
    for parameter in empty.parameters():
        parameter.data.zero_()
    sampler = SplitSampler(empty, mesh, SPLIT, SLOTS, pad_id=0)
    sampler.load(weights, version=3)
    return sampled(sampler), sampler.version


def test_whole_weights_are_loaded(two_ranks: Ranks) -> None:
    wanted = two_ranks.run(sampled_on_mesh, TP2, PARAMS)
    loaded = [[replace(one, versions=[3] * len(one.ids)) for one in each] for each in wanted]
    assert two_ranks.run(_after_loading) == [(each, 3) for each in loaded]


def _after_writing() -> list[Sampled]:
    """Return the samples of a model of zeros whose tiles were written."""
    mesh = device_mesh((("tp", 2),), torch.device("cpu"))
    weights = {name: each.detach() for name, each in seeded_model(TP2).named_parameters()}
    empty = seeded_model(TP2)
    for parameter in empty.parameters():
        parameter.data.zero_()
    sampler = SplitSampler(empty, mesh, SPLIT, SLOTS, pad_id=0)
    for name, tile in sampler.tiles().items():
        tile.values.copy_(weights[name].view(tile.shape)[tuple(slice(*each) for each in tile.box)])
    return sampled(sampler)


def test_weights_are_written_into_tiles(two_ranks: Ranks) -> None:
    assert two_ranks.run(_after_writing) == two_ranks.run(sampled_on_mesh, TP2, PARAMS)


def _refused_weights() -> str:
    mesh = device_mesh((("tp", 2),), torch.device("cpu"))
    sampler = SplitSampler(seeded_model(TP2), mesh, SPLIT, SLOTS, pad_id=0)
    weights = {name: each.detach() for name, each in seeded_model(TP2).named_parameters()}
    weights["model.norm.weight"] = torch.zeros(5)
    weights["lm_head.bias"] = weights.pop("lm_head.weight")
    with pytest.raises(ModelError) as refused:
        sampler.load(weights, version=1)
    return str(refused.value)


def test_weights_that_do_not_fit_are_refused(two_ranks: Ranks) -> None:
    for message in two_ranks.run(_refused_weights):
        assert "lm_head.weight: is missing among the weights" in message
        assert "lm_head.bias: is not in the sampler's model" in message
        assert "model.norm.weight: has shape (5,), but (32,) in the sampler's model" in message


def _refused_split() -> str:
    mesh = device_mesh((("ep", 2),), torch.device("cpu"))
    model = seeded_model(Case("qwen3_moe"))
    with pytest.raises(ModelError) as refused:
        SplitSampler(model, mesh, (("experts", "ep"),), SLOTS, pad_id=0)
    return str(refused.value)


def test_experts_of_ranks_that_sample_different_rows_are_refused(two_ranks: Ranks) -> None:
    for message in two_ranks.run(_refused_split):
        assert "splits weights over ep, whose ranks sample different rows" in message
