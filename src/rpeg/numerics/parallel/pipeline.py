"""A model whose layers lie on the ranks along ``pp``: micro-batches go from one to the next and back.

Every rank along ``pp`` is given all micro-batches, so that shapes are known everywhere: nothing is padded to a common
length, and micro-batches of any shapes follow each other.

Shapes: B rows of a micro-batch, T tokens of its longest row, D hidden size, N trained tokens of all micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from rpeg.numerics.logprobs import in_slots
from rpeg.numerics.parallel.axes import axis_group, axis_rank, axis_size
from rpeg.numerics.parallel.context_attention import split_attention
from rpeg.numerics.parallel.deferred_weights import DeferredWeights
from rpeg.numerics.parallel.held import Hold, reshard, rest_of
from rpeg.numerics.parallel.parallel_model import Loss, Padded
from rpeg.numerics.parallel.pipeline_order import Schedule, forward_only, num_parts, orders, programs
from rpeg.numerics.parallel.pipeline_parts import Span, cut, part_of, spans, tied_names, whole_name
from rpeg.numerics.parallel.pipeline_run import PipelineRun, States
from rpeg.numerics.parallel.scoring import Scoring
from rpeg.numerics.parallel.shards import Tile
from rpeg.numerics.parallel.token_runs import TokenRuns, sum_gradients_over
from rpeg.numerics.scores import Scores

__all__ = ["PipelineModel"]


class PipelineModel:
    """A `ParallelModel` over ``pp``, over ``cp`` if the mesh has it, and over what else the parts are split over."""

    def __init__(
        self,
        model: PreTrainedModel,
        mesh: DeviceMesh,
        hold: Hold,
        schedule: Schedule,
        temperature: float,
        autocast: torch.dtype | None = None,
    ) -> None:
        """Take this rank's parts of a model.

        Args:
            model: Complete and the same on every rank, which afterwards needs nothing of it but its parts.
            mesh: With an axis ``pp`` of two ranks or more, and maybe ``cp``.
            hold: Splits a part over the other axes of the mesh.
            schedule: In which order micro-batches pass.
            temperature: What logits are divided by; above 0.
            autocast: The number format of the arithmetic, if not that of the weights.
        """
        group = axis_group(mesh, "pp")
        assert group is not None, f"no pipeline along {mesh.mesh_dim_names} of {tuple(mesh.shape)}"
        self._group, self._rank, self._size = group, axis_rank(mesh, "pp"), axis_size(mesh, "pp")
        self._schedule: Schedule = schedule
        self._parts = num_parts(schedule, self._size)
        every = spans(model.config.num_hidden_layers, self._parts)
        self._prefix, self._tied = model.base_model_prefix, tied_names(model)
        self._like = {name: (each.shape, each.dtype) for name, each in model.named_parameters()}
        runs, rest = TokenRuns(mesh), rest_of(mesh, "pp", "cp")
        self._context = runs.group
        if runs.group is not None:
            split_attention(model, mesh)
        mine = {span.number: (span, cut(model, span)) for span in every[self._rank :: self._size]}
        self._names = {number: [name for name, _ in part.named_parameters()] for number, (_, part) in mine.items()}
        self._held = {number: (span, hold(part, rest)) for number, (span, part) in mine.items()}
        self._owner = {name: part_of(name, every, self._prefix) % self._size for name in self._like}
        parts = {number: (span, held.model) for number, (span, held) in self._held.items()}
        first = next(model.parameters())
        self._device = first.device
        deferred = DeferredWeights(part for _, part in parts.values()) if schedule == "zero_bubble" else None
        states = States(model.config.hidden_size, first.dtype, first.device)
        self._run = PipelineRun(parts, group, states, Scoring(runs, temperature, autocast), deferred)
        self._tie_ends()

    def _tie_ends(self) -> None:
        """Make the copies of a tied weight equal."""
        for copy in self._tied_copies():
            if self._is_last:
                dist.recv(_local(copy.detach()), group=self._group, group_src=0)
            else:
                dist.send(_local(copy.detach()), group=self._group, group_dst=self._size - 1)

    def _tied_copies(self) -> list[nn.Parameter]:
        """Return what this rank trains of weights that are on both ends."""
        if self._rank not in (0, self._size - 1):
            return []
        mine = self.parameters()
        return [mine[name] for name in sorted(set(self._tied.values())) if name in mine]

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Return what this rank holds, by the names of the whole model; a tied weight is on the first and last rank."""
        return {
            self._name(name, span): each
            for span, held in self._held.values()
            for name, each in held.parameters().items()
        }

    def _name(self, name: str, span: Span) -> str:
        path = whole_name(name, span, self._prefix)
        return self._tied.get(path, path)

    def backward(self, batches: Sequence[Padded], loss: Loss) -> None:
        """Add the gradients of all micro-batches; ``loss`` is called on the last rank alone."""
        program = programs(orders(self._schedule, self._size, len(batches)), self._parts)[self._rank]
        self._run.train(program, batches, loss)

    @torch.no_grad()
    def score(self, batches: Sequence[Padded]) -> list[Scores]:
        """Return the scores of all micro-batches: the last rank makes them and tells all others."""
        program = programs(forward_only(orders(self._schedule, self._size, len(batches))), self._parts)[self._rank]
        found = self._run.score(program, batches)
        for _, held in self._held.values():
            reshard(held.model)
        counts = [int(batch.mask_BT.sum()) for batch in batches]
        both_2N = torch.empty(2, sum(counts), device=self._device)
        if self._is_last:
            for row, name in enumerate(("logps_BT", "entropies_BT")):
                values = [getattr(found[i], name)[batch.mask_BT] for i, batch in enumerate(batches)]
                both_2N[row] = torch.cat(values) if values else both_2N[row]
        dist.broadcast(both_2N, group=self._group, group_src=self._size - 1)
        logps, entropies = (values_N.split(counts) for values_N in both_2N)
        return [
            Scores(in_slots(logps[i], batch.mask_BT), in_slots(entropies[i], batch.mask_BT), None)
            for i, batch in enumerate(batches)
        ]

    @property
    def _is_last(self) -> bool:
        return self._rank == self._size - 1

    def sum_gradients(self) -> None:
        """Sum over ranks that have seen other rows; then the gradients of the two copies of a tied weight."""
        for _, held in self._held.values():
            held.sum_gradients()
        if self._context is not None:
            sum_gradients_over(self._context, self.parameters().values())
        for copy in self._tied_copies():
            if copy.grad is not None:  # without any micro-batch it is None at both ends
                mine = _local(copy.grad)
                mine += self._of_other_end(mine)

    def total_norm(self) -> float:
        """Return the L2 norm over all parts; a tied weight counts where the embedding is."""
        copies = self._tied_copies() if self._is_last else []
        set_aside = [copy.grad for copy in copies]
        for copy in copies:
            copy.grad = None
        square = torch.tensor([sum(held.total_norm() ** 2 for _, held in self._held.values())], dtype=torch.float64)
        for copy, gradient in zip(copies, set_aside, strict=True):
            copy.grad = gradient
        square = square.to(self._device)
        dist.all_reduce(square, group=self._group)
        return float(square.sqrt())

    def weights(self) -> Mapping[str, Tensor]:
        """Return the whole model's weights: every rank tells the others its own."""
        mine = {
            self._name(name, span): weight
            for span, held in self._held.values()
            for name, weight in held.weights().items()
        }
        found: dict[str, Tensor] = {}
        for name, (shape, dtype) in self._like.items():
            owner = self._owner[name]
            weight = mine[name] if owner == self._rank else torch.empty(shape, dtype=dtype, device=self._device)
            dist.broadcast(weight.contiguous(), group=self._group, group_src=owner)
            found[name] = weight
        return found

    def tiles(self) -> Mapping[str, Tile]:
        """Return what this rank holds; a tied weight is on the first and last rank."""
        return {
            self._name(name, span): tile for span, held in self._held.values() for name, tile in held.tiles().items()
        }

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take over this rank's parts of a whole model."""
        for span, held in self._held.values():
            held.load({name: weights[self._name(name, span)] for name in self._names[span.number]})

    def _of_other_end(self, mine: Tensor) -> Tensor:
        """Exchange tensors between the first and the last rank."""
        other, theirs = (0 if self._is_last else self._size - 1), torch.empty_like(mine)
        exchange = [
            dist.P2POp(dist.isend, mine, group=self._group, group_peer=other),
            dist.P2POp(dist.irecv, theirs, group=self._group, group_peer=other),
        ]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        return theirs


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
