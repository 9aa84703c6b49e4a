"""The head in chunks equals the plain one, and models whose head is not plain are told apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
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

from rpeg.numerics import chunked_head
from rpeg.numerics.chunked_head import chunked_logprobs, has_plain_head
from rpeg.numerics.logprobs import token_logprobs
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


def seeded(build: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    return build(config).eval()


def qwen(tied: bool) -> PreTrainedModel:
    return seeded(Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=tied))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    # Five tokens at a time of a vocabulary of 24, so that the last chunk is smaller.
    monkeypatch.setattr(chunked_head, "_CHUNK_ELEMENTS", 5 * 24 + 7)


def batch() -> tuple[Tensor, Tensor]:
    tokens_BT = torch.randint(3, 24, (4, 12), generator=torch.Generator().manual_seed(5))
    slots_T = torch.arange(12)
    return tokens_BT, (slots_T >= 3) & (slots_T < torch.tensor([[9], [10], [11], [12]]))


@pytest.mark.parametrize("has_bias", [False, True])
def test_values_and_gradients_equal_the_plain_ones(has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(*shape, generator=generator) for shape in ((17, 8), (24, 8), (24,))]
    targets = torch.randint(0, 24, (17,), generator=generator)
    weights = torch.randn(17, generator=generator)
    results = []
    for chunked in (False, True):
        hidden, weight, bias = (each.clone().requires_grad_() for each in made)
        used_bias = bias if has_bias else None
        if chunked:
            logps, entropies = chunked_logprobs(hidden, weight, used_bias, targets, 0.7)
        else:
            logits = torch.nn.functional.linear(hidden, weight, used_bias)
            logps, entropies = token_logprobs(logits, targets, 0.7)
        (logps * weights).sum().backward()
        assert not entropies.requires_grad
        gradients = [hidden.grad, weight.grad, *([bias.grad] if has_bias else [])]
        results.append((logps.detach(), entropies, *gradients))
    for plain, ours in zip(*results, strict=True):
        assert torch.allclose(plain, ours, atol=1e-6, rtol=1e-5)


def test_the_gradient_is_that_of_finite_differences() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(24, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([1, 5, 23])
    logps, _ = chunked_logprobs(hidden, weight, None, targets, 1.3)
    logps.sum().backward()
    for tensor in (hidden, weight):
        moved = tensor.detach().clone()
        moved[1, 2] += 1e-2
        back = tensor.detach().clone()
        back[1, 2] -= 1e-2
        ends = [
            chunked_logprobs(*((each, weight) if tensor is hidden else (hidden, each)), None, targets, 1.3)[0].sum()
            for each in (moved, back)
        ]
        assert tensor.grad[1, 2].item() == pytest.approx((ends[0] - ends[1]).item() / 2e-2, rel=1e-3)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_whole_model_has_the_same_scores_and_gradients(tied: bool, autocast: bool) -> None:
    model, (tokens_BT, mask_BT) = qwen(tied), batch()
    results = []
    for chunked in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            scores = response_scores(model, tokens_BT, mask_BT, 0.9, chunked=chunked)
        scores.logps_BT.square().sum().backward()
        gradients = [each.grad.clone() for each in model.parameters()]
        results.append((scores.logps_BT.detach(), scores.entropies_BT, *gradients))
    for plain, ours in zip(*results, strict=True):
        tolerance = 0.02 * float(plain.abs().max()) if autocast else 1e-5 + 1e-6 * float(plain.abs().max())
        assert (plain - ours).abs().max() <= tolerance


def test_no_trained_token_is_no_failure() -> None:
    model, (tokens_BT, mask_BT) = qwen(True), batch()
    scores = response_scores(model, tokens_BT, torch.zeros_like(mask_BT), 1.0, chunked=True)
    scores.logps_BT.sum().backward()
    assert not scores.logps_BT.any()


def test_only_plain_heads_are_chunked() -> None:
    gemma = Gemma2Config(**SIZES, head_dim=16, final_logit_softcapping=30.0)
    uncapped = Gemma2Config(**SIZES, head_dim=16, final_logit_softcapping=None)
    assert has_plain_head(qwen(True))
    assert has_plain_head(seeded(Gemma2ForCausalLM, uncapped))
    assert not has_plain_head(seeded(Gemma2ForCausalLM, gemma))
    assert not has_plain_head(seeded(CohereForCausalLM, CohereConfig(**SIZES, logit_scale=0.25)))


def test_a_head_that_is_not_linear_is_not_plain() -> None:
    model = qwen(False)
    model.set_output_embeddings(torch.nn.Sequential(model.lm_head))
    assert not has_plain_head(model)


def test_states_and_targets_of_other_numbers_are_refused() -> None:
    with pytest.raises(AssertionError, match=r"\(3, 4\) against \(2,\) targets"):
        chunked_logprobs(torch.zeros(3, 4), torch.zeros(5, 4), None, torch.zeros(2, dtype=torch.int64), 1.0)
