"""A model of which ranks along ``cp`` see different tokens of the same rows.

Every rank has all weights (or its share along other axes), so gradients are summed over ``cp`` before an update.

Shapes: B rows of a micro-batch, T tokens of its longest row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from rpeg.numerics.parallel.context_attention import split_attention
from rpeg.numerics.parallel.held import Hold, reshard, rest_of
from rpeg.numerics.parallel.parallel_model import Loss, Padded, Trained
from rpeg.numerics.parallel.scoring import Scoring
from rpeg.numerics.parallel.sharded import Passing
from rpeg.numerics.parallel.shards import Tile
from rpeg.numerics.parallel.token_runs import TokenRuns, sum_gradients_over
from rpeg.numerics.scores import Scores

__all__ = ["ContextModel"]


class ContextModel:
    """A `ParallelModel` over ``cp``, and over whatever else the model is split over."""

    def __init__(
        self,
        model: PreTrainedModel,
        mesh: DeviceMesh,
        hold: Hold,
        passing: Passing,
    ) -> None:
        """Take over a model.

        Args:
            model: Complete and the same on every rank.
            mesh: With an axis ``cp`` of two ranks or more.
            hold: Splits the model over the other axes of the mesh.
            passing: How rows go through it.

        Raises:
            ModelError: when it cannot be split along the sequence.
        """
        runs = TokenRuns(mesh)
        assert runs.group is not None, f"no split of rows along {mesh.mesh_dim_names} of {tuple(mesh.shape)}"
        split_attention(model, mesh)
        self._group, self._scoring = runs.group, Scoring(runs, passing)
        self._held = hold(model, rest_of(mesh, "cp"))

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Return what this rank holds and trains."""
        return self._held.parameters()

    def backward(self, batches: Sequence[Padded], loss: Loss) -> None:
        """Add the gradients of what this rank's tokens have to do with the losses, which all ranks compute."""
        for number, batch in enumerate(batches):
            loss(number, self._scoring.scores(self._held.model, batch)).backward()

    @torch.no_grad()
    def score(self, batches: Sequence[Padded]) -> list[Scores]:
        """Return the scores of all micro-batches."""
        found = [self._scoring.scores(self._held.model, batch) for batch in batches]
        reshard(self._held.model)
        return found

    def sum_gradients(self, of: Trained | None = None) -> None:
        """Sum over ranks that have seen other rows, and over those that have seen other tokens."""
        self._held.sum_gradients(of)
        sum_gradients_over(self._group, (of or self.parameters()).values())

    def total_norm(self, of: Trained | None = None) -> float:
        """Return the L2 norm of the gradient, which ranks along ``cp`` have in common."""
        return self._held.total_norm(of)

    def weights(self) -> Mapping[str, Tensor]:
        """Return the whole model's weights, which ranks along ``cp`` have in common."""
        return self._held.weights()

    def tiles(self) -> Mapping[str, Tile]:
        """Return what this rank holds, which ranks along ``cp`` have in common."""
        return self._held.tiles()

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take over the weights of a whole model."""
        self._held.load(weights)

    def gathered(self, held: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what belongs to the whole model's weights, which ranks along ``cp`` have in common."""
        return self._held.gathered(held)

    def shared_out(self, whole: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what this rank has of what belongs to the whole model's weights."""
        return self._held.shared_out(whole)
