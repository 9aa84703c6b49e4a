"""How the tokens of a row lie on the ranks along ``cp``: each has a run of neighbouring tokens, all of one length.

Contiguous runs rather than two runs each from both ends (zig-zag), which is done so that causal attention gives every
rank equal work: here attention is split over heads, with all tokens of a head on one rank, so work is equal anyway. And
positions that jump would be taken for several rows packed into one.

A trained token is predicted one slot earlier, which may be another rank's: tokens are shifted before they are split.

Shapes: B rows, T tokens of the longest row, P of them after padding, L on this rank, N trained tokens predicted here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from rpeg.numerics.head_input import predicting_slots
from rpeg.numerics.logprobs import in_slots
from rpeg.numerics.parallel.axes import axis_group, axis_rank, axis_size
from rpeg.numerics.parallel.collectives import add_up, join
from rpeg.numerics.parallel.parallel_model import Padded

__all__ = ["Run", "TokenRuns", "sum_gradients_over"]


@dataclass(frozen=True, slots=True)
class Run:
    """What one rank has of a micro-batch."""

    tokens_BL: Tensor
    positions_1L: Tensor
    """Of its tokens in their rows."""
    slots_BL: Tensor
    """Where trained tokens are predicted."""
    targets_N: Tensor
    """These tokens."""


class TokenRuns:
    """The place of this rank along ``cp``, if its mesh has that axis."""

    def __init__(self, mesh: DeviceMesh) -> None:
        """Find the rank's place; tensor parallel ranks, too, may share the tokens of a row, within a run."""
        self.group, self.size, self.rank = axis_group(mesh, "cp"), axis_size(mesh, "cp"), axis_rank(mesh, "cp")
        self._multiple = self.size * axis_size(mesh, "tp")

    def shape(self, batch: Padded) -> tuple[int, int]:
        """Return the rows of a micro-batch, and the tokens of each that this rank has."""
        rows, tokens = batch.tokens_BT.shape
        return rows, -(-tokens // self._multiple) * self._multiple // self.size

    def run(self, batch: Padded) -> Run:
        """Return this rank's part of a micro-batch."""
        length = self.shape(batch)[1]
        padding = (0, length * self.size - batch.tokens_BT.shape[1])
        tokens_BP, mask_BP = nn.functional.pad(batch.tokens_BT, padding), nn.functional.pad(batch.mask_BT, padding)
        mine = slice(self.rank * length, (self.rank + 1) * length)
        slots_BL = predicting_slots(mask_BP)[:, mine]
        positions_1L = torch.arange(mine.start, mine.stop, device=tokens_BP.device).unsqueeze(0)
        return Run(tokens_BP[:, mine], positions_1L, slots_BL, tokens_BP.roll(-1, dims=1)[:, mine][slots_BL])

    def whole(self, values_N: Tensor, run: Run, batch: Padded) -> Tensor:
        """Return what all ranks made of their trained tokens, in the slots [B, T] of these, on every rank.

        All ranks go on with it alike, so each takes its own part of the gradient.
        """
        values_BL = in_slots(values_N, run.slots_BL)
        values_BP = values_BL if self.group is None else join(values_BL, 1, self.group)
        # From the slots that predict to those that are predicted; the last one predicts nothing, and is 0.
        return values_BP.roll(1, dims=1)[:, : batch.tokens_BT.shape[1]]


def sum_gradients_over(group: dist.ProcessGroup, parameters: Iterable[nn.Parameter]) -> None:
    """Replace gradients, of shares too, by their sums over a group whose ranks have them for the same parameters."""
    gradients = [each.grad for each in parameters if each.grad is not None]
    add_up([each.to_local() if isinstance(each, DTensor) else each for each in gradients], group)
