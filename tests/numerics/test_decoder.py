"""Forward passes over left-padded rows against plain ones, and the models that are refused."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rpeg.errors import ModelError
from rpeg.numerics.decoder import Decoder
from rpeg.numerics.kv_cache import KvCache


def tiny(architecture: str, **changes: object) -> PreTrainedModel:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"head_dim": 8, "intermediate_size": 48, "vocab_size": 64, "max_position_embeddings": 64}
    sizes |= {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2} | changes
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.3)
    return model


@pytest.fixture(scope="module", params=["qwen3", "gpt2", "mistral", "eager"])
def model(request):
    if request.param == "eager":
        return tiny("llama", attn_implementation="eager")
    return tiny(request.param, sliding_window=4)


@torch.inference_mode()
def test_prefill_and_decode_equal_plain_forward_passes(model):
    prompts, answers = [[5, 6, 7, 8, 9, 10], [11], [12, 13, 14]], [[20, 21], [22, 23], [24, 25]]
    decoder = Decoder(model, pad_id=0)
    block, outlook = decoder.prefill(prompts)
    cache = KvCache(block, num_slots=5, num_columns=12)
    cache.write(block, torch.arange(3), first_row=0, end=8)
    found = [outlook.logits_BV]
    for column in range(2):
        cache.open(3, begin=2, end=9 + column)
        ids = torch.tensor(answers)[:, column : column + 1]
        found.append(decoder.decode(ids, torch.tensor([0, 5, 3]), 7 + column, cache).logits_BV)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        plain = model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 :]
        assert torch.allclose(torch.stack(found)[:, row], plain, atol=1e-5)


@torch.inference_mode()
def test_the_pad_id_changes_nothing():
    model = tiny("qwen3")
    first, second = (Decoder(model, pad_id).prefill([[5, 6, 7], [8]])[1] for pad_id in (0, 63))
    assert torch.equal(first.logits_BV, second.logits_BV)


@pytest.mark.parametrize(
    ("architecture", "changes", "reason"),
    [
        ("mamba", {}, "its forward takes no position_ids or no key-value cache"),
        ("bert", {}, "it is not a pure decoder"),
        ("qwen3_next", {"num_experts": 2}, "it has layers of type linear_attention"),
        ("falcon", {"alibi": True}, r"its positions \(ALiBi\) follow from the mask"),
    ],
)
def test_models_that_do_not_fit_are_refused(architecture, changes, reason):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **changes))
    with pytest.raises(ModelError, match=f"model type {architecture}: {reason}; use a decoder with full or sliding"):
        Decoder(model, pad_id=0)
