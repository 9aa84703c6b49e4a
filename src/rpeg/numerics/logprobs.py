"""Log-probabilities of response tokens under a Hugging Face causal model, with float32 reductions.

Shapes: B rows, T tokens of the longest row, N response tokens of all rows together, D hidden size, V vocabulary.

Slot t of a ``_BT`` tensor belongs to token t of the row itself: ``mask_BT[b, t]`` says whether token t is trained, and
``logps_BT[b, t]`` is its log-probability given the tokens before it. The model is therefore read one slot earlier, and
slot 0 is never trained. Values beside log-probabilities are in `rpeg.numerics.scores`.

Rows are padded on the right and no attention mask is passed: attention is causal, so nothing that a real token depends
on lies to its right, and the values of real tokens are exact whatever the padding holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ["in_slots", "logit_sums", "token_logprobs"]

# Logits are widened to float32 this many at a time (64 MiB): a copy of all would be the largest buffer of a step.
_CHUNK_ELEMENTS = 1 << 24


def in_slots(values_N: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the values of the trained tokens in their slots [B, T], 0 elsewhere; float32."""
    empty_BT = torch.zeros(mask_BT.shape, dtype=torch.float32, device=mask_BT.device)
    return empty_BT.masked_scatter(mask_BT, values_N)


def token_logprobs(logits_NV: Tensor, targets_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each target and the entropy of its distribution, reduced in float32.

    ``logp = x[target] - logsumexp(x)`` and ``entropy = -sum(p log p)`` with ``x = logits / temperature``. Beside the
    logits, and their gradient in the backward pass, only chunks of a fixed size are held in float32.

    Args:
        logits_NV: Raw logits of any floating dtype, over any leading shape.
        targets_N: Token ids over the same leading shape.
        temperature: What the logits are divided by; above 0.

    Returns:
        Log-probabilities with gradient and entropies without, float32 of the leading shape; nats.
    """
    logps_N, entropies_N, _ = logit_sums(logits_NV, targets_N, temperature)
    return logps_N, entropies_N


def logit_sums(logits_NV: Tensor, targets_N: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `token_logprobs` returns, and with gradient the ``logsumexp(x)`` that probabilities are divided by.

    With that number, parts of a vocabulary can be put together.
    """
    assert temperature > 0, f"temperature {temperature} is not above 0"
    assert logits_NV.shape[:-1] == targets_N.shape, f"{tuple(logits_NV.shape)} against {tuple(targets_N.shape)} targets"
    flat_NV = logits_NV.reshape(-1, logits_NV.shape[-1])
    logps_N, entropies_N, normalisers_N = _TokenLogprobs.apply(flat_NV, targets_N.reshape(-1), temperature)
    return tuple(each.view(targets_N.shape) for each in (logps_N, entropies_N, normalisers_N))


class _TokenLogprobs(torch.autograd.Function):
    """`logit_sums` with a hand-written backward pass, which keeps the logits and one number per token.

    Autograd through ``log_softmax`` would keep a float32 copy of all logits as well. With p = softmax(logits / T):
    ``d logp / d logits = (onehot(target) - p) / T`` and ``d normaliser / d logits = p / T``.
    """

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        """Reduce chunk by chunk."""
        normalisers_N = logits_NV.new_empty(len(logits_NV), dtype=torch.float32)
        entropies_N, logps_N = torch.empty_like(normalisers_N), torch.empty_like(normalisers_N)
        for rows in _chunks(logits_NV):
            x_NV = logits_NV[rows].float() / temperature
            normalisers_N[rows] = x_NV.logsumexp(-1)
            logps_N[rows] = x_NV.gather(-1, targets_N[rows, None]).squeeze(-1) - normalisers_N[rows]
            # entr(p) = -p log p with entr(0) = 0: logits of -inf add nothing, instead of 0 * inf = NaN.
            entropies_N[rows] = torch.special.entr((x_NV - normalisers_N[rows, None]).exp_()).sum(-1)
        ctx.save_for_backward(logits_NV, targets_N, normalisers_N)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies_N)
        return logps_N, entropies_N, normalisers_N

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        """Recompute the probabilities chunk by chunk."""
        logits_NV, targets_N, normalisers_N = ctx.saved_tensors
        grad_NV = torch.empty_like(logits_NV)
        scale_N1, _, normaliser_scale_N1 = ((each / ctx.temperature).unsqueeze(-1) for each in grad_outputs)
        for rows in _chunks(logits_NV):
            p_NV = (logits_NV[rows].float() / ctx.temperature - normalisers_N[rows, None]).exp_()
            p_NV.mul_(normaliser_scale_N1[rows] - scale_N1[rows])
            grad_NV[rows] = p_NV.scatter_add_(-1, targets_N[rows, None], scale_N1[rows])
        return grad_NV, None, None


def _chunks(logits_NV: Tensor) -> Iterator[slice]:
    """Yield slices of rows with at most `_CHUNK_ELEMENTS` logits, or one row, each."""
    rows = max(1, _CHUNK_ELEMENTS // logits_NV.shape[-1])
    for first in range(0, len(logits_NV), rows):
        yield slice(first, first + rows)
