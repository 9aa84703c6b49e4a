"""Scores from logits that are split over ranks: no rank ever has, or is sent, those of the whole vocabulary.

Each rank reduces the logits of its part to three numbers per token: the log-probability of the target within the part,
if it is there, the entropy within the part, and the normaliser n_r = logsumexp(x) of the part. With the weights of the
parts w_r = exp(n_r - n), n = logsumexp over r of n_r:

    logp(target) = logp_r(target) + n_r - n        entropy = sum_r w_r (entropy_r - log w_r)

Shapes: B rows, T tokens of the longest row, N trained tokens of all rows together, V vocabulary, R ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

from rpeg.numerics.chunked_head import chunked_logit_sums
from rpeg.numerics.head_input import chosen_head_input, language_head, predicting_slots
from rpeg.numerics.logprobs import in_slots, logit_sums
from rpeg.numerics.parallel.collectives import enter, join, leave
from rpeg.numerics.scores import Scores
from rpeg.numerics.value_head import ValueHead

__all__ = ["split_scores"]


def split_scores(
    model: PreTrainedModel,
    tokens_BT: Tensor,
    mask_BT: Tensor,
    temperature: float,
    value_head: ValueHead | None,
    vocabulary: tuple[int, int],
    group: dist.ProcessGroup,
    chunked: bool,
) -> Scores:
    """Return what `rpeg.numerics.scores.response_scores` returns of the whole model.

    Args:
        model: Whose head has a part of the vocabulary, and does not join the logits.
        tokens_BT: Token ids, padded on the right with any id; int64.
        mask_BT: True for trained tokens; False in slot 0.
        temperature: What the logits are divided by; above 0.
        value_head: On the trunk of this model, which has no layers of its own.
        vocabulary: The first token of this rank's part, and the one after its last.
        group: The ranks with the other parts.
        chunked: Whether the logits are made a few tokens at a time.
    """
    with chosen_head_input(model, predicting_slots(mask_BT), runs_head=not chunked) as states:
        logits_NV = model(input_ids=tokens_BT, use_cache=False).logits.flatten(0, 1)
    (first, end), targets_N = vocabulary, tokens_BT[mask_BT]
    is_here_N = (targets_N >= first) & (targets_N < end)
    local_N = (targets_N - first).masked_fill(~is_here_N, 0)
    if chunked:
        head = language_head(model)
        assert isinstance(head, nn.Linear), f"the head is {type(head).__name__}, not linear"
        sums = chunked_logit_sums(enter(states[0], group), head.weight, head.bias, local_N, temperature)
    else:
        sums = logit_sums(logits_NV, local_N, temperature)
    logps_N, entropies_N = _joined(*sums, is_here_N, group)
    values_BT = None if value_head is None else in_slots(value_head(states[0]), mask_BT)
    return Scores(in_slots(logps_N, mask_BT), in_slots(entropies_N, mask_BT), values_BT)


def _joined(
    logps_N: Tensor, entropies_N: Tensor, normalisers_N: Tensor, is_here_N: Tensor, group: dist.ProcessGroup
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies of the whole vocabulary."""
    whole_N = join(normalisers_N.unsqueeze(1), 1, group).logsumexp(1)
    found_N = leave((logps_N + normalisers_N).masked_fill(~is_here_N, 0.0), group)
    with torch.no_grad():
        weights_N = (normalisers_N - whole_N).exp()
        mixed_N = (weights_N * entropies_N + torch.special.entr(weights_N)).contiguous()
        dist.all_reduce(mixed_N, group=group)
    return found_N - whole_N, mixed_N
