"""Bytes of what stays on a device from step to step: weights, gradients, optimizer state, buffers.

=================  =============================================================================
symbol             meaning
=================  =============================================================================
P                  parameters on the device before ZeRO (`rpeg.perf.stage_parameters`)
d                  data parallel ranks, context parallelism included
w, g, o            bytes per parameter of weights, gradients, optimizer state
=================  =============================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rpeg.perf.activations import Operators
from rpeg.perf.stage_parameters import Degrees, StageParameters
from rpeg.shapes.operations import Real

__all__ = [
    "MemoryConstants",
    "StateBytes",
    "collective_buffer_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "rows_bytes",
    "versions_bytes",
    "weights_bytes",
]

_ITEM_BYTES = {
    "float32": 4.0, "fp32": 4.0, "bfloat16": 2.0, "bf16": 2.0, "float16": 2.0, "fp16": 2.0, "float8": 1.0, "fp8": 1.0,
    "int8": 1.0, "uint8": 1.0, "mxfp8": 1.03125, "nvfp4": 0.5625, "int4": 0.5,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes per parameter of what training keeps."""

    weights: float = 2.0
    gradients: float = 4.0
    master: float = 4.0
    """Of the float32 weights that an optimizer updates; 0 where the weights are that themselves."""
    moments: float = 8.0
    gradient_copy: float = 0.0
    """Of float32 gradients beside 16-bit ones, made for the update."""

    @property
    def optimizer(self) -> float:
        """What ZeRO level 1 splits."""
        return self.master + self.moments + self.gradient_copy

    @property
    def total(self) -> float:
        """Without any split: 18 with bfloat16 weights and float32 gradients, 16 with bfloat16 gradients.

        >>> StateBytes().total, StateBytes(gradients=2.0).total
        (18.0, 16.0)
        """
        return self.weights + self.gradients + self.optimizer

    @staticmethod
    def of(weights: str, gradients: str, *, moments: str = "float32", has_gradient_copy: bool = False) -> StateBytes:
        """Return what Adam keeps with these dtypes: master weights beside all but float32 weights, two moments.

        Megatron makes float32 gradients of 16-bit ones for the update (``has_gradient_copy``).

        >>> StateBytes.of("float16", "float16", has_gradient_copy=True).total, StateBytes.of("float32", "float32").total
        (20.0, 16.0)
        """
        weight, gradient = _ITEM_BYTES[weights], _ITEM_BYTES[gradients]
        copy = 4.0 if has_gradient_copy and gradient < 4.0 else 0.0
        return StateBytes(weight, gradient, 0.0 if weight >= 4.0 else 4.0, 2.0 * _ITEM_BYTES[moments], copy)


@dataclass(frozen=True, slots=True)
class MemoryConstants:
    """What software decides: a profile of the kind ``memory``."""

    state: StateBytes = field(default_factory=StateBytes)
    operators: Operators = field(default_factory=Operators)
    logit_bytes: float = 18.0
    """Per logit, of all copies that live at once while the loss is made or goes backward."""
    activation_factor: float = 1.0
    """Bytes that layers keep for the backward pass, in those of 16-bit fused operators: 2 in float32, more where every
    operator keeps what it was given."""
    gradient_share: float = 1.0
    """Gradients that live while a layer goes backward, of what the layer has saved."""
    slack_share: float = 0.095
    """What the allocator holds beyond what is asked for."""
    gathered_bytes: float = 2.0
    """ZeRO 3: per parameter, of weights gathered for use, and of their gradients before they are summed up."""
    reduced_bytes: float = 4.0
    """ZeRO 3: per parameter, of gradients in the dtype in which they are summed up."""
    context_bytes: float = 0.9 * 2**30
    """Of the CUDA context: kernels and the libraries' own memory."""
    group_bytes: float = 292.0 * 2**20
    """Of NCCL as soon as there is a group of more than one, and for each neighbour in the ring besides."""
    neighbour_bytes: float = 50.0 * 2**20
    update_bytes: float = 4.0
    """Per parameter that a device updates: what the optimizer makes for a moment."""
    is_head_balanced: bool = False
    """Whether pipelines are split by cost, the head counted as so many layers."""


def weights_bytes(parameters: StageParameters, degrees: Degrees, item_bytes: float = 2.0) -> Real:
    """Return ``w P``, over ``d`` at ZeRO level 3.

    >>> from rpeg.perf.stage_parameters import stage_parameters
    >>> from rpeg.shapes.catalog import shape_of
    >>> float(weights_bytes(stage_parameters(shape_of("Qwen2.5-7B"), Degrees()), Degrees())) / 1e9
    15.231233024
    """
    return item_bytes * _sharded(parameters, degrees, 3.0)


def gradient_bytes(parameters: StageParameters, degrees: Degrees, item_bytes: float = 4.0) -> Real:
    """Return ``g P``, over ``d`` from ZeRO level 2 on.

    >>> float(gradient_bytes(StageParameters(layers=1e9, routed=0.0, ends=0.0), Degrees(dp=4.0, zero=2.0)))
    1000000000.0
    """
    return item_bytes * _sharded(parameters, degrees, 2.0)


def optimizer_bytes(parameters: StageParameters, degrees: Degrees, per_parameter: float = 12.0) -> Real:
    """Return ``o P``, over ``d`` from ZeRO level 1 on: float32 weights and moments are 12 bytes per parameter.

    >>> float(optimizer_bytes(StageParameters(layers=1e9, routed=0.0, ends=0.0), Degrees(dp=4.0, zero=1.0)))
    3000000000.0
    """
    return per_parameter * _sharded(parameters, degrees, 1.0)


def _sharded(parameters: StageParameters, degrees: Degrees, level: float) -> Real:
    """Return the parameters per device of what ZeRO splits from ``level`` on."""
    is_split = np.asarray(degrees.zero) >= level
    dense = np.where(is_split, parameters.dense / degrees.shards, parameters.dense)
    return dense + np.where(is_split, parameters.routed / degrees.expert_shards, parameters.routed)[()]


def collective_buffer_bytes(group_size: Real, constants: MemoryConstants | None = None) -> Real:
    """Return the bytes that a collective library takes for a group inside a node.

    Nothing for one rank, else ``a + b min(n - 1, 2)``: a ring has two neighbours, with two ranks only one.

    >>> [round(float(collective_buffer_bytes(n)) / 2**20) for n in (1.0, 2.0, 4.0, 8.0)]
    [0, 342, 392, 392]
    """
    used = constants or MemoryConstants()
    neighbours = np.minimum(np.asarray(group_size, dtype=float) - 1.0, 2.0)
    return np.where(neighbours > 0, used.group_bytes + used.neighbour_bytes * neighbours, 0.0)[()]


def rows_bytes(rows: Real, length_tokens: Real, bytes_per_token: float = 16.0, bytes_per_row: float = 0.0) -> Real:
    """Return the bytes of rows: by default a token id (8), a log-probability (4) and a mask or a version (4) per token.

    >>> rows_bytes(512, 2048)
    16777216.0
    """
    return rows * (length_tokens * bytes_per_token + bytes_per_row)


def versions_bytes(num_bytes: Real, staleness: Real) -> Real:
    """Return the bytes of all batches alive at once: under staleness ``k`` one is read while ``k`` wait or are made.

    >>> versions_bytes(16777216.0, 3)
    67108864.0
    """
    return num_bytes * (staleness + 1.0)
