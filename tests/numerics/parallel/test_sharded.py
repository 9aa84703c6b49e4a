"""Data parallel ranks that hold shares of a model train it as one process does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from tests.numerics.parallel.ranks import Ranks
from tests.numerics.parallel.training import TEMPERATURE, Case, assert_same, batches, loss_of, on_mesh, seeded_model

from rpeg.numerics.parallel.axes import device_mesh
from rpeg.numerics.parallel.parallel_model import Padded
from rpeg.numerics.parallel.sharded import Passing, ShardedModel
from rpeg.numerics.scores import Scores, response_scores

pytestmark = pytest.mark.multiproc

FSDP = Case(zero=3)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_every_zero_level_on_two_ranks(two_ranks: Ranks, zero: int, optimizer: str) -> None:
    assert_same(two_ranks.run, Case(zero=zero, optimizer=optimizer))


@pytest.mark.parametrize("axes", [(("dp", 4),), (("dp", 2), ("ep", 2))])
def test_four_ranks_share_all_or_share_in_pairs(four_ranks: Ranks, axes: tuple[tuple[str, int], ...]) -> None:
    """Of a model without experts ep has copies: sharded over dp, replicated over ep, as hybrid sharding has it."""
    assert_same(four_ranks.run, replace(FSDP, axes=axes, optimizer="sgd"))


def test_ranks_hold_unequal_shares(four_ranks: Ranks) -> None:
    sizes = (("vocab_size", 26), ("intermediate_size", 45))
    assert_same(four_ranks.run, replace(FSDP, axes=(("dp", 4),), sizes=sizes))


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_tied_embedding_has_both_gradients(two_ranks: Ranks, is_chunked: bool) -> None:
    sizes = (("tie_word_embeddings", True),)
    assert_same(two_ranks.run, replace(FSDP, sizes=sizes, is_chunked=is_chunked, optimizer="sgd"))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma2", "phi3", "gpt2"])
def test_other_architectures(two_ranks: Ranks, architecture: str) -> None:
    # Without AdamW, which makes steps of the rounding errors of a gradient that is 0, as GPT-2's biases of keys have.
    assert_same(two_ranks.run, replace(FSDP, architecture=architecture, optimizer="sgd"))


def _norm_of_known_gradients(zero: int) -> tuple[float, float]:
    """Return the norm of gradients of 3 everywhere, and that of one process."""
    model = seeded_model(Case())
    count = sum(parameter.numel() for parameter in model.parameters())
    sharded = ShardedModel(model, device_mesh((("dp", 2),), torch.device("cpu")), (), zero, Passing(TEMPERATURE))
    for parameter in sharded.parameters().values():
        parameter.grad = torch.full_like(parameter, 3.0)
    return sharded.total_norm(), 3.0 * count**0.5


@pytest.mark.parametrize("zero", [0, 3])
def test_the_norm_counts_every_weight_once(two_ranks: Ranks, zero: int) -> None:
    for found, wanted in two_ranks.run(_norm_of_known_gradients, zero):
        assert found == pytest.approx(wanted, rel=1e-6)


def _clipped(zero: int) -> tuple[float, float]:
    """Return the norms before and after all gradients were scaled to half."""
    model = ShardedModel(
        seeded_model(Case()), device_mesh((("dp", 2),), torch.device("cpu")), (), zero, Passing(TEMPERATURE)
    )
    model.backward(batches(0, dist.get_rank(), 2), lambda _, scores: loss_of(scores))
    model.sum_gradients()
    before = model.total_norm()
    for parameter in model.parameters().values():
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)
    return before, model.total_norm()


@pytest.mark.parametrize("zero", [0, 3])
def test_scaling_gradients_scales_what_the_update_sees(two_ranks: Ranks, zero: int) -> None:
    for before, after in two_ranks.run(_clipped, zero):
        assert after == pytest.approx(before / 2, rel=1e-6)


def _without_trained_tokens() -> list[float]:
    """Train on one rank only; the other fills up the number of micro-batches."""
    mesh = device_mesh((("dp", 2),), torch.device("cpu"))
    model = ShardedModel(seeded_model(FSDP), mesh, (), 3, Passing(TEMPERATURE))
    batch = batches(0)[0]
    if dist.get_rank() == 1:
        batch = Padded(batch.tokens_BT, torch.zeros_like(batch.mask_BT))
    model.backward([batch], lambda _, scores: loss_of(scores))
    model.sum_gradients()
    return [model.total_norm(), float(loss_of(model.score([batch])[0]))]


def test_a_micro_batch_without_trained_tokens_adds_nothing(two_ranks: Ranks) -> None:
    model, batch = seeded_model(FSDP), batches(0)[0]
    loss_of(response_scores(model, batch.tokens_BT, batch.mask_BT, TEMPERATURE)).backward()
    wanted = float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
    first, second = two_ranks.run(_without_trained_tokens)
    assert first[0] == second[0] == pytest.approx(wanted, rel=1e-5)
    assert second[1] == 0.0


def _loaded(case: Case) -> float:
    """Return the largest difference between weights that were loaded and those given back."""
    mesh = device_mesh(case.axes, torch.device("cpu"))
    model = ShardedModel(seeded_model(case), mesh, case.split, case.zero, Passing(TEMPERATURE))
    other = seeded_model(replace(case, sizes=(*case.sizes, ("initializer_range", 0.1))))
    wanted = {name: each.detach().clone() for name, each in other.named_parameters()}
    model.load(wanted)
    found = model.weights()
    assert found.keys() == wanted.keys()
    return max(float((found[name] - each).abs().max()) for name, each in wanted.items())


def test_weights_that_are_loaded_are_given_back(two_ranks: Ranks) -> None:
    assert two_ranks.run(_loaded, FSDP) == [0.0, 0.0]


def _kept() -> bool:
    """Return whether weights that were read stay as they were when the model is loaded anew."""
    case = Case(zero=0)
    model = ShardedModel(
        seeded_model(case), device_mesh((("dp", 2),), torch.device("cpu")), (), 0, Passing(TEMPERATURE)
    )
    kept = dict(model.weights())
    model.load({name: torch.zeros_like(each) for name, each in kept.items()})
    return all(bool(each.any()) for each in kept.values())


def test_weights_are_copies(two_ranks: Ranks) -> None:
    assert two_ranks.run(_kept) == [True, True]


def test_the_ranks_of_a_mesh_agree(two_ranks: Ranks) -> None:
    first, second = two_ranks.run(on_mesh, FSDP)
    assert first.losses == second.losses
    assert first.norms == second.norms
    assert all(torch.equal(first.weights[name], each) for name, each in second.weights.items())


def _scores_in(autocast: torch.dtype | None) -> list[Scores]:
    mesh = device_mesh((("dp", 2),), torch.device("cpu"))
    return ShardedModel(seeded_model(FSDP), mesh, (), 3, Passing(TEMPERATURE, autocast)).score(batches(0))


def test_arithmetic_may_be_narrower_than_the_weights(two_ranks: Ranks) -> None:
    model = seeded_model(FSDP)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        wanted = [response_scores(model, b.tokens_BT, b.mask_BT, TEMPERATURE).logps_BT for b in batches(0)]
    for found in two_ranks.run(_scores_in, torch.bfloat16):
        assert all(torch.equal(scores.logps_BT, each) for scores, each in zip(found, wanted, strict=True))


TP = (("heads", "tp"), ("kv_heads", "tp"), ("ffn", "tp"), ("vocabulary", "tp"))
LAYOUTS = [
    Case(axes=(("dp", 4),), zero=3),
    Case(axes=(("dp", 2), ("tp", 2)), split=TP, zero=2),
    Case(axes=(("dp", 2), ("tp", 2)), split=TP, zero=3),
    Case(axes=(("tp", 4),), split=TP),
    Case("qwen3_moe", axes=(("ep", 2), ("tp", 2)), split=(*TP[:2], ("experts", "ep"), ("expert_ffn", "tp"))),
    Case("qwen3_moe", axes=(("dp", 2), ("ep", 2)), split=(("experts", "ep"),), zero=3),
]


def _tiles_are_boxes(case: Case) -> int:
    """Check every tile against the whole weight, and that together they are all of it; return their elements."""
    whole = {name: each.detach() for name, each in seeded_model(case).named_parameters()}
    mesh = device_mesh(case.axes, torch.device("cpu"))
    model = ShardedModel(seeded_model(case), mesh, case.split, case.zero, Passing(TEMPERATURE))
    found = model.tiles()
    assert found.keys() == whole.keys()
    for name, tile in found.items():
        box = tuple(slice(*each) for each in tile.box)
        assert torch.equal(tile.values, whole[name].view(tile.shape)[box]), name
        covered = torch.zeros(tile.shape)
        covered[box] = 1.0
        dist.all_reduce(covered)
        assert bool((covered > 0).all()), name
    return sum(each.values.numel() for each in found.values())


@pytest.mark.parametrize("case", LAYOUTS)
def test_tiles_lie_where_they_say_and_cover_everything(four_ranks: Ranks, case: Case) -> None:
    held = four_ranks.run(_tiles_are_boxes, case)
    assert max(held) < 0.75 * sum(each.numel() for each in seeded_model(case).parameters())


def _written(case: Case) -> float:
    """Write twice the weights into the tiles; return how far the model's are from that."""
    mesh = device_mesh(case.axes, torch.device("cpu"))
    model = ShardedModel(seeded_model(case), mesh, case.split, case.zero, Passing(TEMPERATURE))
    wanted = {name: 2 * each for name, each in model.weights().items()}
    for tile in model.tiles().values():
        tile.values.mul_(2)
    model.score(batches(0))  # gathers what it has been given
    return max(float((each - wanted[name]).abs().max()) for name, each in model.weights().items())


@pytest.mark.parametrize("case", [case for case in LAYOUTS if case.zero != 2])
def test_what_is_written_into_tiles_is_in_the_model(four_ranks: Ranks, case: Case) -> None:
    assert four_ranks.run(_written, case) == [0.0] * 4
