"""How families of models write down their sizes in ``config.json``, and what all models of a family have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rpeg.shapes.model import Norm

__all__ = ["FAMILIES", "ROUTED", "SIZES", "Family", "Mixture"]

SIZES: Mapping[str, str] = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "ffn": "intermediate_size",
    "vocabulary": "vocab_size",
    "max_positions": "max_position_embeddings",
}
"""The usual keys of the sizes; a family names only those that it calls otherwise."""
ROUTED = ("num_experts", "num_local_experts", "n_routed_experts")
"""What the number of experts is called; which one depends on who wrote the file, not on the family."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """How a family writes down its experts; a key that is empty does not exist there."""

    ffn: str = "moe_intermediate_size"
    shared_ffn: str = ""
    """Key of the width of all shared experts together."""
    shared_count: str = ""
    """Key of how many shared experts there are, each as wide as a routed one; -1: one, without a key."""
    dense_layers: str = ""
    every: str = ""
    fixed: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """Fields of `Experts` that are the same for the whole family."""


@dataclass(frozen=True, slots=True)
class Family:
    """One ``model_type``."""

    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """Sizes that are called otherwise than in `SIZES`; an empty key: the family has no such setting."""
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of `ModelShape` that are the same for the whole family."""
    usual: Mapping[str, int] = field(default_factory=dict[str, int])
    """Sizes that published files leave out, because they are those of transformers' own class."""
    flags: Mapping[str, tuple[str, bool]] = field(default_factory=dict[str, tuple[str, bool]])
    """Fields of `ModelShape` that a key decides, and what holds where the key is missing."""
    is_tied: bool = False
    """Whether the head is the embedding where ``tie_word_embeddings`` is missing."""
    window: str = ""
    """Key of the window; empty: the family has none."""
    window_switch: str = ""
    """Key that turns the window on."""
    global_every: int = 0
    """One layer in so many sees everything, where ``layer_types`` is missing."""
    positions: str = ""
    """Key of the rows of a learned position embedding."""
    more_positions: int = 0
    """Rows that it has beyond those."""
    mixture: Mixture | None = None
    has_latent: bool = False
    has_linear: bool = False


def _biases(*fields: str, key: str = "attention_bias", usual: bool = False) -> dict[str, tuple[str, bool]]:
    return {f"has_{name}_bias": (key, usual) for name in fields}


_GPT: dict[str, Any] = {"is_gated": False, "norm": Norm.LAYER}
_ALL = {"has_qkv_bias": True, "has_output_bias": True, "has_ffn_bias": True}
_LLAMA = _biases("qkv", "output") | _biases("ffn", key="mlp_bias")
_NO_KEYS = {"kv_heads": "", "head_size": ""}
_GPT2_KEYS = {**_NO_KEYS, "layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "ffn": "n_inner"}
_QWEN: dict[str, Any] = {"window": "sliding_window", "window_switch": "use_sliding_window"}
_QWEN_MIXTURE = Mixture(dense_layers="mlp_only_layers", every="decoder_sparse_step")
_QWEN2_MIXTURE = Mixture(
    shared_ffn="shared_expert_intermediate_size",
    dense_layers="mlp_only_layers",
    every="decoder_sparse_step",
    fixed={"has_shared_gate": True},
)
_QWEN_LINEAR = {"has_qk_norm": True, "has_attention_gate": True}
_DEEPSEEK = Mixture(shared_count="n_shared_experts", dense_layers="first_k_dense_replace")
_DEEPSEEK_V3 = Mixture(
    shared_count="n_shared_experts", dense_layers="first_k_dense_replace", fixed={"has_correction": True}
)
_LATENT = Family({"head_size": ""}, flags=_biases("qkv", "output"), mixture=_DEEPSEEK_V3, has_latent=True)

FAMILIES: Mapping[str, Family] = {
    "bloom": Family(
        {**_NO_KEYS, "layers": "n_layer", "heads": "n_head", "ffn": "", "max_positions": "seq_length"},
        _GPT | _ALL | {"has_embedding_norm": True},
        is_tied=True,
    ),
    "cohere": Family(
        fixed={"norms_per_layer": 1, "is_qk_norm_wide": True},
        flags=_biases("qkv", "output") | {"has_qk_norm": ("use_qk_norm", False)},
        is_tied=True,
    ),
    "deepseek_v2": Family({"head_size": ""}, flags=_LLAMA, mixture=_DEEPSEEK, has_latent=True),
    "deepseek_v3": _LATENT,
    "gemma": Family(flags=_biases("qkv", "output"), is_tied=True),
    "gemma2": Family(
        fixed={"norms_per_layer": 4},
        flags=_biases("qkv", "output"),
        is_tied=True,
        window="sliding_window",
        global_every=2,
    ),
    "gemma3_text": Family(
        fixed={"norms_per_layer": 4, "has_qk_norm": True},
        usual={"heads": 8, "kv_heads": 4, "head_size": 256, "vocabulary": 262208},
        flags=_biases("qkv", "output"),
        is_tied=True,
        window="sliding_window",
        global_every=6,
    ),
    "glm4": Family(fixed={"norms_per_layer": 4}, flags=_biases("qkv", usual=True)),
    "glm4_moe": Family(flags=_biases("qkv") | {"has_qk_norm": ("use_qk_norm", False)}, mixture=_DEEPSEEK_V3),
    "gpt2": Family(_GPT2_KEYS | {"max_positions": "n_positions"}, _GPT | _ALL, is_tied=True, positions="n_positions"),
    "gpt_neox": Family(
        _NO_KEYS,
        _GPT | {"has_ffn_bias": True},
        flags=_biases("qkv", "output", usual=True),
    ),
    "gpt_oss": Family(
        fixed={"has_sinks": True},
        flags=_biases("qkv", "output", usual=True),
        window="sliding_window",
        global_every=2,
        mixture=Mixture("intermediate_size", fixed={"has_bias": True}),
    ),
    "gptj": Family(
        _GPT2_KEYS | {"max_positions": "n_positions"},
        _GPT | {"norms_per_layer": 1, "has_ffn_bias": True, "has_head_bias": True},
    ),
    "kimi_k2": _LATENT,
    "llama": Family(flags=_LLAMA),
    "llama4_text": Family(
        {"ffn": "intermediate_size_mlp"},
        flags=_biases("qkv", "output"),
        window="attention_chunk_size",
        global_every=4,
        mixture=Mixture("intermediate_size", shared_count="-1", every="interleave_moe_layer_step"),
    ),
    "minimax_m2": Family(
        fixed={"has_qk_norm": True, "is_qk_norm_wide": True},
        mixture=Mixture("intermediate_size", fixed={"has_correction": True}),
    ),
    "ministral": Family(window="sliding_window"),
    "mistral": Family(window="sliding_window"),
    "mixtral": Family(window="sliding_window", mixture=Mixture("intermediate_size")),
    "mpt": Family(
        {
            "layers": "n_layers",
            "hidden": "d_model",
            "heads": "n_heads",
            "kv_heads": "",
            "head_size": "",
            "ffn": "",
            "max_positions": "max_seq_len",
        },
        {"is_gated": False},
        is_tied=True,
    ),
    "nemotron": Family(fixed=_GPT, flags=_LLAMA),
    "olmo2": Family(fixed={"has_qk_norm": True, "is_qk_norm_wide": True}, flags=_biases("qkv", "output")),
    "opt": Family(
        {**_NO_KEYS, "ffn": "ffn_dim"},
        _GPT,
        flags=_biases("qkv", "output", "ffn", key="enable_bias", usual=True),
        is_tied=True,
        positions="max_position_embeddings",
        more_positions=2,
    ),
    "phi": Family(fixed=_GPT | _ALL | {"norms_per_layer": 1, "has_head_bias": True}),
    "phi3": Family(window="sliding_window"),
    "phimoe": Family(
        fixed={"norm": Norm.LAYER},
        flags=_biases("qkv", "output") | {"has_head_bias": ("lm_head_bias", False)},
        window="sliding_window",
        mixture=Mixture("intermediate_size"),
    ),
    "qwen2": Family(fixed={"has_qkv_bias": True}, **_QWEN),
    "qwen2_moe": Family(flags=_biases("qkv", key="qkv_bias", usual=True), mixture=_QWEN2_MIXTURE, **_QWEN),
    "qwen3": Family(fixed={"has_qk_norm": True}, flags=_biases("qkv", "output"), **_QWEN),
    "qwen3_moe": Family(fixed={"has_qk_norm": True}, flags=_biases("qkv", "output"), mixture=_QWEN_MIXTURE, **_QWEN),
    "qwen3_next": Family(
        fixed=_QWEN_LINEAR,
        flags=_biases("qkv", "output"),
        mixture=_QWEN2_MIXTURE,
        has_linear=True,
    ),
    "qwen3_5_moe_text": Family(
        fixed=_QWEN_LINEAR, usual={"ffn": 0}, flags=_biases("qkv", "output"), mixture=_QWEN2_MIXTURE, has_linear=True
    ),
    "qwen3_5_text": Family(fixed=_QWEN_LINEAR, flags=_biases("qkv", "output"), has_linear=True),
    "seed_oss": Family(
        flags=_LLAMA | _biases("qkv", usual=True) | _biases("output", key="attention_out_bias"),
    ),
    "smollm3": Family(flags=_LLAMA, is_tied=True, **_QWEN),
    "starcoder2": Family(
        fixed=_GPT,
        flags=_biases("qkv", "output", "ffn", key="use_bias", usual=True),
        is_tied=True,
        window="sliding_window",
    ),
}
"""By ``model_type``."""
