"""Tensor and sequence parallelism train as one process does, alone and with shares of data parallel ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.numerics.parallel.ranks import Ranks
from tests.numerics.parallel.training import (
    TEMPERATURE,
    Case,
    Trained,
    alone,
    assert_same,
    batches,
    on_mesh,
    seeded_model,
)

from rpeg.errors import ModelError
from rpeg.numerics.parallel import sharded
from rpeg.numerics.parallel.axes import device_mesh
from rpeg.numerics.parallel.sharded import Passing, ShardedModel
from rpeg.numerics.scores import Scores, response_scores
from rpeg.shapes.splits import SPLIT_FAMILIES

pytestmark = pytest.mark.multiproc

SPLIT = (("heads", "tp"), ("kv_heads", "tp"), ("ffn", "tp"), ("vocabulary", "tp"))
DENSE = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")
RELATIVES = ("arcee", "ministral", "ministral3", "seed_oss", "smollm3")
TP2 = Case(axes=(("tp", 2),), split=SPLIT, optimizer="sgd")


@pytest.mark.parametrize("is_sequence_parallel", [False, True])
@pytest.mark.parametrize("architecture", DENSE)
def test_every_dense_family(two_ranks: Ranks, architecture: str, is_sequence_parallel: bool) -> None:
    case = replace(TP2, architecture=architecture, is_sequence_parallel=is_sequence_parallel)
    assert_same(two_ranks.run, case)


@pytest.mark.parametrize("architecture", RELATIVES)
def test_their_relatives(two_ranks: Ranks, architecture: str) -> None:
    assert_same(two_ranks.run, replace(TP2, architecture=architecture))


def test_every_family_is_compared() -> None:
    assert {*DENSE, *RELATIVES, "mixtral", "qwen2_moe", "qwen3_moe"} == {
        *SPLIT_FAMILIES
    }  # the last three in test_experts.py


@pytest.mark.parametrize("is_sequence_parallel", [False, True])
def test_fewer_key_value_heads_than_ranks_are_held_by_neighbours(four_ranks: Ranks, is_sequence_parallel: bool) -> None:
    """Four ranks, four heads, two key-value heads: each has its copy, whose gradients belong together."""
    assert_same(four_ranks.run, replace(TP2, axes=(("tp", 4),), is_sequence_parallel=is_sequence_parallel))


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_shares_of_parts(four_ranks: Ranks, zero: int) -> None:
    assert_same(four_ranks.run, replace(TP2, axes=(("dp", 2), ("tp", 2)), zero=zero))


def test_shares_of_parts_with_adamw_and_a_tied_embedding(four_ranks: Ranks) -> None:
    sizes = (("tie_word_embeddings", True),)
    assert_same(four_ranks.run, replace(TP2, axes=(("dp", 2), ("tp", 2)), zero=3, sizes=sizes, optimizer="adamw"))


@pytest.mark.parametrize("split", [SPLIT[:2], SPLIT[2:3], SPLIT[3:]])
@pytest.mark.parametrize("is_sequence_parallel", [False, True])
def test_some_parts_may_stay_whole(
    two_ranks: Ranks, split: tuple[tuple[str, str], ...], is_sequence_parallel: bool
) -> None:
    assert_same(two_ranks.run, replace(TP2, split=split, is_sequence_parallel=is_sequence_parallel))


def test_biases_of_the_last_layers_of_blocks_are_added_once(two_ranks: Ranks) -> None:
    sizes = (("attention_bias", True), ("mlp_bias", True))
    for is_sequence_parallel in (False, True):
        case = replace(TP2, architecture="llama", sizes=sizes, is_sequence_parallel=is_sequence_parallel)
        assert_same(two_ranks.run, case)


def _on_mesh_without_sums(case: Case) -> Trained:
    """Train like `on_mesh`, but leave the gradients of what is whole on every rank as they are."""
    original = sharded.partial
    sharded.partial = lambda *_: set()
    try:
        return on_mesh(case)
    finally:
        sharded.partial = original


def test_norms_of_queries_and_keys_need_the_gradients_of_all_heads(two_ranks: Ranks) -> None:
    """They act on each rank's own heads: without a sum over ranks an update is visibly wrong; Llama has none."""
    case = replace(TP2, is_sequence_parallel=False)
    wanted, found = alone(case), two_ranks.run(_on_mesh_without_sums, case)[0]
    wrong = {name for name, each in wanted.weights.items() if float((found.weights[name] - each).abs().max()) > 1e-5}
    norms = {f"model.layers.{layer}.self_attn.{kind}_norm.weight" for layer in (0, 1) for kind in "qk"}
    assert norms & wrong
    llama = replace(case, architecture="llama")
    assert two_ranks.run(_on_mesh_without_sums, llama)[0].norms == pytest.approx(alone(llama).norms, rel=1e-5)


def _held(case: Case) -> dict[str, tuple[int, ...]]:
    mesh = device_mesh(case.axes, torch.device("cpu"))
    model = ShardedModel(seeded_model(case), mesh, case.split, case.zero, Passing(TEMPERATURE))
    return {name: tuple(each.values.shape) for name, each in model.tiles().items()}


def test_a_rank_holds_its_part_only(four_ranks: Ranks) -> None:
    case = replace(TP2, axes=(("dp", 2), ("tp", 2)), zero=3)
    for held in four_ranks.run(_held, case):
        assert held["model.layers.0.self_attn.q_proj.weight"] == (8, 32)  # 4 heads of 8, by 2, then by 2
        assert held["model.layers.0.self_attn.k_proj.weight"] == (4, 32)
        assert held["model.layers.0.self_attn.o_proj.weight"] == (16, 16)
        assert held["model.layers.1.mlp.down_proj.weight"] == (16, 24)
        assert held["model.embed_tokens.weight"] == (6, 32)
        assert held["model.norm.weight"] == (16,)


def _refusal(case: Case) -> str:
    with pytest.raises(ModelError) as refused:
        _held(case)
    return str(refused.value)


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (
            {"sizes": (("vocab_size", 25), ("intermediate_size", 45))},
            ["tp = 2 does not divide 45 ffn", "tp = 2 does not divide 25 vocabulary"],
        ),
        (
            {"sizes": (("num_attention_heads", 3), ("num_key_value_heads", 3))},
            ["tp = 2 does not divide 3 heads", "tp = 2 does not divide 3 kv_heads"],
        ),
        ({"split": SPLIT[:1]}, ["splits heads over ['tp'] and kv_heads over nothing", "split both over the same axis"]),
        ({"split": (("experts", "tp"),)}, ["splits experts, of which qwen3 has none"]),
        ({"axes": (("cp", 2),), "split": (("ffn", "cp"),)}, ["splits ffn over cp"]),
        ({"architecture": "phi3"}, ["no split of phi3 over tp is known", "zero 3 over dp splits any model"]),
    ],
)
def test_what_cannot_be_split_is_refused_with_all_reasons(
    two_ranks: Ranks, change: dict[str, object], texts: list[str]
) -> None:
    for message in two_ranks.run(_refusal, replace(TP2, **change)):
        assert all(text in message for text in texts), message


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
@pytest.mark.parametrize("sizes", [(), (("tie_word_embeddings", True),)])
def test_logits_in_chunks_of_a_split_vocabulary(
    two_ranks: Ranks, architecture: str, sizes: tuple[tuple[str, object], ...]
) -> None:
    assert_same(two_ranks.run, replace(TP2, architecture=architecture, sizes=sizes, is_chunked=True))


def test_chunks_with_shares_of_parts(four_ranks: Ranks) -> None:
    assert_same(four_ranks.run, replace(TP2, axes=(("dp", 2), ("tp", 2)), zero=3, is_chunked=True))


def _scores_in_bfloat16(case: Case) -> list[Scores]:
    mesh = device_mesh(case.axes, torch.device("cpu"))
    passing = Passing(TEMPERATURE, torch.bfloat16, case.is_chunked, case.is_sequence_parallel)
    return ShardedModel(seeded_model(case), mesh, case.split, 0, passing).score(batches(0))


@pytest.mark.parametrize("case", [TP2, replace(TP2, is_chunked=True), replace(TP2, is_sequence_parallel=False)])
def test_arithmetic_may_be_narrower_than_the_weights(two_ranks: Ranks, case: Case) -> None:
    """Sums of parts are rounded once more, so bfloat16 scores are as near to float32 as those of one process are."""
    model, rows = seeded_model(case), batches(0)
    with torch.no_grad():
        wide = [response_scores(model, b.tokens_BT, b.mask_BT, TEMPERATURE).logps_BT for b in rows]
        with torch.autocast("cpu", torch.bfloat16):
            narrow = [response_scores(model, b.tokens_BT, b.mask_BT, TEMPERATURE).logps_BT for b in rows]
    allowed = max(float((a - b).abs().max()) for a, b in zip(narrow, wide, strict=True))
    for found in two_ranks.run(_scores_in_bfloat16, case):
        apart = max(float((a.logps_BT - b).abs().max()) for a, b in zip(found, wide, strict=True))
        assert 0 < apart < 2 * allowed
