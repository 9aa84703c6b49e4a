"""What lies on the fullest device of a training job, resident by resident, at the moment when it is most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rpeg.perf.activations import Kept, activation_bytes_per_layer, in_flight, layer_input_bytes, logits_bytes
from rpeg.perf.memory import (
    MemoryConstants,
    collective_buffer_bytes,
    gradient_bytes,
    optimizer_bytes,
    weights_bytes,
)
from rpeg.perf.stage_parameters import (
    Degrees,
    StageParameters,
    adapter_parameters,
    last_layers,
    stage_layers,
    stage_parameters,
)
from rpeg.plan.plan import Pipeline
from rpeg.shapes.model import ModelShape
from rpeg.shapes.operations import Real

__all__ = ["Moment", "Training", "TrainingMemory", "training_memory"]

_OUTSIDE = ("collective buffers", "context")
"""What the allocator of the framework does not know of."""


@dataclass(frozen=True, slots=True)
class Training:
    """A training job, as far as its memory goes; numbers may be arrays over layouts."""

    shape: ModelShape
    degrees: Degrees
    tokens: Real
    """Of one micro-batch on one data parallel rank, before context parallelism."""
    length_tokens: Real
    """Of one sequence."""
    num_micro_batches: Real = 1.0
    """Per data parallel rank and update."""
    kept: Kept = Kept.ALL
    pipeline: Pipeline = Pipeline.ONE_F_ONE_B
    loss_pieces: Real = 1.0
    """In how many pieces logits are made, used and dropped: chunked or fused cross-entropy."""
    has_head: bool = True
    """Whether there are logits of the vocabulary; a critic or a reward model has one number per token."""
    is_optimizer_on_host: bool = False
    """Whether float32 weights and moments are in the memory of the host but for the update."""
    adapter_rank: int = 0
    """Rank of low-rank adapters; 0: all weights are trained."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What lies on a device of one stage at one moment."""

    stage: str
    """``first`` or ``last``: the stages with most in flight, and with the logits."""
    interval: str
    """``loss``, ``backward`` or ``update``."""
    residents: Mapping[str, Real]
    """Bytes by name."""

    @property
    def total(self) -> Real:
        """All bytes."""
        return sum(self.residents.values(), start=0.0)


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """Bytes on the fullest device; of arrays of layouts, arrays."""

    moments: Sequence[Moment]

    @property
    def total(self) -> Real:
        """Bytes at the fullest moment."""
        return np.max(self._totals, axis=0)[()]

    @property
    def allocator_bytes(self) -> Real:
        """Of them, what the framework's allocator has reserved: all but the CUDA context and NCCL."""
        return self.total - sum((self.residents[name] for name in _OUTSIDE), start=0.0)

    @property
    def residents(self) -> dict[str, Real]:
        """Bytes by name at the fullest moment; they sum to the total."""
        fullest = np.argmax(self._totals, axis=0)
        return {name: self._at(name, fullest) for name in self.moments[0].residents}

    @property
    def fullest(self) -> Moment:
        """The fullest moment of a single layout."""
        return self.moments[int(np.argmax(self._totals, axis=0))]

    @property
    def _totals(self) -> npt.NDArray[np.float64]:
        return np.stack(np.broadcast_arrays(*(np.asarray(moment.total, dtype=float) for moment in self.moments)))

    def _at(self, name: str, fullest: npt.NDArray[np.intp]) -> Real:
        choices = np.stack(
            [np.broadcast_to(np.asarray(moment.residents[name], dtype=float), fullest.shape) for moment in self.moments]
        )
        return np.take_along_axis(choices, np.asarray(fullest)[None], axis=0)[0][()]


def training_memory(training: Training, constants: MemoryConstants | None = None) -> TrainingMemory:
    """Return what a training job needs on its fullest device.

    The first stage of a pipeline has most micro-batches in flight, the last one the logits. On both the fullest of
    three moments is looked for: the loss (state, all activations, copies of logits), the start of the backward pass
    (state, all activations, one layer that is recomputed and goes backward), and the update (state, what the optimizer
    makes).

    Example:
        >>> from rpeg.shapes.catalog import shape_of
        >>> job = Training(shape_of("Qwen2.5-7B"), Degrees(), tokens=4096, length_tokens=4096, kept=Kept.INPUT)
        >>> found = training_memory(job)
        >>> found.fullest.interval, round(float(found.total) / 1e9, 1)
        ('update', 184.4)
    """
    used = constants or MemoryConstants()
    sides = [_Side.of(training, used, stage) for stage in ("first", "last")]
    return TrainingMemory([moment for side in sides for moment in side.moments()])


@dataclass(frozen=True, slots=True)
class _Side:
    """One end of the pipeline; with one stage both ends are the same."""

    training: Training
    constants: MemoryConstants
    stage: str
    layers: Real
    is_last: Real
    """1 where this stage has the head, else 0."""
    parameters: StageParameters
    """Of this stage on one device."""
    trained: StageParameters
    """Of them, those that are trained; of adapters, the adapters."""

    @staticmethod
    def of(training: Training, constants: MemoryConstants, stage: str) -> _Side:
        """Return the first or the last stage."""
        shape, degrees = training.shape, training.degrees
        is_alone = np.where(np.asarray(degrees.pp) > 1, 0.0, 1.0)[()]
        head_layers = _head_layers(shape) if constants.is_head_balanced else 0.0
        layers = (last_layers if stage == "last" else stage_layers)(shape.layers, degrees.pp, head_layers)
        is_first, is_last = (is_alone, 1.0) if stage == "last" else (1.0, is_alone)
        held = stage_parameters(shape, degrees, layers=layers, is_first=is_first, is_last=is_last)
        trained = held
        if training.adapter_rank:
            of_layer = adapter_parameters(shape, training.adapter_rank) / shape.layers
            trained = StageParameters(of_layer * layers / degrees.tp, 0.0, 0.0)
        return _Side(training, constants, stage, layers, is_last, held, trained)

    def moments(self) -> list[Moment]:
        """Return what lies there at each moment."""
        state, saved = self._state(), self._saved_bytes()
        of_layer, staying, gradients = self._gathered()
        weights = staying + 2.0 * of_layer
        loss = {"activations": saved, "logits": self._logits_bytes(), "gathered weights": weights}
        backward = {
            "activations": saved,
            "layer in backward": self._layer_bytes(),
            "gathered weights": weights,
            "whole gradients": gradients,
        }
        on_host = {**state, "optimizer": 0.0} if self.training.is_optimizer_on_host else state
        return [
            self._moment("loss", on_host, loss),
            self._moment("backward", on_host, backward),
            self._moment("update", state, {"update": self._update_bytes()}),
        ]

    def _moment(self, interval: str, state: Mapping[str, Real], passing: Mapping[str, Real]) -> Moment:
        """Return the moment: the state, what is there for a time, the slack, what the allocator does not know of."""
        residents = {**state, **{name: passing.get(name, 0.0) for name in _PASSING}}
        residents["allocator slack"] = self.constants.slack_share * sum(residents.values(), start=0.0)
        residents["collective buffers"] = _buffer_bytes(self.training.degrees, self.constants)
        residents["context"] = self.constants.context_bytes
        return Moment(self.stage, interval, residents)

    def _state(self) -> dict[str, Real]:
        """Return what is there from step to step; adapters come on top of the weights."""
        state, degrees = self.constants.state, self.training.degrees
        weights = weights_bytes(self.parameters, degrees, state.weights)
        if self.training.adapter_rank:
            weights = weights + weights_bytes(self.trained, degrees, state.weights)
        return {
            "weights": weights,
            "gradients": gradient_bytes(self.trained, degrees, state.gradients),
            "optimizer": optimizer_bytes(self.trained, degrees, state.optimizer),
        }

    def _update_bytes(self) -> Real:
        return optimizer_bytes(self.trained, self.training.degrees, self.constants.update_bytes)

    def _of_layer(self, kept: Kept) -> Real:
        training = self.training
        return self.constants.activation_factor * activation_bytes_per_layer(
            training.shape,
            training.tokens,
            training.degrees,
            length_tokens=training.length_tokens,
            kept=kept,
            operators=self.constants.operators,
        )

    def _saved_bytes(self) -> Real:
        """Return the activations of all micro-batches in flight."""
        training, degrees = self.training, self.training.degrees
        if training.kept is Kept.OFFLOADED:
            return layer_input_bytes(training.shape, training.tokens, degrees)
        flying = in_flight(
            training.pipeline,
            num_stages=degrees.pp,
            num_micro_batches=training.num_micro_batches,
            virtual_stages=degrees.virtual_stages,
            stage=degrees.pp - 1.0 if self.stage == "last" else 0.0,
        )
        return flying * self.layers * self._of_layer(training.kept)

    def _layer_bytes(self) -> Real:
        """Return what one layer needs to go backward: what it has to make again, and gradients."""
        everything = self._of_layer(Kept.ALL)
        return everything * (1.0 + self.constants.gradient_share) - self._of_layer(self.training.kept)

    def _logits_bytes(self) -> Real:
        training, degrees = self.training, self.training.degrees
        if not training.has_head:
            return 0.0
        tokens = training.tokens / degrees.cp / training.loss_pieces
        return self.is_last * logits_bytes(tokens, training.shape.vocabulary, degrees.tp, self.constants.logit_bytes)

    def _gathered(self) -> tuple[Real, Real, Real]:
        """Return what ZeRO 3 has gathered: weights of one layer, weights that stay, and gradients in the backward pass.

        Embedding and head stay gathered. With a pipeline all weights of the stage do, and gradients are summed up whole
        over micro-batches, because gathering them anew for every micro-batch would take too long.
        """
        used, parameters = self.constants, self.parameters
        is_whole = np.asarray(self.training.degrees.zero) >= 3.0
        is_piped = is_whole & (np.asarray(self.training.degrees.pp) > 1)
        of_layer = np.where(is_whole & ~is_piped, (parameters.layers + parameters.routed) / self.layers, 0.0)
        stays = np.where(is_piped, parameters.total, np.where(is_whole, parameters.ends, 0.0))
        summed = np.where(is_piped, used.reduced_bytes * parameters.total, 0.0)
        is_trained = 0.0 if self.training.adapter_rank else 1.0
        gradients = used.gathered_bytes * (of_layer + stays * ~is_piped) + used.reduced_bytes * of_layer + summed
        return used.gathered_bytes * of_layer, used.gathered_bytes * stays, is_trained * gradients


_PASSING = ("activations", "logits", "layer in backward", "gathered weights", "whole gradients", "update")
"""Residents that are not there at every moment."""


def _head_layers(shape: ModelShape) -> float:
    """Return as how many layers the head counts, by the matrices that a balance by cost looks at."""
    ffn = shape.ffn * (3 if shape.is_gated else 2)
    return shape.vocabulary / (4.0 * shape.heads * shape.head_size + ffn)


def _buffer_bytes(degrees: Degrees, constants: MemoryConstants) -> Real:
    """Return the buffers of the groups that a device is in."""
    sizes = (degrees.tp, degrees.pp, degrees.shards)
    return sum((collective_buffer_bytes(size, constants) for size in sizes), start=0.0)
