"""Reading ``config.json``: the counts of transformers' own models, and what bad files get."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from rpeg.errors import ModelError
from rpeg.shapes.catalog import shape_of
from rpeg.shapes.families import FAMILIES
from rpeg.shapes.huggingface import read_config
from rpeg.shapes.parameters import num_parameters

_USUAL = {
    "vocab_size": 131, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 6, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 0,
    "eos_token_id": 0,
}  # fmt: skip
_MIXTURE = {
    "moe_intermediate_size": 24, "num_experts": 5, "num_local_experts": 5, "n_routed_experts": 5,
    "num_experts_per_tok": 2, "n_shared_experts": 2, "first_k_dense_replace": 2, "n_group": 1, "topk_group": 1,
    "shared_expert_intermediate_size": 20, "intermediate_size_mlp": 44, "interleave_moe_layer_step": 2,
    "q_lora_rank": 12, "kv_lora_rank": 10, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 10,
    "linear_conv_kernel_dim": 3,
}  # fmt: skip
_GPT2 = {"n_embd": 48, "n_layer": 6, "n_head": 6, "n_positions": 64}
_OWN: Mapping[str, Mapping[str, Any]] = {
    "gpt2": _GPT2,
    "gptj": _GPT2,
    "mpt": {"d_model": 48, "n_layers": 6, "n_heads": 6},
    "bloom": {"n_layer": 6, "n_head": 6},
    "opt": {"ffn_dim": 40, "word_embed_proj_dim": 48},
}
_TINY = [name for name in sorted(FAMILIES) if name in CONFIG_MAPPING]
_SWITCHES = ("attention_bias", "mlp_bias", "use_qk_norm", "tie_word_embeddings", "lm_head_bias", "attention_out_bias")
_LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip


def _tiny(model_type: str, **more: Any) -> Any:
    known = CONFIG_MAPPING[model_type]().to_dict()
    sizes = _USUAL if model_type not in _OWN else {k: v for k, v in _USUAL.items() if k in known and k != "head_dim"}
    sizes = {k: v for k, v in sizes.items() if k != "head_dim" or not FAMILIES[model_type].has_latent}
    mixture = {key: value for key, value in _MIXTURE.items() if key in known}
    return AutoConfig.for_model(model_type, **{**sizes, **mixture, **_OWN.get(model_type, {}), **more})


def _count(config: Any) -> int:
    """Return the parameters of transformers' own model; a tied head is one parameter, corrections are buffers."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    corrections = (each.numel() for name, each in model.named_buffers() if "e_score_correction" in name)
    return sum(each.numel() for each in model.parameters()) + sum(corrections)


@pytest.mark.parametrize("model_type", _TINY)
def test_counts_are_those_of_transformers(model_type: str) -> None:
    config = _tiny(model_type)
    assert num_parameters(read_config(config.to_dict())) == _count(config)


@pytest.mark.parametrize("model_type", _TINY)
def test_counts_with_every_switch_turned(model_type: str) -> None:
    config = _tiny(model_type)
    found = config.to_dict()
    turned = _tiny(model_type, **{key: not found[key] for key in _SWITCHES if isinstance(found.get(key), bool)})
    assert num_parameters(read_config(turned.to_dict())) == _count(turned)


def test_required_families_are_known() -> None:
    assert {
        "llama", "qwen2", "qwen3", "qwen3_moe", "qwen2_moe", "mistral", "mixtral", "gemma", "gemma2", "gemma3_text",
        "deepseek_v2", "deepseek_v3", "gpt_oss", "gpt2", "gpt_neox", "phi3", "mpt", "glm4_moe",
    } <= FAMILIES.keys()  # fmt: skip


def test_a_folder_and_a_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(_LLAMA))
    assert read_config(tmp_path) == read_config(tmp_path / "config.json") == read_config(str(tmp_path))
    assert read_config(tmp_path).name == tmp_path.name
    assert num_parameters(read_config(_LLAMA)) == 8_030_261_248
    assert read_config({**_LLAMA, "_name_or_path": "meta-llama/Llama-3.1-8B"}).name == "meta-llama/Llama-3.1-8B"


def test_the_language_model_of_one_that_sees() -> None:
    text = {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "sliding_window": 1024,
    }  # fmt: skip
    shape = read_config({"model_type": "gemma3", "text_config": text})
    assert num_parameters(shape) == num_parameters(shape_of("Gemma-3-4B"))
    assert (shape.window, shape.global_every, shape.window_layers) == (1024, 6, 29)


@pytest.mark.parametrize(
    ("more", "window", "global_every"),
    [
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, None, 1),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True}, 4096, 0),
        ({"model_type": "mistral", "sliding_window": 4096}, 4096, 0),
        ({"model_type": "mistral", "sliding_window": None}, None, 1),
        ({"model_type": "gpt_oss", "sliding_window": 128, "num_local_experts": 4, "num_experts_per_tok": 2}, 128, 2),
        ({"model_type": "gemma2", "sliding_window": 64, "layer_types": ["full_attention"] * 32}, None, 1),
        ({"model_type": "gemma2", "sliding_window": 64, "layer_types": ["sliding_attention"] * 32}, 64, 0),
        ({"model_type": "gemma3_text", "sliding_window": 64, "sliding_window_pattern": 4}, 64, 4),
    ],
)
def test_windows(more: dict[str, Any], window: int | None, global_every: int) -> None:
    shape = read_config({**_LLAMA, **more})
    assert (shape.window, shape.global_every) == (window, global_every)


def test_kimi_is_read_as_deepseek() -> None:
    given = _tiny("deepseek_v3").to_dict()
    assert num_parameters(read_config({**given, "model_type": "kimi_k2"})) == num_parameters(read_config(given))


def _faults(config: Any) -> list[str]:
    with pytest.raises(ModelError) as caught:
        read_config(config)
    return [str(fault) for fault in caught.value.faults]


def test_all_faults_at_once() -> None:
    bad = {**_LLAMA, "num_hidden_layers": -2, "num_key_value_heads": 5, "vocab_size": "many", "mlp_bias": "no"}
    del bad["intermediate_size"]
    assert _faults(bad) == [
        "num_hidden_layers: is -2; a positive whole number",
        "intermediate_size: is missing; download the configuration again",
        "vocab_size: is 'many'; a positive whole number",
        "num_key_value_heads: are 5, which does not divide 32 heads; a divisor of num_attention_heads",
        "mlp_bias: is 'no'; true or false",
    ]


def test_numbers_that_contradict_each_other() -> None:
    assert _faults({**_LLAMA, "num_attention_heads": 24, "hidden_size": 4000}) == [
        "num_attention_heads: are 24, which does not divide hidden_size 4000; a divisor, or state head_dim"
    ]
    mixture = _tiny("qwen3_moe").to_dict()
    assert _faults({**mixture, "num_experts_per_tok": 9}) == [
        "num_experts_per_tok: is 9, of 5 experts; at most num_local_experts"
    ]
    assert _faults({**mixture, "mlp_only_layers": [3]}) == [
        "mlp_only_layers: names the layers [3]; only the first layers can be without experts here"
    ]
    latent = _tiny("deepseek_v3").to_dict()
    assert _faults({**latent, "first_k_dense_replace": 7, "kv_lora_rank": 0}) == [
        "first_k_dense_replace: is 7, of 6 layers; at most num_hidden_layers",
        "kv_lora_rank: is 0; a positive whole number",
    ]
    windows = _tiny("gemma2").to_dict()
    assert _faults({**windows, "layer_types": ["full_attention"]}) == [
        "layer_types: has 1 entries for 6 layers; one entry per layer"
    ]


def test_experts_that_are_not_counted() -> None:
    mixture = {key: value for key, value in _tiny("mixtral").to_dict().items() if "experts" not in key}
    assert _faults({**mixture, "num_experts_per_tok": 2}) == [
        "num_experts or num_local_experts or n_routed_experts: is missing; state how many experts a layer has"
    ]


def test_model_types_that_are_not_known() -> None:
    (said,) = _faults({**_LLAMA, "model_type": "lama"})
    assert said.startswith("model_type: lama is not known; did you mean llama? known are bloom, ")
    (said,) = _faults({"hidden_size": 4096})
    assert said.startswith("model_type: is missing; known are ")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "does not exist" in _faults(tmp_path / "nowhere")[0]
    (tmp_path / "config.json").write_text("{")
    assert "is not JSON" in _faults(tmp_path)[0]
    (tmp_path / "config.json").write_text("[]")
    assert _faults(tmp_path) == [f"{tmp_path / 'config.json'}: is not a JSON object; download it again"]


def test_the_message_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**_LLAMA, "hidden_size": 0}))
    with pytest.raises(ModelError) as caught:
        read_config(tmp_path)
    assert str(caught.value).splitlines() == [
        f"{tmp_path / 'config.json'}: 1 fault",
        "  1. hidden_size: is 0; a positive whole number",
    ]
