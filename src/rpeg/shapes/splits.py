"""Over which axes of a mesh the kinds of models that are known can be split, from their configuration alone.

Splits rely on what the modules of a family are called and how they work together, so each family was compared with
itself on one rank before it was written down here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rpeg.shapes.families import ROUTED
from rpeg.shapes.huggingface import language_config

__all__ = ["LENGTH_DEPENDENT", "ROW_AXES", "SEQUENCE_LAYERS", "SPLIT_FAMILIES", "split_axes"]

SPLIT_FAMILIES = (
    "arcee",
    "gemma",
    "gemma2",
    "gemma3_text",
    "llama",
    "ministral",
    "ministral3",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
)
"""Model types whose heads, feed-forward blocks, experts and layers can be split."""
ROW_AXES = ("dp", "ep")
"""Axes along which ranks are given different rows; along all others they are given the same."""
SEQUENCE_LAYERS = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers that can be split along the sequence."""
LENGTH_DEPENDENT = ("dynamic", "longrope")
"""Kinds of rotary embeddings that depend on the longest position in a pass, which differs from rank to rank."""


def split_axes(config: Mapping[str, Any] | Path | str) -> frozenset[str]:
    """Return the axes over which ranks may hold different parts of the model that a configuration describes.

    Args:
        config: the content of a ``config.json``, or the path of it or of its folder.

    Raises:
        ModelError: when there is no such file.

    >>> sorted(split_axes({"model_type": "qwen3"})), sorted(split_axes({"model_type": "gpt2"}))
    (['cp', 'pp', 'tp'], [])
    """
    _, found = language_config(config)
    if found.get("model_type") not in SPLIT_FAMILIES:
        return frozenset()
    axes = {"tp", "pp"}
    rotary = f"{found.get('rope_parameters')} {found.get('rope_scaling')}"
    has_others = set(found.get("layer_types") or ()) - SEQUENCE_LAYERS
    if not has_others and not any(f"'{kind}'" in rotary for kind in LENGTH_DEPENDENT):
        axes.add("cp")
    if any(found.get(name) for name in ROUTED):
        axes.add("ep")
    return frozenset(axes)
