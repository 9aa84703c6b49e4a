"""The catalogue of models, and names as people write them."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.errors import ModelError
from rpeg.shapes.catalog import catalogue, shape_of, sources
from rpeg.shapes.naming import best_match, nearest_names, size_b, words

MEANT = {
    "Qwen/Qwen3-32B": "Qwen3-32B",
    "meta-llama/Llama-3.1-70B-Instruct": "Llama-3.1-70B",
    "deepseek-ai/DeepSeek-V3": "DeepSeek-V3",
    "openai/gpt-oss-120b": "GPT-OSS-120B",
    "LLAMA3_70B": "Llama-3-70B",
    "LLAMA31_405B": "Llama-3.1-405B",
    "LLaMA v3.1 8B": "Llama-3.1-8B",
    "LLaMA 3.1 70B": "Llama-3.1-70B",
    "llama2-70b": "Llama-2-70B",
    "LLaMA 7B": "Llama-2-7B",
    "LLaMA 70B": "Llama-2-70B",
    "llama 69B": "Llama-2-70B",
    "LLAMA2-70B-SFT": "Llama-2-70B",
    "Llama-2-70b-chat-hf": "Llama-2-70B",
    "nvidia/Llama-3.3-70B-Instruct-FP8": "Llama-3.3-70B",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "Llama-4-Scout",
    "LLAMA4 Maverick": "Llama-4-Maverick",
    "CodeLLaMA-34B": "CodeLlama-34B",
    "Qwen3_30B_a3B (tokendrop)": "Qwen3-30B-A3B",
    "Qwen3-Coder-30B-A3B-Instruct": "Qwen3-30B-A3B",
    "QWEN3 235B": "Qwen3-235B-A22B",
    "Qwen3-4B-Instruct-2507": "Qwen3-4B",
    "Qwen/Qwen3-4B-Thinking-2507-FP8": "Qwen3-4B",
    "Qwen3 30B A3B MXFP8": "Qwen3-30B-A3B",
    "Qwen2.5-Math-7B": "Qwen2.5-7B",
    "Qwen2.5-14B-Instruct-1M": "Qwen2.5-14B",
    "/data/models/Qwen2.5-7B-Instruct": "Qwen2.5-7B",
    "QwQ-32B": "Qwen2.5-32B",
    "GPT OSS 120B": "GPT-OSS-120B",
    "GPT_OSS_20B": "GPT-OSS-20B",
    "DeepSeek R1": "DeepSeek-V3",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": "TinyLlama-1.1B",
    "deepseek-ai/deepseek-moe-16b-base": "DeepSeekMoE-16B",
    "DeepSeek-V3-0324": "DeepSeek-V3",
    "DSV3": "DeepSeek-V3",
    "DeepSeek-R1-Distill-Llama-70B": "Llama-3.3-70B",
    "DeepSeek-R1-0528-Qwen3-8B": "Qwen3-8B",
    "R1-Distill-Qwen-7B": "DeepSeek-R1-Distill-Qwen-7B",
    "deepseek-ai/DeepSeek-V2-Lite-Chat": "DeepSeek-V2-Lite",
    "Kimi K2": "Kimi-K2",
    "moonshotai/Kimi-K2-Instruct-0905": "Kimi-K2",
    "GLM 4.5 Air": "GLM-4.5-Air",
    "106B-A12B class": "GLM-4.5-Air",
    "Mixtral 8x7B": "Mixtral-8x7B",
    "mistralai/Mixtral-8x22B-Instruct-v0.1": "Mixtral-8x22B",
    "Mistral-7B-Instruct-v0.3": "Mistral-7B-v0.3",
    "mistralai/Mistral-7B-v0.1": "Mistral-7B",
    "Mistral-Small-24B-Instruct-2501": "Mistral-Small-24B",
    "google/gemma-2-9b-it": "Gemma-2-9B",
    "Phi-3-mini-4k-instruct": "Phi-3-mini",
    "MPT-7b": "MPT-7B",
    "gpt3-175B": "GPT-3-175B",
    "GPT3-20B": "GPT-3-20B",
    "GPT-1.7B": "GPT-1.7B",
    "megatron-22B": "GPT-22B",
    "Nemotron-8B": "Nemotron-3-8B",
    "NEMOTRON4 15B": "Nemotron-4-15B",
    "facebook/opt-6.7b": "OPT-6.7B",
    "bigscience/bloom": "BLOOM-176B",
    "gpt2-xl": "GPT-2-xl",
    "allenai/OLMo-2-1124-7B": "OLMo-2-7B",
}
NOT_MEANT = [
    "Llama-3.1-9B",
    "Qwen4-7B",
    "Llama 5 70B",
    "DeepSeek-R1-Distill-Qwen-3B",
    "Llama-arch 1.34B",
    "8B dense",
    "",
]


@pytest.mark.parametrize(("text", "name"), MEANT.items())
def test_names_as_people_write_them(text: str, name: str) -> None:
    assert shape_of(text).name == name


@pytest.mark.parametrize("name", catalogue())
def test_every_model_is_found_by_its_own_name(name: str) -> None:
    assert shape_of(name).name == name
    assert shape_of(f"org/{name.lower().replace('-', '_')}-instruct").name == name


@pytest.mark.parametrize("text", NOT_MEANT)
def test_another_size_or_version_is_another_model(text: str) -> None:
    with pytest.raises(ModelError, match="is no model of the catalogue"):
        shape_of(text)


def test_the_message_names_the_nearest() -> None:
    with pytest.raises(ModelError) as caught:
        shape_of("Llama-3.1-9B")
    assert str(caught.value) == (
        "model: 1 fault\n  1. Llama-3.1-9B: is no model of the catalogue; did you mean Llama-3.1-8B, "
        "Llama-3.1-70B, Llama-3.1-405B? else give the folder of its config.json"
    )


def test_every_file_has_a_source() -> None:
    assert all(len(source) > 20 for source in sources().values())
    assert len(sources()) > 15


@pytest.mark.parametrize("name", catalogue())
def test_sizes_fit_each_other(name: str) -> None:
    shape = shape_of(name)
    assert shape.heads % shape.kv_heads == 0
    assert shape.latent is None or shape.head_size == shape.latent.nope_size + shape.latent.rope_size
    assert shape.experts is None or shape.experts.active <= shape.experts.count
    stated = size_b(name)
    assert stated is None or shape.note or stated > 0


def test_words() -> None:
    assert words("Mixtral-8x7B-v0.1") == Counter({"mixtral": 1, "8x7b": 1, "0.1": 1})
    assert words("Llama-3.1-8B-W4A16-AWQ") == words("llama 3.1 8b awq")
    assert words("Qwen3-8B [bf16, 4bit]") == words("Qwen3 8B")
    assert size_b("Llama-3.1-405B") == 405
    assert size_b("GPT-1T") == 1000
    assert size_b("SmolLM2-135M") == 0.135


def test_the_longer_match_wins() -> None:
    known = {name: words(name) for name in ("DeepSeek-V2", "DeepSeek-V2-Lite")}
    assert best_match("deepseek v2 lite chat", known) == "DeepSeek-V2-Lite"
    assert best_match("deepseek v2 chat", known) == "DeepSeek-V2"
    assert nearest_names("Qwen3-9B", ["Qwen3-8B", "OPT-13B"]) == ["Qwen3-8B"]


@given(st.text(max_size=30))
def test_no_text_breaks_it(text: str) -> None:
    with suppress(ModelError):
        assert shape_of(text).layers
