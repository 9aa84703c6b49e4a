"""Scores of response tokens in one pass of a model: log-probabilities, entropies and values.

Shapes: B rows, T tokens of the longest row, N trained tokens of all rows together, D hidden size, V vocabulary. What
slots and padding mean is said in `rpeg.numerics.logprobs`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rpeg.numerics.chunked_head import chunked_logprobs
from rpeg.numerics.head_input import chosen_head_input, language_head, predicting_slots
from rpeg.numerics.logprobs import in_slots, token_logprobs
from rpeg.numerics.value_head import ValueHead, recorded_upper_layers

__all__ = ["Scores", "response_scores", "response_values"]


@dataclass(frozen=True, slots=True)
class Scores:
    """What one pass says about each trained token; 0 in all other slots, float32."""

    logps_BT: Tensor
    """Log-probabilities, with gradient; nats."""
    entropies_BT: Tensor
    """Of the distributions, without gradient; nats."""
    values_BT: Tensor | None
    """Of the states before the tokens were chosen, with gradient; None without a value head."""

    @classmethod
    def of_values(cls, values_BT: Tensor) -> Scores:
        """Return the scores of a critic, which makes no logits: all but its values is 0."""
        nothing_BT = torch.zeros_like(values_BT, requires_grad=False)
        return cls(nothing_BT, nothing_BT, values_BT)


def response_scores(
    model: PreTrainedModel,
    tokens_BT: Tensor,
    mask_BT: Tensor,
    temperature: float,
    value_head: ValueHead | None = None,
    chunked: bool = False,
) -> Scores:
    """Return log-probabilities and entropies of the trained tokens, and values of the states they were chosen in.

    The model is passed through once, whatever is asked for; a value head with layers of its own adds these alone. The
    head of the model runs only where a trained token is predicted, so logits take N*V numbers instead of B*T*V.

    Scores that are compared with each other (old, current, reference) are made with the same temperature, dtype and
    split into micro-batches: the ratio is then exactly 1 before the first update, while another batch shape alone moves
    float32 scores by up to 1e-5.

    Args:
        model: A causal language model, not in use by another thread meanwhile.
        tokens_BT: Token ids, padded on the right with any id; int64.
        mask_BT: True for trained tokens; False in slot 0.
        temperature: What the logits are divided by; above 0.
        value_head: On the trunk of this model.
        chunked: Whether the logits are made a few tokens at a time and never held together, which only models with
            `rpeg.numerics.chunked_head.has_plain_head` allow; the caller finds that out once.
    """
    states_ND, logits_NV, values_N = _forward(model, tokens_BT, mask_BT, value_head, runs_head=not chunked)
    targets_N = tokens_BT[mask_BT]
    if chunked:
        head = language_head(model)
        assert isinstance(head, nn.Linear), f"the head is {type(head).__name__}, not linear"
        logps_N, entropies_N = chunked_logprobs(states_ND, head.weight, head.bias, targets_N, temperature)
    else:
        logps_N, entropies_N = token_logprobs(logits_NV, targets_N, temperature)
    values_BT = None if values_N is None else in_slots(values_N, mask_BT)
    return Scores(in_slots(logps_N, mask_BT), in_slots(entropies_N, mask_BT), values_BT)


def response_values(model: PreTrainedModel, value_head: ValueHead, tokens_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the values of the states that the trained tokens were chosen in, 0 in all other slots; no logits are made.

    Args:
        model: The critic's model, not in use by another thread meanwhile.
        value_head: On the trunk of this model.
        tokens_BT: Token ids, padded on the right with any id; int64.
        mask_BT: True for trained tokens; False in slot 0.
    """
    _, _, values_N = _forward(model, tokens_BT, mask_BT, value_head, runs_head=False)
    assert values_N is not None, "a value head was given"
    return in_slots(values_N, mask_BT)


def _forward(
    model: PreTrainedModel, tokens_BT: Tensor, mask_BT: Tensor, value_head: ValueHead | None, runs_head: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return states and logits where trained tokens are predicted, and the values there."""
    assert tokens_BT.shape == mask_BT.shape, f"tokens {tuple(tokens_BT.shape)} and mask {tuple(mask_BT.shape)} differ"
    slots_BT = predicting_slots(mask_BT)
    with chosen_head_input(model, slots_BT, runs_head) as states, recorded_upper_layers(model, value_head) as calls:
        logits_NV = model(input_ids=tokens_BT, use_cache=False).logits.flatten(0, 1)
    if value_head is None:
        return states[0], logits_NV, None
    states_ND = value_head.upper_states(calls)[slots_BT] if value_head.trunk == "lower" else states[0]
    return states[0], logits_NV, value_head(states_ND)
