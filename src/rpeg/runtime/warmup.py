"""The supervised warm-up: imitate the task's demonstrations until the model can be reinforced."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from rpeg.environments.base import Task
from rpeg.errors import Fault, RecipeError
from rpeg.numerics.optim import adamw, clip_gradients, schedule, set_learning_rate
from rpeg.numerics.scores import response_scores
from rpeg.recipe.schema import Recipe

__all__ = ["Report", "warm_up"]

Report = Callable[[int, float, float, float], None]
"""Hears of every update: its number, loss, learning rate and seconds."""


def warm_up(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, task: Task, recipe: Recipe, report: Report
) -> None:
    """Minimise the mean negative log-probability of the demonstrations' completions, end token included.

    Batch n holds demonstrations ``n * batch_size`` onwards, so the warm-up is a pure function of the recipe.

    Raises:
        RecipeError: when the task has no demonstrations.
    """
    settings = recipe.warmup
    assert settings is not None, "no warm-up is asked for"
    optimizer = adamw(model, settings.lr, settings.betas, recipe.optimizer.eps, settings.weight_decay)
    for update in range(settings.steps):
        started_s = time.monotonic()
        rate = settings.lr * schedule(update, settings.steps, settings.warmup_updates, "cosine")
        set_learning_rate(optimizer, rate)
        tokens_BT, mask_BT = _batch(task, tokenizer, update * settings.batch_size, settings.batch_size)
        tokens_BT, mask_BT = tokens_BT.to(model.device), mask_BT.to(model.device)
        logps_BT = response_scores(model, tokens_BT, mask_BT, temperature=1.0).logps_BT
        loss = -logps_BT.sum() / mask_BT.sum()
        loss.backward()
        clip_gradients(model.parameters(), recipe.optimizer.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        report(update + 1, loss.item(), rate, time.monotonic() - started_s)


def _batch(task: Task, tokenizer: PreTrainedTokenizerFast, first: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and mask of ``size`` demonstrations, padded on the right."""
    tokens: list[torch.Tensor] = []
    masks: list[torch.Tensor] = []
    for index in range(first, first + size):
        shown = task.demonstration(index)
        if shown is None:
            fault = Fault("warmup", f"{task.name} has no demonstrations to imitate", "set warmup to null")
            raise RecipeError("recipe", [fault])
        parts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in shown]
        assert tokenizer.eos_token_id is not None, "load_tokenizer gives every tokenizer an end token"
        parts[-1] = [*parts[-1], tokenizer.eos_token_id]
        tokens.append(torch.tensor([token for part in parts for token in part]))
        # The prompt and what an environment answered stand at even places and are not imitated.
        masks.append(torch.tensor([place % 2 == 1 for place, part in enumerate(parts) for _ in part]))
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(tokens, batch_first=True), pad(masks, batch_first=True)
