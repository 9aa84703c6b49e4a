"""Reward models: Hugging Face sequence classifiers with one label, whose logit is the reward.

Shapes: N answers, B rows of a micro-batch, T tokens of its longest row, D hidden size.

A decoder's score is read at the last real token of a row, found by the row's length and not by comparing ids with the
padding's, since an answer may end with that very token; encoders pool as they are made to. Padding is on the right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from rpeg.errors import Fault, ModelError
from rpeg.numerics.micro_batches import split
from rpeg.numerics.model import model_folder_faults, quiet
from rpeg.numerics.tokenizer import read_tokenizer, vocabulary_faults
from rpeg.shapes.positions import max_positions

__all__ = ["RewardModel", "load_reward_model", "reward_folder_faults"]


class RewardModel:
    """A frozen classifier with its own tokenizer, which scores what a policy wrote."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        policy_tokenizer: PreTrainedTokenizerFast,
        micro_batch_tokens: int,
    ) -> None:
        """Take a classifier of one label; ``micro_batch_tokens`` are scored at a time, padding counted."""
        self._model, self._tokenizer, self._policy_tokenizer = model, tokenizer, policy_tokenizer
        self._micro_batch_tokens = micro_batch_tokens
        self.reads_tokens = not vocabulary_faults(policy_tokenizer, tokenizer, "reward model")
        """Whether the policy's token ids mean the same to the classifier."""
        config = model.config.get_text_config()
        positions = max_positions(config.to_dict())
        self._max_tokens = min(positions or tokenizer.model_max_length, tokenizer.model_max_length)
        head = getattr(model, "score", None)
        self._head = head if isinstance(head, nn.Linear) else None
        # What decoders pool by themselves is not used, but without a padding id they refuse several rows at once.
        self._pad_id = cast(int, tokenizer.pad_token_id or 0)
        config.pad_token_id = self._pad_id

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The weights of the classifier."""
        return tuple(self._model.parameters())

    def score(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return the rewards [N] of prompts with answers, float32 on the CPU; NaN for rows too long for the model.

        Tokens are scored as they are if the ids mean the same to the classifier. Otherwise they are decoded, without
        special tokens, and the text is encoded again with the classifier's own tokenizer and its special tokens.
        """
        if self.reads_tokens:
            return self._score(rows)
        return self.score_texts(
            self._policy_tokenizer.batch_decode([list(row) for row in rows], skip_special_tokens=True)
        )

    def score_texts(self, texts: Sequence[str]) -> Tensor:
        """Return the rewards [N] of texts, as `score` does; a chat template is the caller's affair."""
        return self._score(self._tokenizer(list(texts))["input_ids"])

    @torch.no_grad()
    def _score(self, rows: Sequence[Sequence[int]]) -> Tensor:
        scores_N = torch.full((len(rows),), torch.nan)
        fitting = [number for number, row in enumerate(rows) if 0 < len(row) <= self._max_tokens]
        for batch in split([len(rows[number]) for number in fitting], self._micro_batch_tokens):
            chosen = [fitting[index] for index in batch]
            scores_N[chosen] = self._score_batch([rows[number] for number in chosen]).cpu()
        return scores_N

    def _score_batch(self, rows: Sequence[Sequence[int]]) -> Tensor:
        device, head = self._model.device, self._head
        lengths_B = torch.tensor([len(row) for row in rows], device=device)
        tensors = [torch.tensor(row, device=device) for row in rows]
        tokens_BT = nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=float(self._pad_id))
        mask_BT = (torch.arange(tokens_BT.shape[1], device=device) < lengths_B[:, None]).long()
        if head is None:
            return self._model(input_ids=tokens_BT, attention_mask=mask_BT).logits.float().squeeze(-1)
        states: list[Tensor] = []
        hook = head.register_forward_pre_hook(lambda _head, args: states.append(args[0]))
        try:
            self._model(input_ids=tokens_BT, attention_mask=mask_BT, use_cache=False)
        finally:
            hook.remove()
        last_BD = states[0][torch.arange(len(rows), device=device), lengths_B - 1].float()
        bias = None if head.bias is None else head.bias.float()
        return nn.functional.linear(last_BD, head.weight.float(), bias).squeeze(-1)


def load_reward_model(
    path: str | Path,
    dtype: torch.dtype,
    device: torch.device,
    policy_tokenizer: PreTrainedTokenizerFast,
    micro_batch_tokens: int,
) -> RewardModel:
    """Return the reward model of a Hugging Face folder with ``dtype`` on ``device``, for what a policy wrote.

    As for policies, only safetensors are read, nothing is fetched, no code of the folder is run, and no weight is
    filled with random numbers: a language model without a head that scores is refused.

    Raises:
        ModelError: with everything that is missing or does not fit.
    """
    folder = Path(path)
    if faults := reward_folder_faults(folder):
        raise ModelError("reward model", faults)
    options = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
    load = AutoModelForSequenceClassification.from_pretrained
    try:
        with quiet():
            loaded = load(folder, dtype=dtype, output_loading_info=True, **options)
    except Exception as error:  # whatever transformers objects to in a foreign folder
        what = f"transformers cannot load it: {type(error).__name__}: {error}"
        raise ModelError("reward model", [Fault(str(folder), what)]) from error
    model, report = cast(tuple[PreTrainedModel, Mapping[str, list[str]]], loaded)
    if missing := sorted(report["missing_keys"]):
        what = f"{len(missing)} weights are not in the files, such as {', '.join(missing[:3])}"
        fault = Fault(str(folder), what, "give a trained sequence classifier, not a language model")
        raise ModelError("reward model", [fault])
    model = model.to(device).eval().requires_grad_(False)  # pyright: ignore[reportArgumentType] - hidden signature
    return RewardModel(model, read_tokenizer(folder), policy_tokenizer, micro_batch_tokens)


def reward_folder_faults(path: str | Path) -> list[Fault]:
    """Return everything that keeps a folder from being loaded as a reward model, its number of labels included."""
    folder = Path(path)
    faults = model_folder_faults(folder, "sequence-classification")
    if faults:
        return faults
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    # Without the labels' names transformers takes two.
    labels = config.get("num_labels") or len(config.get("id2label") or {0: "", 1: ""})
    if labels == 1:
        return []
    what = f"classifies into {labels} labels, of which none is the reward"
    return [Fault(str(file), what, "give a reward model trained with num_labels=1")]
