"""Log-probabilities against plain log-softmax, and the model pass that leaves out what is not trained."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rpeg.numerics import logprobs
from rpeg.numerics.aggregation import Counts, Normalise
from rpeg.numerics.logprobs import token_logprobs
from rpeg.numerics.losses import LossInputs, LossSettings, policy_loss
from rpeg.numerics.micro_batches import split
from rpeg.numerics.scores import response_scores

SIZES = {
    "vocab_size": 24,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def response_logprobs(
    model: PreTrainedModel, tokens_BT: Tensor, mask_BT: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies."""
    scores = response_scores(model, tokens_BT, mask_BT, temperature)
    return scores.logps_BT, scores.entropies_BT


def seeded(build: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    return build(config).eval()


@pytest.fixture(scope="module")
def qwen() -> PreTrainedModel:
    return seeded(Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True))


def batch(rows: int = 4, width: int = 12) -> tuple[Tensor, Tensor]:
    tokens_BT = torch.randint(3, 24, (rows, width), generator=torch.Generator().manual_seed(5))
    lengths_B1 = torch.arange(width - rows + 1, width + 1)[:, None]
    slots_T = torch.arange(width)
    return tokens_BT, (slots_T >= 3) & (slots_T < lengths_B1)


def full_logprobs(model: PreTrainedModel, tokens_BT: Tensor, temperature: float) -> Tensor:
    logits_BTV = model(input_ids=tokens_BT, use_cache=False).logits.float() / temperature
    return logits_BTV[:, :-1].log_softmax(-1).gather(-1, tokens_BT[:, 1:, None]).squeeze(-1)


def test_bl_032_temperature_divides_the_logits() -> None:
    logps, entropies = token_logprobs(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), temperature=0.5)
    assert logps.exp().item() == pytest.approx(0.8808, abs=5e-5)
    p = logps.exp().item()
    assert entropies.item() == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p), rel=1e-6)


def test_entropy_of_even_logits_is_log_of_the_vocabulary() -> None:
    _, entropies = token_logprobs(torch.zeros(2, 3, 8), torch.zeros(2, 3, dtype=torch.int64), temperature=1.0)
    assert entropies.shape == (2, 3)
    assert torch.allclose(entropies, torch.full((2, 3), math.log(8)))


def test_impossible_tokens_add_no_nan() -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf]], requires_grad=True)
    logps, entropies = token_logprobs(logits, torch.tensor([1]), temperature=1.0)
    logps.sum().backward()
    assert logps.item() == pytest.approx(-math.log(2))
    assert entropies.item() == pytest.approx(math.log(2))
    assert logits.grad.tolist() == [[-0.5, 0.5, 0.0]]


@pytest.mark.parametrize("chunk_elements", [1, 100, 1 << 24])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradient_equal_autograd(
    monkeypatch: pytest.MonkeyPatch, chunk_elements: int, temperature: float
) -> None:
    monkeypatch.setattr(logprobs, "_CHUNK_ELEMENTS", chunk_elements)
    torch.manual_seed(0)
    ours, plain = (torch.randn(17, 40).mul(3).requires_grad_() for _ in range(2))
    plain.data.copy_(ours.data)
    targets, weights = torch.randint(0, 40, (17,)), torch.randn(17)
    logps, entropies = token_logprobs(ours, targets, temperature)
    (logps * weights).sum().backward()
    table = (plain / temperature).log_softmax(-1)
    expected = table.gather(-1, targets[:, None]).squeeze(-1)
    (expected * weights).sum().backward()
    assert torch.allclose(logps, expected, atol=1e-6)
    assert torch.allclose(entropies, -(table.exp() * table).sum(-1), atol=1e-5)
    assert torch.allclose(ours.grad, plain.grad, atol=1e-6)
    assert not entropies.requires_grad


def test_bl_152_reductions_are_float32_for_bfloat16_logits() -> None:
    torch.manual_seed(0)
    logits = torch.randn(64, 151_936).bfloat16().requires_grad_()
    targets = torch.randint(0, 151_936, (64,))
    logps, _ = token_logprobs(logits, targets, temperature=1.0)
    exact = logits.detach().double().log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1)
    assert logps.dtype == torch.float32
    assert (logps - exact).abs().max() < 1e-4
    logps.sum().backward()
    assert logits.grad.dtype == torch.bfloat16


def test_temperature_zero_is_refused() -> None:
    with pytest.raises(AssertionError, match="temperature 0 is not above 0"):
        token_logprobs(torch.zeros(1, 2), torch.tensor([0]), temperature=0)


def test_bl_011_the_marked_token_is_the_scored_one(qwen: PreTrainedModel) -> None:
    tokens_BT, mask_BT = torch.tensor([[10, 11, 12, 13]]), torch.tensor([[False, False, True, False]])
    logps_BT, entropies_BT = response_logprobs(qwen, tokens_BT, mask_BT, temperature=1.0)
    logits_V = qwen(input_ids=torch.tensor([[10, 11]])).logits[0, -1]
    assert logps_BT[0, 2].item() == pytest.approx(logits_V.log_softmax(-1)[12].item(), abs=1e-5)
    assert logps_BT[0, [0, 1, 3]].tolist() == [0, 0, 0]
    assert entropies_BT[0, [0, 1, 3]].tolist() == [0, 0, 0]


def test_scores_and_gradients_equal_the_full_forward(qwen: PreTrainedModel) -> None:
    tokens_BT, mask_BT = batch()
    gradients = []
    for logps in (
        response_logprobs(qwen, tokens_BT, mask_BT, temperature=0.7)[0][mask_BT],
        full_logprobs(qwen, tokens_BT, temperature=0.7)[mask_BT[:, 1:]],
    ):
        qwen.zero_grad()
        (logps * torch.linspace(-1, 1, len(logps))).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in qwen.parameters()])
    for ours, full in zip(*gradients, strict=True):
        assert torch.allclose(ours, full, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "config"),
    [
        (Gemma2ForCausalLM, Gemma2Config(**SIZES, head_dim=16, final_logit_softcapping=2.0)),
        (CohereForCausalLM, CohereConfig(**SIZES, logit_scale=0.25)),
    ],
)
def test_capped_and_scaled_logits_are_those_of_the_model(
    build: type[PreTrainedModel], config: PretrainedConfig
) -> None:
    model, (tokens_BT, mask_BT) = seeded(build, config), batch()
    with torch.no_grad():
        logps_BT, _ = response_logprobs(model, tokens_BT, mask_BT, temperature=1.0)
        expected_BT = full_logprobs(model, tokens_BT, temperature=1.0)
    assert torch.allclose(logps_BT[:, 1:][mask_BT[:, 1:]], expected_BT[mask_BT[:, 1:]], atol=1e-5)


def test_the_head_sees_trained_tokens_only(qwen: PreTrainedModel) -> None:
    tokens_BT, mask_BT = batch()
    shapes = []
    hook = qwen.lm_head.register_forward_hook(lambda _head, _args, logits: shapes.append(tuple(logits.shape)))
    response_logprobs(qwen, tokens_BT, mask_BT, temperature=1.0)
    qwen(input_ids=tokens_BT)
    hook.remove()
    assert shapes == [(1, int(mask_BT.sum()), 24), (4, 12, 24)]


def test_a_failed_pass_leaves_the_model_as_it_was(qwen: PreTrainedModel) -> None:
    tokens_BT, mask_BT = batch()
    with pytest.raises(IndexError):
        response_logprobs(qwen, tokens_BT + 100, mask_BT, temperature=1.0)
    assert qwen(input_ids=tokens_BT).logits.shape == (4, 12, 24)


def test_nothing_to_train_gives_zeros_and_zero_gradient(qwen: PreTrainedModel) -> None:
    tokens_BT, mask_BT = batch()
    logps_BT, entropies_BT = response_logprobs(qwen, tokens_BT, torch.zeros_like(mask_BT), temperature=1.0)
    qwen.zero_grad()
    logps_BT.sum().backward()
    assert logps_BT.abs().sum() == entropies_BT.sum() == 0
    assert all(parameter.grad.abs().sum() == 0 for parameter in qwen.parameters())


def test_what_the_padding_holds_changes_no_bit(qwen: PreTrainedModel) -> None:
    tokens_BT, mask_BT = batch()
    lengths_B1 = mask_BT.sum(1, keepdim=True) + 3
    other_BT = torch.where(torch.arange(12) < lengths_B1, tokens_BT, 0)
    assert not torch.equal(tokens_BT, other_BT)
    for a, b in zip(*(response_logprobs(qwen, each, mask_BT, 1.0) for each in (tokens_BT, other_BT)), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("padding", [0, 5])
def test_bl_013_bl_154_scores_do_not_depend_on_the_batch(qwen: PreTrainedModel, padding: int) -> None:
    tokens_BT, mask_BT = batch(rows=8)
    together_BT, _ = response_logprobs(qwen, tokens_BT, mask_BT, temperature=1.0)
    for row in range(8):
        tokens_1T = torch.nn.functional.pad(tokens_BT[row : row + 1], (0, padding))
        mask_1T = torch.nn.functional.pad(mask_BT[row : row + 1], (0, padding))
        alone_1T, _ = response_logprobs(qwen, tokens_1T, mask_1T, temperature=1.0)
        assert (alone_1T[0, :12] - together_BT[row]).exp().sub(1).abs().max() < 1e-5


def test_bl_044_bl_153_the_ratio_is_exactly_one_before_the_first_update(qwen: PreTrainedModel) -> None:
    tokens_BT, mask_BT = batch(rows=8)
    reference = seeded(Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=16))
    with torch.no_grad():
        old_BT, _ = response_logprobs(qwen, tokens_BT, mask_BT, temperature=0.9)
        response_logprobs(reference, tokens_BT, mask_BT, temperature=0.9)
    new_BT, _ = response_logprobs(qwen, tokens_BT, mask_BT, temperature=0.9)
    assert new_BT.requires_grad
    assert (new_BT - old_BT).exp().eq(1.0).all()


@pytest.mark.parametrize("normalise", ["token", "sample"])
def test_q1_the_gradient_of_a_model_does_not_depend_on_micro_batches(
    qwen: PreTrainedModel, normalise: Normalise
) -> None:
    rows = [torch.arange(3, 3 + length) for length in (9, 4, 12, 5, 9, 7)]
    masks = [torch.arange(len(row)) >= start for row, start in zip(rows, (3, 2, 4, 3, 1, 6), strict=True)]
    advantages_B1 = torch.tensor([[1.0], [-1.0], [0.5], [2.0], [-0.5], [0.0]])
    settings = LossSettings(0.2, 0.28, 0.0, normalise)
    counts = Counts(sum(int(mask.sum()) for mask in masks), len(rows))
    gradients = []
    for budget_tokens in (1000, 12):
        qwen.zero_grad()
        for batch in split([len(row) for row in rows], budget_tokens, fixed_cost_tokens=1000):
            tokens_BT = pad_sequence([rows[row] for row in batch], batch_first=True)
            mask_BT = pad_sequence([masks[row] for row in batch], batch_first=True)
            logps_BT, entropies_BT = response_logprobs(qwen, tokens_BT, mask_BT, temperature=1.0)
            old_BT = logps_BT.detach()
            inputs = LossInputs(logps_BT, old_BT, old_BT, None, advantages_B1[batch], mask_BT, entropies_BT)
            policy_loss(inputs, settings, counts).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in qwen.parameters()])
    assert max((whole - cut).abs().max() for whole, cut in zip(*gradients, strict=True)) < 1e-6
