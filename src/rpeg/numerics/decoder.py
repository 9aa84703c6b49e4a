"""Forward passes of a Hugging Face decoder over left-padded rows: prefill a block of prompts, decode one more column.

The name of the cache's keyword, the mask a model takes, and whether it can be decoded this way at all, are read from
the model once, so that the sampler knows nothing about architectures. With a value head the same pass says what the
newest state is worth; layers that the head has of its own keep their keys and values behind those of the model.

Shapes: B rows, P prompts, L columns of the input, W columns of the window, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedConfig, PreTrainedModel

from rpeg.errors import Fault, ModelError
from rpeg.numerics.head_input import newest_head_input
from rpeg.numerics.kv_cache import KvCache
from rpeg.numerics.value_head import ValueHead, recorded_upper_layers
from rpeg.shapes.positions import max_positions

__all__ = ["Decoder", "Outlook"]

_ATTENTION_LAYERS = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a pass says of the newest state of every row."""

    logits_BV: Tensor
    """Of the token that comes next."""
    values_B: Tensor | None
    """What is to be expected; None without a value head."""

    def of(self, picks_B: Tensor) -> Outlook:
        """Return that of the rows ``picks_B``."""
        values_B = None if self.values_B is None else self.values_B.index_select(0, picks_B)
        return Outlook(self.logits_BV.index_select(0, picks_B), values_B)


class Decoder:
    """A causal Hugging Face model whose rows are told apart by mask and positions, not by their place in the batch.

    Encoders, recurrent state, chunked attention and ALiBi do not fit and are refused with a `ModelError`.
    """

    def __init__(self, model: PreTrainedModel, pad_id: int, head: ValueHead | None = None) -> None:
        """Read the model's signature and configuration; ``pad_id`` fills the left of a block and changes nothing.

        The layers that a ``head`` on this model has of its own get other numbers, by which a cache knows them.
        """
        config, accepted = model.config.get_text_config(decoder=True), inspect.signature(model.forward).parameters
        _refuse_unsupported(config, accepted)
        self.model, self.pad_id, self.head = model, pad_id, head
        if head is not None:
            _number_upper_layers(head, config.num_hidden_layers)
        self.vocabulary: int = config.vocab_size
        self.max_positions = max_positions(config.to_dict())
        # transformers 5.24 renamed the keyword and warns about the old one.
        self._cache_keyword = "cache" if "cache" in accepted else "past_key_values"
        self._options = {"use_cache": True} | ({"logits_to_keep": 1} if "logits_to_keep" in accepted else {})
        # A ready mask saves the model's own mask building at every token, but it is boolean and one for all layers:
        # eager attention would add it to the scores, and sliding layers need another one.
        self._takes_ready_mask = config._attn_implementation == "sdpa" and not _has_sliding_layers(config)

    @property
    def device(self) -> torch.device:
        """The device of the model, where all tensors have to be."""
        return self.model.device

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Cache, Outlook]:
        """Return the keys and values of the left-padded prompts, and what is said of their last tokens."""
        num_columns = max(map(len, prompts))
        padded = [[self.pad_id] * (num_columns - len(prompt)) + list(prompt) for prompt in prompts]
        first_P = torch.tensor([num_columns - len(prompt) for prompt in prompts], device=self.device)
        block = DynamicCache()
        return block, self._forward(torch.tensor(padded, device=self.device), first_P, num_columns, block)

    def decode(self, ids_B1: Tensor, first_B: Tensor, num_columns: int, cache: KvCache) -> Outlook:
        """Return what is said of one more token per row.

        ``first_B`` is each row's first column within the open window of ``num_columns``, the new token's included.
        """
        return self._forward(ids_B1, first_B, num_columns, cache)

    def _forward(self, ids_BL: Tensor, first_B: Tensor, num_columns: int, cache: Cache) -> Outlook:
        if self.head is None:
            return Outlook(self._logits(ids_BL, first_B, num_columns, cache), None)
        with newest_head_input(self.model) as states, recorded_upper_layers(self.model, self.head) as calls:
            logits_BV = self._logits(ids_BL, first_B, num_columns, cache)
        states_BD = self.head.upper_states(calls)[:, -1] if self.head.trunk == "lower" else states[0]
        return Outlook(logits_BV, self.head(states_BD))

    def _logits(self, ids_BL: Tensor, first_B: Tensor, num_columns: int, cache: Cache) -> Tensor:
        columns_W = torch.arange(num_columns, device=self.device)
        queries_L = columns_W[num_columns - ids_BL.shape[1] :]
        first_B1 = first_B.unsqueeze(1)
        output = self.model(
            input_ids=ids_BL,
            attention_mask=self._mask(columns_W, queries_L, first_B1),
            # Padding gets position 0; nothing reads its states.
            position_ids=(queries_L - first_B1).clamp_(min=0),
            **{self._cache_keyword: cache},
            **self._options,
        )
        return output.logits[:, -1]

    def _mask(self, columns_W: Tensor, queries_L: Tensor, first_B1: Tensor) -> Tensor:
        """Return the columns each query sees: (B, 1, L, W) ready to use, or (B, W) for the model to build its own."""
        filled_BW = columns_W >= first_B1
        if not self._takes_ready_mask:
            return filled_BW.long()
        if len(queries_L) == 1:
            return filled_BW[:, None, None, :]
        queries_L1 = queries_L.unsqueeze(1)
        # Padding sees itself: a query that sees nothing would be 0/0.
        return ((filled_BW[:, None, :] & (columns_W <= queries_L1)) | (columns_W == queries_L1)).unsqueeze(1)


def _number_upper_layers(head: ValueHead, num_layers: int) -> None:
    """Let the head's own layers, copies of the model's with the numbers of these, stand behind all of the model's."""
    for number, layer in enumerate(head.upper, start=num_layers):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = number  # pyright: ignore[reportArgumentType] - a plain number in all models


def _has_sliding_layers(config: PreTrainedConfig) -> bool:
    """Return whether any layer attends to a window only; without ``layer_types`` a window in the config means yes."""
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        return getattr(config, "sliding_window", None) is not None
    return "sliding_attention" in layer_types


def _refuse_unsupported(config: PreTrainedConfig, accepted: Mapping[str, inspect.Parameter]) -> None:
    """Raise a `ModelError` with everything that keeps a model from being decoded row by row on a shared clock."""
    reasons = []
    if config.is_encoder_decoder or getattr(config, "is_decoder", True) is False:
        reasons.append("it is not a pure decoder")
    if other := sorted(set(getattr(config, "layer_types", None) or ()) - _ATTENTION_LAYERS):
        reasons.append(f"it has layers of type {', '.join(other)}")
    if "position_ids" not in accepted or not {"cache", "past_key_values"} & set(accepted):
        reasons.append("its forward takes no position_ids or no key-value cache")
    if getattr(config, "alibi", False):
        reasons.append("its positions (ALiBi) follow from the mask")
    if reasons:
        remedy = "use a decoder with full or sliding attention and explicit positions, such as Qwen3, Llama or Gemma"
        where = f"model type {config.model_type}"
        raise ModelError("the sampler cannot decode this model", [Fault(where, reason, remedy) for reason in reasons])
