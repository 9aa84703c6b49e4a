"""A rank of a pipeline at work: it goes through its program, computes, and exchanges states and their gradients.

Shapes: B rows of a micro-batch, L tokens of its longest row on this rank, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from rpeg.numerics.parallel.deferred_weights import DeferredWeights
from rpeg.numerics.parallel.parallel_model import Loss, Padded
from rpeg.numerics.parallel.pipeline_order import Action, Arrival, Departure, Work
from rpeg.numerics.parallel.pipeline_parts import Span
from rpeg.numerics.parallel.scoring import Scoring
from rpeg.numerics.scores import Scores

__all__ = ["PipelineRun", "States", "Step"]

Step = Action | Departure | Arrival


@dataclass
class _Call:
    """What is under way in one call."""

    batches: Sequence[Padded]
    loss: Loss | None
    """None: scores are wanted, without gradients."""
    arriving: dict[Action, tuple[Tensor, dist.Work]] = field(default_factory=dict)
    """By the action that makes it."""
    leaving: dict[Action, Tensor] = field(default_factory=dict)
    sent: list[tuple[Tensor, dist.Work]] = field(default_factory=list)
    """Kept until they have left; most are kept for the backward pass anyway."""
    passed: dict[tuple[int, int], tuple[Tensor | None, Tensor]] = field(default_factory=dict)
    """By part and micro-batch, what came in (None: tokens) and what went out: states, or the loss."""
    scores: dict[int, Scores] = field(default_factory=dict)
    """By micro-batch; on the rank with the last part."""


@dataclass(frozen=True, slots=True)
class States:
    """What travels between parts, per token."""

    size: int
    dtype: torch.dtype
    device: torch.device


class PipelineRun:
    """The parts of one rank, and what it takes to run them."""

    def __init__(
        self,
        parts: Mapping[int, tuple[Span, PreTrainedModel]],
        group: dist.ProcessGroup,
        states: States,
        scoring: Scoring,
        deferred: DeferredWeights | None = None,
    ) -> None:
        """Take the parts by their numbers.

        Args:
            parts: Layers and model of each.
            group: The ranks of the pipeline.
            states: What travels between parts.
            scoring: How rows go through the parts.
            deferred: What has the gradients of weights that are made later, if any are.
        """
        self._parts, self._group = parts, group
        self._made, self._scoring, self._deferred = states, scoring, deferred

    def train(self, program: Sequence[Step], batches: Sequence[Padded], loss: Loss) -> None:
        """Add the gradients of all micro-batches to those of the parameters."""
        self._play(program, _Call(batches, loss))

    def score(self, program: Sequence[Step], batches: Sequence[Padded]) -> Mapping[int, Scores]:
        """Return the scores of all micro-batches on the rank that makes them, nothing on others."""
        call = _Call(batches, None)
        with torch.no_grad():
            self._play(program, call)
        return call.scores

    def _play(self, program: Sequence[Step], call: _Call) -> None:
        for step in program:
            match step:
                case Action(work=Work.FORWARD):
                    self._forward(step, call)
                case Action(work=Work.BACKWARD):
                    self._backward(step, call)
                case Action():
                    assert self._deferred is not None, f"nothing was put off for {step}"
                    self._deferred.make((step.part, step.batch))
                case Departure():
                    self._depart(step, call)
                case Arrival():
                    self._await(step, call)
        for _, work in call.sent:
            work.wait()

    def _depart(self, step: Departure, call: _Call) -> None:
        states = call.leaving.pop(step.made_by)
        work = dist.isend(states, group=self._group, group_dst=step.to_rank)
        assert work is not None, "the sender is in the group"
        call.sent.append((states, work))

    def _await(self, step: Arrival, call: _Call) -> None:
        shape = (*self._scoring.runs.shape(call.batches[step.made_by.batch]), self._made.size)
        states = torch.empty(shape, dtype=self._made.dtype, device=self._made.device)
        work = dist.irecv(states, group=self._group, group_src=step.from_rank)
        assert work is not None, "the receiver is in the group"
        call.arriving[step.made_by] = states, work

    def _take(self, action: Action, call: _Call) -> Tensor:
        states, work = call.arriving.pop(action)
        work.wait()
        return states

    def _forward(self, action: Action, call: _Call) -> None:
        span, model = self._parts[action.part]
        batch, states_BLD = call.batches[action.batch], None
        if not span.is_first:
            states_BLD = self._take(Action(Work.FORWARD, action.part - 1, action.batch), call)
            states_BLD.requires_grad_(call.loss is not None)
        with self._putting_off(action, call):
            if span.is_last:
                made = self._scoring.scores(model, batch, states_BLD)
            else:
                made = self._scoring.states(model, batch, states_BLD).to(self._made.dtype)
        if isinstance(made, Scores):
            call.scores[action.batch] = made
        else:
            call.leaving[action] = made
        if call.loss is not None:
            out = call.loss(action.batch, made) if isinstance(made, Scores) else made
            call.passed[action.part, action.batch] = states_BLD, out

    def _backward(self, action: Action, call: _Call) -> None:
        states_BLD, out = call.passed.pop((action.part, action.batch))
        if self._parts[action.part][0].is_last:
            out.backward()
        else:
            gradient_BLD = self._take(Action(Work.BACKWARD, action.part + 1, action.batch), call)
            if out.requires_grad:  # not so below the first layer that is trained
                out.backward(gradient_BLD)
        if states_BLD is not None:
            assert states_BLD.grad is not None, "states come in to be changed by a layer"
            call.leaving[action] = states_BLD.grad.contiguous()

    def _putting_off(self, action: Action, call: _Call) -> AbstractContextManager[None]:
        if self._deferred is None or call.loss is None:
            return nullcontext()
        return self._deferred.putting_off((action.part, action.batch))
