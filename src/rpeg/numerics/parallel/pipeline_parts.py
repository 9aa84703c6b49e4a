"""Parts of a decoder: some layers each, with the first of them the embedding, with the last of them norm and head.

A part is a model of the same class with fewer layers. It makes rotary embeddings and masks itself, so that only states
travel between parts.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from rpeg.errors import Fault, ModelError

__all__ = ["Span", "cut", "part_of", "pipeline_faults", "spans", "tied_names", "whole_name"]

_EMBEDDING, _LAYERS, _NORM, _ROTARY = "embed_tokens", "layers", "norm", "rotary_emb"
_KNOWN = frozenset({_EMBEDDING, _LAYERS, _NORM, _ROTARY})
"""What decoders such as Llama, Qwen, Mistral and Gemma consist of, beside their head."""


@dataclass(frozen=True, slots=True)
class Span:
    """The layers of one part."""

    number: int
    of: int
    first: int
    end: int
    """One after the last layer."""

    @property
    def is_first(self) -> bool:
        """Whether the embedding is in this part."""
        return self.number == 0

    @property
    def is_last(self) -> bool:
        """Whether the head is in this part."""
        return self.number == self.of - 1


def spans(layers: int, parts: int) -> list[Span]:
    """Return which layers every part has: equally many, the last parts fewer, as `rpeg.plan.layout.box_of` splits.

    >>> [(span.first, span.end) for span in spans(5, 2)]
    [(0, 3), (3, 5)]
    """
    size = -(-layers // parts)
    found = [Span(n, parts, min(layers, n * size), min(layers, (n + 1) * size)) for n in range(parts)]
    assert all(span.first < span.end for span in found), f"{layers} layers in {parts} parts leave one without any"
    return found


def pipeline_faults(model: PreTrainedModel) -> list[Fault]:
    """Return what keeps a model from being cut into parts."""
    body, where = model.base_model, f"model type {model.config.model_type}"
    if body is model or not isinstance(getattr(body, _LAYERS, None), nn.ModuleList):
        return [Fault(where, "its body is not one list of layers", "split a model such as Qwen3, Llama or Gemma")]
    head = {name for name, module in model.named_children() if module is model.get_output_embeddings()}
    others = sorted({name for name, _ in body.named_children()} - _KNOWN)
    others += sorted({name for name, _ in model.named_children()} - head - {model.base_model_prefix})
    if others:
        text = f"no part of a pipeline is known to hold its {', '.join(others)}"
        return [Fault(where, text, "split it over tp or dp instead of pp")]
    return []


def cut(model: PreTrainedModel, span: Span) -> PreTrainedModel:
    """Return a part of a model, which shares the weights with it. All but the last part are a body without a head.

    Raises:
        ModelError: The model has no parts that are known.
    """
    if faults := pipeline_faults(model):
        raise ModelError("pipeline", faults)
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = span.end - span.first
    for name in ("layer_types", "no_rope_layers"):
        if getattr(config, name, None) is not None:
            setattr(config, name, getattr(model.config, name)[span.first : span.end])
    with torch.device("meta"):
        part = type(model)(config)
    whole: Any = model.base_model
    body: Any = part.base_model
    body.layers = nn.ModuleList(whole.layers[span.first : span.end])
    body.embed_tokens = whole.embed_tokens if span.is_first else None
    body.norm = whole.norm if span.is_last else nn.Identity()
    body.rotary_emb = whole.rotary_emb
    part.set_output_embeddings(model.get_output_embeddings())
    return (part if span.is_last else body).train(model.training)


def tied_names(model: PreTrainedModel) -> dict[str, str]:
    """Return, for names of parameters that share a weight with an earlier name, that name."""
    first: dict[nn.Parameter, str] = {}
    found = {name: first.setdefault(each, name) for name, each in model.named_parameters(remove_duplicate=False)}
    return {name: earlier for name, earlier in found.items() if name != earlier}


def whole_name(name: str, span: Span, prefix: str) -> str:
    """Return the name in the whole model of what is called ``name`` in a part.

    Args:
        name: In the part.
        span: Its layers.
        prefix: What the whole model calls its body.
    """
    path = name if span.is_last else f"{prefix}.{name}"
    layers = f"{prefix}.{_LAYERS}."
    if not path.startswith(layers):
        return path
    number, _, rest = path.removeprefix(layers).partition(".")
    return f"{layers}{int(number) + span.first}.{rest}"


def part_of(name: str, parts: Sequence[Span], prefix: str) -> int:
    """Return the number of the part that a parameter of the whole model is in; the first of them for a tied one."""
    layers = f"{prefix}.{_LAYERS}."
    if name.startswith(layers):
        layer = int(name.removeprefix(layers).partition(".")[0])
        return next(span.number for span in parts if span.first <= layer < span.end)
    return 0 if name.startswith(f"{prefix}.{_EMBEDDING}.") else parts[-1].number
