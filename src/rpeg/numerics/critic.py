"""A critic of its own: a causal language model beside the policy, with a value head on it."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from rpeg.errors import ModelError
from rpeg.numerics.head_input import language_head
from rpeg.numerics.model import load_model, save_model
from rpeg.numerics.tokenizer import read_tokenizer, vocabulary_faults
from rpeg.numerics.value_head import VALUE_HEAD_FILE, ValueHead, load_value_head, new_value_head, save_value_head

__all__ = ["load_critic", "save_critic"]


def load_critic(
    path: str | Path, dtype: torch.dtype, device: torch.device, policy_tokenizer: PreTrainedTokenizerFast
) -> tuple[PreTrainedModel, ValueHead]:
    """Return model and value head of a folder; without a head there, as in the folder of a policy, a new one of zeros.

    The head that makes logits is kept, so that the folder stays an ordinary one, and is frozen unless it is tied.

    Raises:
        ModelError: The folder cannot be loaded, or the policy's token ids mean something else to this model: values
            belong to tokens, so a text encoded again would not do.
    """
    if faults := vocabulary_faults(policy_tokenizer, read_tokenizer(path), str(path)):
        raise ModelError("critic", faults)
    model = load_model(path, dtype, device)
    if language_head(model).weight is not model.get_input_embeddings().weight:
        language_head(model).requires_grad_(False)
    has_head = (Path(path) / VALUE_HEAD_FILE).is_file()
    return model, load_value_head(path, model) if has_head else new_value_head(model)


def save_critic(
    model: PreTrainedModel, head: ValueHead, tokenizer: PreTrainedTokenizerFast, folder: str | Path
) -> None:
    """Write an ordinary Hugging Face folder with the value head beside the weights."""
    save_model(model, tokenizer, folder)
    save_value_head(head, folder)
