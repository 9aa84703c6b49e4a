"""Pipelines on two and four ranks against one process: losses, scores, gradients, norms, weights after three steps."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.numerics.parallel.cases import TEMPERATURE, TOKENIZER, Off, batches, loss_of, pipeline_case, spec
from tests.numerics.parallel.plain import Plain
from tests.numerics.parallel.ranks import Ranks
from transformers import PreTrainedModel

from rpeg.numerics.model import scratch_model
from rpeg.numerics.parallel.axes import axis_rank, device_mesh
from rpeg.numerics.parallel.pipeline import PipelineModel
from rpeg.numerics.parallel.pipeline_order import Schedule
from rpeg.numerics.parallel.sharded import Passing
from rpeg.numerics.scores import response_scores

pytestmark = pytest.mark.multiproc
SCHEDULES: list[Schedule] = ["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"]
TOLERANCE = 1e-5


def assert_equal(found: list[Off], last: list[int]) -> None:
    """All is equal to the single process, and only the ranks of the last stage saw losses: 3 + 2 + 4 of them."""
    assert [each.num_losses for each in found] == [9 if rank in last else 0 for rank in range(len(found))]
    assert max(each.worst for each in found) < TOLERANCE, found
    assert len({each.digest for each in found}) == 1, found


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_on_two_ranks(two_ranks: Ranks, schedule: Schedule) -> None:
    """Five layers on two stages, tied embeddings, key-value heads shared, other lengths within and between firings."""
    assert_equal(two_ranks.run(pipeline_case, schedule, (("pp", 2),)), last=[1])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_on_four_ranks(four_ranks: Ranks, schedule: Schedule) -> None:
    model = {} if schedule == "interleaved_1f1b" else {"layers": 7}
    assert_equal(four_ranks.run(partial(pipeline_case, schedule, (("pp", 4),), **model)), last=[3])


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral", "gemma", "gemma2", "gemma3_text", "qwen3_moe"])
def test_families(two_ranks: Ranks, family: str) -> None:
    assert_equal(two_ranks.run(partial(pipeline_case, "1f1b", (("pp", 2),), architecture=family)), last=[1])


def test_an_untied_head_lies_with_the_last_stage(two_ranks: Ranks) -> None:
    found = two_ranks.run(partial(pipeline_case, "1f1b", (("pp", 2),), architecture="llama", tie_embeddings=False))
    assert_equal(found, last=[1])


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved_1f1b"])
def test_beside_data_parallel_ranks(four_ranks: Ranks, schedule: Schedule, zero: int) -> None:
    """Copies (ZeRO 0) or shares (FSDP2) of every stage on two ranks, which see other rows."""
    assert_equal(four_ranks.run(pipeline_case, schedule, (("pp", 2), ("dp", 2)), zero), last=[2, 3])


def test_zero_bubble_beside_copies(four_ranks: Ranks) -> None:
    assert_equal(four_ranks.run(pipeline_case, "zero_bubble", (("dp", 2), ("pp", 2))), last=[1, 3])


def _pipeline(
    whole: PreTrainedModel, schedule: Schedule = "1f1b", autocast: torch.dtype | None = None
) -> PipelineModel:
    mesh = device_mesh((("pp", 2),), torch.device("cpu"))
    return PipelineModel(whole, mesh, Plain, schedule, Passing(TEMPERATURE, autocast))


def _ends_after_each_step() -> list[bytes]:
    """Ranks begin with different embeddings on purpose: the first one's count."""
    whole = scratch_model(spec(), TOKENIZER, seed=0)
    rank = axis_rank(device_mesh((("pp", 2),), torch.device("cpu")), "pp")
    with torch.no_grad():
        whole.model.embed_tokens.weight.add_(rank)
    model = _pipeline(whole)
    mine = model.parameters()["model.embed_tokens.weight"]
    optimizer = torch.optim.AdamW(model.parameters().values(), lr=0.01)
    found = [mine.detach().numpy().tobytes()]
    for step in range(3):
        given = batches(step, 0)
        model.backward(given, lambda i, scores, given=given: loss_of(given[i], scores))
        model.sum_gradients()
        optimizer.step()
        optimizer.zero_grad()
        found.append(mine.detach().numpy().tobytes())
    return found


def test_bl_122_copies_of_a_tied_embedding_are_equal_bit_for_bit_after_every_step(two_ranks: Ranks) -> None:
    first, last = two_ranks.run(_ends_after_each_step)
    assert first == last
    assert len(set(first)) == 4


def _gradient_of_lengths_8_and_12(schedule: Schedule) -> float:
    single, whole = (scratch_model(spec(layers=4), TOKENIZER, seed=0) for _ in range(2))
    given = batches(0, 0, (((2, 8), (2, 12)),))
    for batch in given:
        loss_of(batch, response_scores(single, batch.tokens_BT, batch.mask_BT, TEMPERATURE)).backward()
    model = _pipeline(whole, schedule)
    for batch in given:  # two firings, too: gradients of the first are kept
        model.backward([batch], lambda _, scores, batch=batch: loss_of(batch, scores))
    apart = {name: each.grad.clone() for name, each in model.parameters().items() if each.grad is not None}
    for each in model.parameters().values():
        each.grad = None
    model.backward(given, lambda i, scores: loss_of(given[i], scores))
    tied = "model.embed_tokens.weight"  # summed over the ends only before the update
    expected = {name: each.grad for name, each in single.named_parameters() if name != tied}
    mine = {name: each.grad for name, each in model.parameters().items() if name != tied}
    return max(
        max((mine[name] - expected[name]).abs().max().item(), (apart[name] - expected[name]).abs().max().item())
        for name in mine
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bl_123_micro_batches_of_lengths_8_and_12_both_train(two_ranks: Ranks, schedule: Schedule) -> None:
    assert max(two_ranks.run(_gradient_of_lengths_8_and_12, schedule)) < TOLERANCE


def _weights_taken_over() -> tuple[bool, bool]:
    other = {name: each.detach() for name, each in scratch_model(spec(), TOKENIZER, seed=7).named_parameters()}
    model = _pipeline(scratch_model(spec(), TOKENIZER, seed=0))
    before = model.weights()
    model.load(other)
    after = model.weights()
    embedding = "model.embed_tokens.weight"
    return (
        list(after) == list(other) and all(torch.equal(after[name], other[name]) for name in other),
        torch.equal(before[embedding], other[embedding]),
    )


def test_whole_weights_are_taken_over_and_given_back(two_ranks: Ranks) -> None:
    assert two_ranks.run(_weights_taken_over) == [(True, False)] * 2


def _scores_in_bfloat16() -> float:
    single, whole = (scratch_model(spec(), TOKENIZER, seed=0) for _ in range(2))
    given, model = batches(0, 0), _pipeline(whole, autocast=torch.bfloat16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = [response_scores(single, batch.tokens_BT, batch.mask_BT, TEMPERATURE) for batch in given]
        plain = [batch.logps_BT for batch in expected]
    exact = response_scores(single, given[0].tokens_BT, given[0].mask_BT, TEMPERATURE).logps_BT
    assert not torch.allclose(exact, plain[0], atol=1e-5), "bfloat16 makes a difference"
    return max((a - b.logps_BT).abs().max().item() for a, b in zip(plain, model.score(given), strict=True))


def test_arithmetic_may_be_narrow_and_states_travel_as_they_are(two_ranks: Ranks) -> None:
    assert max(two_ranks.run(_scores_in_bfloat16)) == 0.0


def _nothing_to_do() -> tuple[int, float]:
    model = _pipeline(scratch_model(spec(), TOKENIZER, seed=0))
    model.backward([], lambda _, scores: scores.logps_BT.sum())
    model.sum_gradients()
    return len(model.score([])), model.total_norm()


def test_no_micro_batches_are_no_gradient(two_ranks: Ranks) -> None:
    assert two_ranks.run(_nothing_to_do) == [(0, 0.0)] * 2


def _first_stage_frozen() -> tuple[int, float]:
    single, whole = (scratch_model(spec(tie_embeddings=False), TOKENIZER, seed=0) for _ in range(2))
    for each in (single, whole):
        for module in (each.model.embed_tokens, *each.model.layers[:3]):
            module.requires_grad_(False)
    given, model = batches(0, 0), _pipeline(whole)
    for batch in given:
        loss_of(batch, response_scores(single, batch.tokens_BT, batch.mask_BT, TEMPERATURE)).backward()
    model.backward(given, lambda i, scores: loss_of(given[i], scores))
    model.sum_gradients()
    mine = {name: each.grad for name, each in model.parameters().items() if each.grad is not None}
    expected = {name: each.grad for name, each in single.named_parameters() if name in mine}
    return len(mine), max([0.0, *((mine[name] - expected[name]).abs().max().item() for name in mine)])


def test_a_stage_may_train_nothing(two_ranks: Ranks) -> None:
    (none, _), (some, difference) = two_ranks.run(_first_stage_frozen)
    assert none == 0
    assert some == 2 * 11 + 2  # of two layers of Qwen3, norm and head
    assert difference < TOLERANCE


def test_a_mesh_without_stages_is_a_mistake(two_ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match=r"no pipeline along \('dp',\) of \(2,\)"):
        two_ranks.run(_without_stages)


def _without_stages() -> None:
    mesh = device_mesh((("dp", 2),), torch.device("cpu"))
    PipelineModel(scratch_model(spec(), TOKENIZER, seed=0), mesh, Plain, "1f1b", Passing(TEMPERATURE))
