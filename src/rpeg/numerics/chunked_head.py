"""Head and log-probabilities in one, chunk by chunk, so that the logits of all tokens are never held together.

Shapes: N tokens, D hidden size, V vocabulary.

The plain way keeps the logits [N, V] from the forward to the backward pass and makes a gradient of the same size: 2 N V
numbers, often more than all activations of the layers. Here both passes make the logits of a few tokens at a time from
the states [N, D] and throw them away, at the price of a second product of states and head weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rpeg.numerics.head_input import language_head

__all__ = ["chunked_logit_sums", "chunked_logprobs", "has_plain_head"]

# Logits that are made at a time (16 MiB in float32).
_CHUNK_ELEMENTS = 1 << 22


def chunked_logprobs(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return what `rpeg.numerics.logprobs.token_logprobs` returns for the logits ``hidden @ weight.T + bias``.

    Equal to it in value and gradient up to the rounding of products of other shapes. Under autocast the products are
    made in its format, as those of a linear layer are; all reductions are in float32.

    Args:
        hidden_ND: Input of the head.
        weight_VD: Of the head; may be the embedding's.
        bias_V: Of the head, if it has one.
        targets_N: Token ids.
        temperature: What the logits are divided by; above 0.

    Returns:
        Log-probabilities with gradient and entropies without, float32; nats.
    """
    logps_N, entropies_N, _ = chunked_logit_sums(hidden_ND, weight_VD, bias_V, targets_N, temperature)
    return logps_N, entropies_N


def chunked_logit_sums(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `rpeg.numerics.logprobs.logit_sums` returns for these logits; see `chunked_logprobs`."""
    assert temperature > 0, f"temperature {temperature} is not above 0"
    assert hidden_ND.shape[:-1] == targets_N.shape, f"{tuple(hidden_ND.shape)} against {tuple(targets_N.shape)} targets"
    device = hidden_ND.device.type
    if torch.is_autocast_enabled(device):
        narrow = torch.get_autocast_dtype(device)
        hidden_ND, weight_VD = hidden_ND.to(narrow), weight_VD.to(narrow)
        bias_V = None if bias_V is None else bias_V.to(narrow)
    with torch.autocast(device, enabled=False):
        return _ChunkedLogprobs.apply(hidden_ND, weight_VD, bias_V, targets_N, temperature)


def has_plain_head(model: PreTrainedModel) -> bool:
    """Return whether a model's logits are what its linear head returns: neither capped nor scaled afterwards.

    Only then may the head be left out of the pass and computed in chunks. Tried out rather than looked up: the head is
    given large states once, and its answer compared with the logits, so that soft-capping shows.
    """
    head = language_head(model)
    if type(head) is not nn.Linear:
        return False
    weight_VD, bias_V = head.weight, head.bias
    answers: list[Tensor] = []

    def answer(_head: nn.Module, args: tuple[Tensor, ...], _logits: Tensor) -> Tensor:
        answers.append(nn.functional.linear(torch.full_like(args[0], 1e3), weight_VD, bias_V))
        return answers[0]

    hook = head.register_forward_hook(answer)
    try:
        with torch.no_grad():
            logits = model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=model.device), use_cache=False).logits
    finally:
        hook.remove()
    return torch.equal(logits.float(), answers[0].float())


class _ChunkedLogprobs(torch.autograd.Function):
    """`chunked_logit_sums`; keeps the states, the weights and one number per token for the backward pass.

    With p = softmax(logits / T): ``d logp / d logits = (onehot(target) - p) / T``, ``d normaliser / d logits = p / T``,
    from there as in a linear layer.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Make and reduce logits chunk by chunk."""
        normalisers_N = hidden_ND.new_empty(len(hidden_ND), dtype=torch.float32)
        entropies_N, logps_N = torch.empty_like(normalisers_N), torch.empty_like(normalisers_N)
        for rows in _chunks(hidden_ND, weight_VD):
            x_NV = nn.functional.linear(hidden_ND[rows], weight_VD, bias_V).float().div_(temperature)
            normalisers_N[rows] = x_NV.logsumexp(-1)
            logps_N[rows] = x_NV.gather(-1, targets_N[rows, None]).squeeze(-1) - normalisers_N[rows]
            p_NV = x_NV.sub_(normalisers_N[rows, None]).exp_()
            entropies_N[rows] = torch.special.entr(p_NV).sum(-1)
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N, normalisers_N)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies_N)
        return logps_N, entropies_N, normalisers_N

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        """Make the logits again; sums over chunks are in float32."""
        hidden_ND, weight_VD, bias_V, targets_N, normalisers_N = ctx.saved_tensors
        grad_hidden_ND = torch.empty_like(hidden_ND)
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32)
        grad_bias_V = None if bias_V is None else torch.zeros_like(bias_V, dtype=torch.float32)
        scale_N1, _, normaliser_scale_N1 = ((each / ctx.temperature).unsqueeze(-1) for each in grad_outputs)
        for rows in _chunks(hidden_ND, weight_VD):
            x_NV = nn.functional.linear(hidden_ND[rows], weight_VD, bias_V).float().div_(ctx.temperature)
            p_NV = x_NV.sub_(normalisers_N[rows, None]).exp_()
            p_NV.mul_(normaliser_scale_N1[rows] - scale_N1[rows])
            grad_NV = p_NV.scatter_add_(-1, targets_N[rows, None], scale_N1[rows])
            narrow_NV = grad_NV.to(weight_VD.dtype)
            grad_hidden_ND[rows] = narrow_NV @ weight_VD
            _add_product(grad_weight_VD, narrow_NV.T, hidden_ND[rows])
            if grad_bias_V is not None:
                grad_bias_V += grad_NV.sum(0)
        grad_bias_V = None if bias_V is None or grad_bias_V is None else grad_bias_V.to(bias_V.dtype)
        return grad_hidden_ND, grad_weight_VD.to(weight_VD.dtype), grad_bias_V, None, None


def _add_product(total_VD: Tensor, left_VN: Tensor, right_ND: Tensor) -> None:
    """Add a product to a float32 sum; in place where the factors are float32 too, which saves a buffer of its size."""
    if left_VN.dtype == total_VD.dtype:
        total_VD.addmm_(left_VN, right_ND)
    else:
        total_VD += left_VN @ right_ND


def _chunks(hidden_ND: Tensor, weight_VD: Tensor) -> Iterator[slice]:
    """Yield slices of tokens with at most `_CHUNK_ELEMENTS` logits, or one token, each."""
    rows = max(1, _CHUNK_ELEMENTS // len(weight_VD))
    for first in range(0, len(hidden_ND), rows):
        yield slice(first, first + rows)
