"""Over which axes of a mesh the kinds of models that are known can be split, from their configuration alone.

Splits rely on what the modules of a family are called and how they work together, so each family was compared with
itself on one rank before it was written down here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rpeg.shapes.families import ROUTED
from rpeg.shapes.huggingface import language_config
from rpeg.shapes.tensor import LAYERS

__all__ = [
    "LENGTH_DEPENDENT",
    "ROW_AXES",
    "SEQUENCE_LAYERS",
    "SPLIT_FAMILIES",
    "SPLIT_OVER",
    "divided_axes",
    "misplaced_parts",
    "split_axes",
]

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

SPLIT_OVER: Mapping[str, tuple[str, ...]] = {
    LAYERS: ("pp",),
    "experts": ("ep", "tp"),
    **dict.fromkeys(("heads", "kv_heads", "ffn", "shared_ffn", "expert_ffn", "vocabulary"), ("tp",)),
}
"""Over which axes a part of the weights can be split."""


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


def divided_axes(split: Sequence[tuple[str, str]], sizes: Mapping[str, int]) -> list[str]:
    """Return the axes along which ranks hold different parts of the weights, or work on parts of a row.

    Args:
        split: Which part of the weights is split over which axis.
        sizes: By axis.

    >>> divided_axes((("experts", "ep"),), {"dp": 2, "ep": 2, "cp": 2, "tp": 1})
    ['ep', 'cp']
    """
    with_parts = {axis for _, axis in split}
    return [axis for axis, size in sizes.items() if size > 1 and (axis not in ROW_AXES or axis in with_parts)]


def misplaced_parts(split: Sequence[tuple[str, str]], sizes: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield what of a split no family takes, whatever its sizes, and what to do.

    Args:
        split: Which part of the weights is split over which axis.
        sizes: By axis.

    >>> list(misplaced_parts((("heads", "cp"),), {"cp": 2}))[0]
    ('splits heads over cp', 'they can be split over tp')
    """
    used = [(part, axis) for part, axis in split if sizes.get(axis, 1) > 1]
    for part, axis in used:
        if axis not in SPLIT_OVER.get(part, ()):
            remedy = f"they can be split over {' and '.join(SPLIT_OVER[part])}" if part in SPLIT_OVER else _splittable()
            yield f"splits {part} over {axis}", remedy
    heads, kv_heads = ([axis for part, axis in used if part == name] for name in ("heads", "kv_heads"))
    if heads != kv_heads:  # attention would be split in one projection and whole in another
        what = f"splits heads over {heads or 'nothing'} and kv_heads over {kv_heads or 'nothing'}"
        yield what, "split both over the same axis"
    if sizes.get("pp", 1) > 1 and (LAYERS, "pp") not in used:
        yield "splits no layers over pp", "split layers over pp, or leave pp at 1"


def _splittable() -> str:
    return f"what can be split is {', '.join(SPLIT_OVER)}"
