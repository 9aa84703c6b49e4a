"""The protocol of a model on a mesh: what a role asks of its model, however it is split.

All methods but `tiles` are collective: every rank of the mesh calls them in the same order. Ranks that differ only
along ``tp``, ``cp`` or ``pp`` are given the same rows; ranks along ``dp`` (and ``ep``, which are data parallel ranks
for everything but experts) different ones, in equally many micro-batches. Gradients are sums over rows; what they are
divided by is known only at the update.

Shapes: B rows of a micro-batch, T tokens of its longest row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from rpeg.numerics.parallel.shards import Tile
from rpeg.numerics.scores import Scores

__all__ = ["Loss", "Padded", "ParallelModel", "Trained"]


@dataclass(frozen=True, slots=True)
class Padded:
    """Rows of a micro-batch, padded on the right."""

    tokens_BT: Tensor
    """Token ids; int64."""
    mask_BT: Tensor
    """True for trained tokens; False in slot 0. A micro-batch without any fills up the number that ranks agree on."""


Loss = Callable[[int, Scores], Tensor]
"""Makes the loss, a sum, of the micro-batch of that number from its scores."""


Trained = Mapping[str, nn.Parameter]
"""What has the gradients, by the names of `ParallelModel.parameters`, where it is not these: their master weights."""


class ParallelModel(Protocol):
    """A causal language model on a mesh."""

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Return what this rank holds and trains, by the names of the whole model; mostly DTensors."""
        ...

    def backward(self, batches: Sequence[Padded], loss: Loss) -> None:
        """Add the gradients of the losses of all micro-batches to those of the parameters.

        Where scores exist on some ranks only, as on the last of a pipeline, ``loss`` is called on these alone.
        """
        ...

    def score(self, batches: Sequence[Padded]) -> list[Scores]:
        """Return the scores of all micro-batches, without gradients, on every rank."""
        ...

    def sum_gradients(self, of: Trained | None = None) -> None:
        """Make every gradient the sum over all ranks that have seen other rows: called once, before the update."""
        ...

    def total_norm(self, of: Trained | None = None) -> float:
        """Return the L2 norm of the gradient of the whole model, every parameter counted once."""
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """Return the whole model's weights by name, on every rank, each tied weight once."""
        ...

    def tiles(self) -> Mapping[str, Tile]:
        """Return which box of every weight this rank holds, by the names of the whole model, and what is in it.

        A tied weight has one name. Boxes may be empty; those of all ranks are equal or apart, and cover everything.
        """
        ...

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take over the weights of a whole model."""
        ...

    def gathered(self, held: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what belongs to the trained weights of the whole model, as moments do, on every rank.

        Args:
            held: What this rank has for its `parameters`, by the same names and split like them, in one number format.
        """
        ...

    def shared_out(self, whole: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what this rank has, for its `parameters`, of what belongs to the weights of the whole model."""
        ...
