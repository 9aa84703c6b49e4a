"""The plain model: every rank holds all of it, and ranks differ in their rows only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rpeg.numerics.parallel.parallel_model import Loss, Padded, Trained
from rpeg.numerics.parallel.peers import Peers
from rpeg.numerics.parallel.shards import Tile, whole_tiles
from rpeg.numerics.scores import Scores

__all__ = ["ScoreBatch", "WholeModel"]

ScoreBatch = Callable[[PreTrainedModel, Padded], Scores]
"""Scores a micro-batch by a model."""


class WholeModel:
    """A `rpeg.numerics.parallel.parallel_model.ParallelModel` that is not split."""

    def __init__(self, model: PreTrainedModel, score: ScoreBatch, peers: Peers) -> None:
        """Let ``peers``, which hold the same weights, work on other rows."""
        self._model, self._score, self._peers = model, score, peers

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Return what is trained, by name."""
        return {name: each for name, each in self._model.named_parameters() if each.requires_grad}

    def backward(self, batches: Sequence[Padded], loss: Loss) -> None:
        """Add the gradients of the losses of all micro-batches to those of the parameters."""
        for number, batch in enumerate(batches):
            loss(number, self._score(self._model, batch)).backward()

    def score(self, batches: Sequence[Padded]) -> list[Scores]:
        """Return the scores of all micro-batches, without gradients."""
        with torch.no_grad():
            return [self._score(self._model, batch) for batch in batches]

    def sum_gradients(self, of: Trained | None = None) -> None:
        """Make every gradient the sum over the ranks."""
        self._peers.sum_gradients((of or self.parameters()).values())

    def total_norm(self, of: Trained | None = None) -> float:
        """Return the L2 norm of the gradient."""
        gradients = [each.grad for each in (of or self.parameters()).values() if each.grad is not None]
        return float(nn.utils.get_total_norm(gradients))

    def weights(self) -> Mapping[str, Tensor]:
        """Return copies of the weights by name."""
        return {name: each.detach().clone() for name, each in self._model.named_parameters()}

    def tiles(self) -> Mapping[str, Tile]:
        """Return all weights, which every rank has."""
        return whole_tiles(self._model)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take over weights."""
        for name, each in self._model.named_parameters():
            each.copy_(weights[name])

    def gathered(self, held: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what belongs to the trained weights."""
        return held

    def shared_out(self, whole: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what belongs to the trained weights."""
        return {name: whole[name].to(each.device) for name, each in self.parameters().items()}
