"""A model whose layers lie on the ranks along ``pp``: micro-batches go from one to the next and back.

Every rank along ``pp`` is given all micro-batches, so that shapes are known everywhere: nothing is padded to a common
length, and micro-batches of any shapes follow each other.

Shapes: B rows of a micro-batch, T tokens of its longest row, D hidden size, N trained tokens of all micro-batches,
S kinds of scores.
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
from rpeg.numerics.parallel.held import Hold, ModelPart, reshard, rest_of
from rpeg.numerics.parallel.parallel_model import Loss, Padded, Trained
from rpeg.numerics.parallel.pipeline_order import Schedule, forward_only, num_parts, orders, programs
from rpeg.numerics.parallel.pipeline_parts import Span, cut, part_of, spans, tied_names, whole_name
from rpeg.numerics.parallel.pipeline_run import PipelineRun, States
from rpeg.numerics.parallel.scoring import Scoring
from rpeg.numerics.parallel.sharded import Passing
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
        passing: Passing,
    ) -> None:
        """Take this rank's parts of a model.

        Args:
            model: Complete and the same on every rank, which afterwards needs nothing of it but its parts.
            mesh: With an axis ``pp`` of two ranks or more, and maybe ``cp``.
            hold: Splits a part over the other axes of the mesh.
            schedule: In which order micro-batches pass.
            passing: How rows go through it.
        """
        group = axis_group(mesh, "pp")
        assert group is not None, f"no pipeline along {mesh.mesh_dim_names} of {tuple(mesh.shape)}"
        self._group, self._rank, self._size = group, axis_rank(mesh, "pp"), axis_size(mesh, "pp")
        self._schedule: Schedule = schedule
        self._has_values = passing.value_head is not None
        self._parts = num_parts(schedule, self._size)
        every = spans(model.config.num_hidden_layers, self._parts)
        self._prefix, self._tied = model.base_model_prefix, tied_names(model)
        self._like = {name: (each.shape, each.dtype) for name, each in model.named_parameters()}
        self._trained = [name for name, each in model.named_parameters() if each.requires_grad]
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
        self._run = PipelineRun(parts, group, states, Scoring(runs, passing), deferred)
        self._tie_ends()

    def _tie_ends(self) -> None:
        """Make the copies of a tied weight equal."""
        for copy in self._tied_copies(self.parameters()):
            if self._is_last:
                dist.recv(_local(copy.detach()), group=self._group, group_src=0)
            else:
                dist.send(_local(copy.detach()), group=self._group, group_dst=self._size - 1)

    def _tied_copies(self, mine: Trained) -> list[nn.Parameter]:
        """Return what this rank trains of weights that are on both ends."""
        if self._rank not in (0, self._size - 1):
            return []
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
        names = ("logps_BT", "entropies_BT", "values_BT")[: 3 if self._has_values else 2]
        all_SN = torch.empty(len(names), sum(counts), device=self._device)
        if self._is_last:
            for row, name in enumerate(names):
                values = [getattr(found[i], name)[batch.mask_BT] for i, batch in enumerate(batches)]
                all_SN[row] = torch.cat(values) if values else all_SN[row]
        dist.broadcast(all_SN, group=self._group, group_src=self._size - 1)
        parts = [values_N.split(counts) for values_N in all_SN]
        made = [[in_slots(each[i], batch.mask_BT) for each in parts] for i, batch in enumerate(batches)]
        return [Scores(logps_BT, entropies_BT, *(values or [None])) for logps_BT, entropies_BT, *values in made]

    @property
    def _is_last(self) -> bool:
        return self._rank == self._size - 1

    def sum_gradients(self, of: Trained | None = None) -> None:
        """Sum over ranks that have seen other rows; then the gradients of the two copies of a tied weight."""
        trained = of or self.parameters()
        for span, held in self._held.values():
            held.sum_gradients(self._of_part(trained, span, held))
        if self._context is not None:
            sum_gradients_over(self._context, trained.values())
        for copy in self._tied_copies(trained):
            if copy.grad is not None:  # without any micro-batch it is None at both ends
                mine = _local(copy.grad)
                mine += self._of_other_end(mine)

    def _of_part(self, trained: Trained, span: Span, held: ModelPart) -> Trained:
        """Return what belongs to a part of what this rank trains, by the names that it has there."""
        return {name: trained[self._name(name, span)] for name in held.parameters()}

    def total_norm(self, of: Trained | None = None) -> float:
        """Return the L2 norm over all parts; a tied weight counts where the embedding is."""
        trained = of or self.parameters()
        copies = self._tied_copies(trained) if self._is_last else []
        set_aside = [copy.grad for copy in copies]
        for copy in copies:
            copy.grad = None
        norms = [held.total_norm(self._of_part(trained, span, held)) for span, held in self._held.values()]
        square = torch.tensor([sum(norm**2 for norm in norms)], dtype=torch.float64)
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
        return {name: self._told(name, mine, dtype) for name, (_, dtype) in self._like.items()}

    def gathered(self, held: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what belongs to the whole model's weights: every rank tells the others what it has for its own."""
        dtype = next(iter(held.values())).dtype
        mine: dict[str, Tensor] = {}
        for span, part in self._held.values():
            own = {name: held[self._name(name, span)] for name in part.parameters()}
            mine |= {self._name(name, span): each for name, each in part.gathered(own).items()}
        return {name: self._told(name, mine, dtype) for name in self._trained}

    def _told(self, name: str, mine: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Return what the rank that answers for a weight has for it."""
        owner, shape = self._owner[name], self._like[name][0]
        found = mine[name].contiguous() if owner == self._rank else torch.empty(shape, dtype=dtype, device=self._device)
        dist.broadcast(found, group=self._group, group_src=owner)
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

    def shared_out(self, whole: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what this rank has of what belongs to the whole model's weights."""
        found: dict[str, Tensor] = {}
        for span, part in self._held.values():
            of_part = part.shared_out({name: whole[self._name(name, span)] for name in part.parameters()})
            found |= {self._name(name, span): each for name, each in of_part.items()}
        return found

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
