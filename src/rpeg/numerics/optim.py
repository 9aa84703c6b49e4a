"""The optimiser of a policy: AdamW, the learning rate as a function of the update number, gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from rpeg.errors import RunFault

__all__ = ["Schedule", "adamw", "clip_gradients", "schedule", "set_learning_rate"]

Schedule = Literal["constant", "linear", "cosine"]
"""How the learning rate goes on after its warm-up."""


def adamw(
    model: nn.Module,
    learning_rate: float,
    betas: tuple[float, float],
    epsilon: float,
    weight_decay: float,
    head: nn.Module | None = None,
    head_scale: float = 1.0,
) -> AdamW:
    """Return AdamW over the trainable parameters of a model, in one kernel per group where the device has it.

    Weight decay acts on matrices (linear layers and embeddings, two dimensions or more) and not on vectors (biases and
    the weights of norms): shrinking the latter only rescales activations. Shared parameters are held once.

    Source: AdamW, arXiv:1711.05101.

    Args:
        model: Whose parameters are updated in place; `MasterWeights` of it, where its own are narrow.
        learning_rate: Of the first update; see `set_learning_rate`.
        betas: Decay rates of the two moments.
        epsilon: Added to the root of the second moment.
        weight_decay: Share of a matrix that is taken off per update, times the learning rate.
        head: A module beside the model, such as a value head, that learns at a rate of its own.
        head_scale: Learning rate of the head, in learning rates of the model.
    """
    groups = [*_groups(model, weight_decay, 1.0), *(_groups(head, weight_decay, head_scale) if head else ())]
    for group in groups:
        group["lr"] = learning_rate * group["rate_scale"]
    fused = all(parameter.device.type in ("cpu", "cuda") for group in groups for parameter in group["params"])
    return AdamW(groups, learning_rate, betas, epsilon, fused=fused)


def _groups(module: nn.Module, weight_decay: float, scale: float) -> list[dict[str, Any]]:
    """Return the parameter groups of a module: what decays and what does not."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [each for each in trained if each.ndim >= 2], "weight_decay": weight_decay, "rate_scale": scale},
        {"params": [each for each in trained if each.ndim < 2], "weight_decay": 0.0, "rate_scale": scale},
    ]
    return [group for group in groups if group["params"]]


def schedule(update: int, total: int, warmup: int, kind: Schedule) -> float:
    """Return the share of the base learning rate that an update is made with.

    Everything is counted in optimiser updates, of which a step may have several. The warm-up rises by equal parts to 1
    at its last update; then ``linear`` falls as ``1 - x`` and ``cosine`` as ``(1 + cos(pi x)) / 2`` with
    ``x = (update - warmup) / (total - warmup)``, which would reach 0 one update after the last.

    Args:
        update: Number of updates made before this one, from 0.
        total: Updates of the whole run.
        warmup: Updates of the warm-up; may be 0, or the whole run.
        kind: What follows the warm-up.

    Returns:
        A number in [0, 1].
    """
    assert update >= 0, f"update {update}"
    if update < warmup:
        return (update + 1) / warmup
    if kind == "constant":
        return 1.0
    progress = min(1.0, (update - warmup) / max(1, total - warmup))
    return 1.0 - progress if kind == "linear" else (1.0 + math.cos(math.pi * progress)) / 2.0


def set_learning_rate(optimizer: Optimizer, learning_rate: float) -> None:
    """Make the next updates of an optimiser with this learning rate, and those of a head with its share of it."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["rate_scale"]


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float, norm: float | None = None) -> float:
    """Scale all gradients in place so that their joint L2 norm is at most ``max_norm``, and return the norm before.

    Args:
        parameters: Those without a gradient are passed over.
        max_norm: Above 0; infinity only measures.
        norm: Of the whole gradient, where these parameters are a part of it.

    Raises:
        RunFault: The norm is not finite; no gradient has been changed.
    """
    assert max_norm > 0, f"max_norm {max_norm} is not above 0"
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if norm is None:
        norm = float(nn.utils.get_total_norm(gradients))
    if not math.isfinite(norm):
        raise RunFault(_non_finite(norm, gradients))
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / norm)
    return norm


def _non_finite(norm: float, gradients: list[Tensor]) -> str:
    """Return the message about gradients that no update may be made with."""
    bad = sum(not bool(torch.isfinite(gradient).all()) for gradient in gradients)
    cause = f"{bad} of {len(gradients)} gradient tensors hold NaN or infinity"
    if bad == 0:
        cause = f"the {len(gradients)} gradient tensors are finite but too large to square in float32"
    return f"gradient norm is {norm}: {cause}; the update was not made"
