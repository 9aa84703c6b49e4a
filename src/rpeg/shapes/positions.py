"""How long a row may be for a model to read it as it would alone, from its configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

__all__ = ["max_positions"]

_STATED = ("max_position_embeddings", "n_positions")
_ROTARY = ("rope_parameters", "rope_scaling")
_ORIGINAL = "original_max_position_embeddings"
_LONG = "long_factor"
"""What longrope alone has, by whichever name."""


def max_positions(config: Mapping[str, Any]) -> int | None:
    """Return the longest row, prompt and response together, that a language model is used with; None: any length.

    That is what its configuration states, but for longrope: transformers reads all rows of a pass with other
    frequencies as soon as one of them is longer than those the model was first trained on, so samples, scores and
    gradients would depend on the rows beside them. Up to that length they do not. (Frequencies of ``dynamic`` change
    beyond what the configuration states, so nothing has to be taken off.)

    Args:
        config: of the language model, as a ``config.json`` has it.

    >>> rope = {"rope_type": "longrope", "long_factor": [1.0], "original_max_position_embeddings": 4096}
    >>> max_positions({"max_position_embeddings": 131072, "rope_parameters": rope})
    4096
    """
    stated = [size for name in _STATED if isinstance(size := config.get(name), int)][:1]
    return min([*stated, *_originals(config)], default=None)


def _originals(config: Mapping[str, Any]) -> Iterator[int]:
    """Yield the lengths from which on a kind of layers would be given other frequencies."""
    for name in _ROTARY:
        rotary = config.get(name)
        if not isinstance(rotary, dict):
            continue
        flat = cast("dict[str, Any]", rotary)
        nested = [cast("dict[str, Any]", each) for each in flat.values() if isinstance(each, dict)]
        for each in (flat, *nested):
            original = config.get(_ORIGINAL) or each.get(_ORIGINAL)
            if each.get(_LONG) and isinstance(original, int):
                yield original
