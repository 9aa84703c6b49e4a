"""What a critic learns: its loss over micro-batches, and the sums for its metrics."""

from __future__ import annotations

from torch import Tensor

from rpeg.numerics.aggregation import Counts
from rpeg.numerics.parallel.peers import Peers
from rpeg.numerics.values import ValueInputs, ValueSums, value_loss
from rpeg.runtime.passes import MicroBatch

__all__ = ["ValueObjective"]

_UNDIVIDED = Counts(1, 1)


class ValueObjective:
    """The loss of the values, with the sums of the step so far."""

    def __init__(self, clip: float | None) -> None:
        """Clip values around those the advantages were made with, if at all."""
        self._clip = clip
        self._sums = ValueSums.zero()

    def loss(self, batch: MicroBatch, values_BT: Tensor) -> Tensor:
        """Return the sum over the tokens of a micro-batch; to be divided by the tokens of the update."""
        inputs = ValueInputs(values_BT, batch.column("old_value"), batch.column("return"), batch.mask_BT)
        terms = value_loss(inputs, self._clip, _UNDIVIDED)
        self._sums += terms.sums
        return terms.loss

    def metrics(self, peers: Peers) -> dict[str, float]:
        """Return the metrics of the step over the rows of all ranks, and begin the next."""
        sums, self._sums = ValueSums(peers.total(self._sums.sums_S)), ValueSums.zero()
        return sums.metrics()
