"""The input of a model's head: the states of chosen slots, and a head that runs on these alone or not at all.

Shapes: B rows, T tokens of the longest row, N chosen slots of all rows together, D hidden size, V vocabulary.

A hook on the head rather than a call of the body alone: what a model does to its logits afterwards (soft-capping,
scaling) still applies, and wrappers that act on the call of the whole model keep working.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from transformers import PreTrainedModel

__all__ = ["chosen_head_input", "language_head", "newest_head_input", "predicting_slots"]


def predicting_slots(mask_BT: Tensor) -> Tensor:
    """Return the slots [B, T] whose states predict the tokens in the mask, one slot earlier; slot 0 is never in it."""
    assert not mask_BT.dtype.is_floating_point, "the mask is boolean"
    # The roll brings slot 0 to the end, which is harmless because it is False.
    return mask_BT.roll(-1, dims=1)


def language_head(model: PreTrainedModel) -> nn.Module:
    """Return the module that makes logits of the last states."""
    head = model.get_output_embeddings()
    assert head is not None, f"{type(model).__name__} has no language-model head"
    return head


@contextmanager
def chosen_head_input(model: PreTrainedModel, slots_BT: Tensor, runs_head: bool) -> Iterator[list[Tensor]]:
    """Let the head see only the chosen slots, as one row: the model's logits become [1, N, V], or [1, 0, V].

    Yields a list that holds the states [N, D] of these slots after the model was called. The model must not be in use
    by another thread meanwhile.
    """
    states: list[Tensor] = []

    def choose(_head: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        states.append(args[0][slots_BT])
        return (states[-1].unsqueeze(0) if runs_head else args[0][:1, :0], *args[1:])

    # Before what ranks with parts of the vocabulary do to the head's input, which values have no part in.
    hook = language_head(model).register_forward_pre_hook(choose, prepend=True)
    try:
        yield states
    finally:
        hook.remove()


@contextmanager
def newest_head_input(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """Yield a list that holds the last state [B, D] of every row after the model was called; the logits stay the same.

    The model must not be in use by another thread meanwhile.
    """
    states: list[Tensor] = []
    hook = language_head(model).register_forward_pre_hook(lambda _head, args: states.append(args[0][:, -1]))
    try:
        yield states
    finally:
        hook.remove()
