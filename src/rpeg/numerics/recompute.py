"""Activations of decoder layers made again in the backward pass instead of being kept (arXiv:1604.06174).

Of a layer only what comes in is kept. Collectives inside a layer are made again as well, by all ranks in one order; so
nothing of a layer is left out, although its last operations need not be made again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from transformers import PreTrainedModel

__all__ = ["recompute_layers"]


def recompute_layers(model: PreTrainedModel) -> None:
    """Let a model keep what comes into each of its layers, and nothing inside of them, for the backward pass.

    Args:
        model: Changed in place, before it is split: parts of it, and shards of its layers, have the same layers.
    """
    lists = [child for child in model.base_model.children() if isinstance(child, nn.ModuleList)]
    assert lists, f"{type(model).__name__} has no list of layers"
    for layer in chain.from_iterable(lists):
        layer.forward = partial(_again, layer.forward)


def _again(forward: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    with set_checkpoint_early_stop(False):
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
