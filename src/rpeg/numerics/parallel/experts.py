"""Expert parallelism: every rank has some of the experts, and tokens travel to those that the router chose for them.

    tokens ─router─▶ pairs of a token and an expert ─exchange─▶ own experts ─exchange─▶ weighted sum per token

Ranks along ``ep`` have different tokens and exchange them. Ranks along ``tp`` have the same ones: each takes care of
the pairs whose expert it has, or does its part of every expert's matrices, and their results are added up.

Shapes: N tokens, K experts per token, P pairs, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from rpeg.numerics.parallel.axes import axis_group
from rpeg.numerics.parallel.collectives import enter, exchange, leave
from rpeg.numerics.parallel.shards import Shard

__all__ = ["split_experts"]

_WEIGHTS = ".gate_up_proj"
_EXPERT = 0
"""The dimension of the weights that counts experts."""


def split_experts(model: PreTrainedModel, shards: Mapping[str, Shard], mesh: DeviceMesh) -> None:
    """Let the experts of a model that has its parts of the weights compute what all of them compute.

    Args:
        model: After `rpeg.numerics.parallel.tensor.take_parts`.
        shards: What this rank holds of it.
        mesh: With an axis ``ep`` or ``tp``; without them nothing is done.
    """
    for name, shard in shards.items():
        if name.endswith(_WEIGHTS) and shard.cuts:
            experts: Any = model.get_submodule(name.removesuffix(_WEIGHTS))
            experts.num_experts = len(experts.gate_up_proj)
            experts.forward = _Dispatch(experts.forward, shard, mesh)


class _Dispatch:
    """The forward pass of a set of experts of which this rank has some, or a part."""

    def __init__(self, own: Callable[[Tensor, Tensor, Tensor], Tensor], shard: Shard, mesh: DeviceMesh) -> None:
        """Take the pass of the experts that are here."""
        self._own, self._count = own, shard.shape[_EXPERT]
        self._cuts = [cut for cut in shard.cuts if cut.dim == _EXPERT]
        self._across = axis_group(mesh, "ep") if shard.cut_over("ep") else None
        self._beside = axis_group(mesh, "tp") if shard.cut_over("tp") else None

    def __call__(self, hidden_ND: Tensor, experts_NK: Tensor, weights_NK: Tensor) -> Tensor:
        """Return the weighted sum of the answers of each token's experts."""
        if self._beside is not None:
            hidden_ND, weights_NK = enter(hidden_ND, self._beside), enter(weights_NK, self._beside)
        owners, local_P, mine_P = self._owners(experts_NK.flatten())
        tokens_P = mine_P // experts_NK.shape[1]
        answers_PD = self._ask(hidden_ND[tokens_P], owners[mine_P], local_P[mine_P])
        weighted_PD = answers_PD * weights_NK.flatten()[mine_P].unsqueeze(-1)
        sums_ND = torch.zeros_like(hidden_ND, dtype=weighted_PD.dtype).index_add(0, tokens_P, weighted_PD)
        return sums_ND.to(hidden_ND.dtype) if self._beside is None else leave(sums_ND.to(hidden_ND.dtype), self._beside)

    def _owners(self, experts_P: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return per pair which rank along ep has the expert, its number there, and the pairs that this rank sends."""
        owners_P, left_P, size = torch.zeros_like(experts_P), experts_P, self._count
        is_mine_P = torch.ones_like(experts_P, dtype=torch.bool)
        for cut in self._cuts:
            size //= cut.pieces
            if cut.axis == "ep":
                owners_P = left_P // size
            else:
                is_mine_P &= left_P // size == cut.index
            left_P = left_P % size
        return owners_P, left_P, is_mine_P.nonzero().squeeze(-1)

    def _ask(self, hidden_PD: Tensor, owners_P: Tensor, local_P: Tensor) -> Tensor:
        """Return the answer of each pair's expert, wherever that is."""
        if self._across is None:
            return self._answers(hidden_PD, local_P)
        order_P = owners_P.argsort(stable=True)
        sent_R = owners_P.bincount(minlength=dist.get_world_size(self._across))
        received_R = torch.empty_like(sent_R)
        dist.all_to_all_single(received_R, sent_R, group=self._across)
        sent, received = sent_R.tolist(), received_R.tolist()
        arrived_PD = exchange(hidden_PD[order_P], sent, received, self._across)
        numbers_P = exchange(local_P[order_P], sent, received, self._across)
        answers_PD = exchange(self._answers(arrived_PD, numbers_P), received, sent, self._across)
        return answers_PD[order_P.argsort()]

    def _answers(self, hidden_PD: Tensor, local_P: Tensor) -> Tensor:
        """Return what the experts that are here say, unweighted."""
        if len(hidden_PD) == 0:
            # A row of zeros keeps the experts in the graph, so that all ranks have a gradient and go back alike.
            zeros_1D = hidden_PD.sum(0, keepdim=True)
            return self._own(zeros_1D, local_P.new_zeros(1, 1), hidden_PD.new_ones(1, 1))[:0]
        return self._own(hidden_PD, local_P.unsqueeze(-1), hidden_PD.new_ones(len(hidden_PD), 1))
