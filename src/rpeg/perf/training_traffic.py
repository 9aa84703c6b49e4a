"""Seconds of what ranks send each other in training: per layer and micro-batch, between stages, and once per update."""

from __future__ import annotations

import numpy as np

from rpeg.perf.collectives import Collective
from rpeg.perf.layer import ep_bytes, tp_bytes
from rpeg.perf.load import Load, Precision
from rpeg.perf.stage_parameters import StageParameters
from rpeg.perf.trainer import Trainer, TrainingLayout
from rpeg.shapes.model import ModelShape
from rpeg.shapes.operations import Real

__all__ = ["exchange_s", "gradients_s", "overlapped_s", "ring_step_s", "send_s", "sharding_s", "tp_s", "visited_share"]


def _item_bytes(layout: TrainingLayout) -> float:
    """Return the bytes of an activation or a gathered weight: 16 bits, but for models in float32."""
    return Precision.of(layout.dtype).hidden_bytes


def overlapped_s(work_s: Real, communication_s: Real, interference: float) -> Real:
    """Return the seconds of work and of communication that runs beside it.

    ``max(w, c) + i · min(w, c)``: the longer of the two, and what they slow each other, because both need the same
    memory, and communication takes some of the processors.

    >>> float(overlapped_s(10.0, 4.0, 0.25))
    11.0
    """
    return np.maximum(work_s, communication_s) + interference * np.minimum(work_s, communication_s)


def tp_s(trainer: Trainer, shape: ModelShape, layout: TrainingLayout, load: Load) -> Real:
    """Return the exposed seconds of tensor parallelism in one pass of one layer.

    Two all-reduces of the hidden states; with sequence parallelism two pairs of all-gather and reduce-scatter, which
    send as much (Korthikanti et al. 2022).
    """
    num_bytes = tp_bytes(shape, load, layout.split(), Precision.of(layout.dtype))
    if layout.is_sequence_parallel:
        gather_s = trainer.collective_s(Collective.ALL_GATHER, num_bytes, layout.tp, 1)
        each_s = gather_s + trainer.collective_s(Collective.REDUCE_SCATTER, num_bytes, layout.tp, 1)
    else:
        each_s = trainer.collective_s(Collective.ALL_REDUCE, num_bytes, layout.tp, 1)
    return 2.0 * each_s * trainer.constants.tp_exposed


def visited_share(nodes: Real, active: float) -> Real:
    """Return how many other nodes a token goes to, in those of its experts that lie on other nodes.

    ``N (1 - (1 - 1/N)^k) / k``: a token that several experts of one node want is sent there once.

    >>> round(float(visited_share(2.0, 8)), 3), float(visited_share(8.0, 1))
    (0.249, 1.0)
    """
    return nodes * (1.0 - (1.0 - 1.0 / nodes) ** active) / active


def exchange_s(trainer: Trainer, shape: ModelShape, layout: TrainingLayout, load: Load) -> Real:
    """Return the exposed seconds in which tokens of one layer go to their experts and back."""
    if shape.experts is None:
        return 0.0
    num_bytes = ep_bytes(shape, load, layout.split(), Precision.of(layout.dtype))
    if trainer.constants.is_token_sent_once:
        inside = trainer.inner_size(layout.ep)
        nodes = layout.ep / inside
        sent = num_bytes * visited_share(nodes, shape.experts.active)
        outer_s = trainer.collective_s(Collective.ALL_TO_ALL, sent, nodes, inside)
        each_s = np.maximum(outer_s, trainer.collective_s(Collective.ALL_TO_ALL, num_bytes, inside, 1))
    else:
        each_s = trainer.collective_s(Collective.ALL_TO_ALL, num_bytes, layout.ep, 1)
    return 2.0 * each_s * trainer.constants.ep_exposed


def ring_step_s(trainer: Trainer, shape: ModelShape, layout: TrainingLayout, tokens: Real) -> Real:
    """Return the seconds of one of the ``cp - 1`` steps in which keys and values go round the ranks of CP."""
    if shape.latent is None:
        items = 2.0 * np.maximum(shape.kv_heads / layout.tp, 1.0) * shape.head_size
    else:
        size = shape.latent.nope_size + shape.latent.rope_size + shape.latent.value_size
        items = shape.heads / layout.tp * size
    num_bytes = tokens / layout.cp * items * _item_bytes(layout)
    return trainer.collective_s(Collective.POINT_TO_POINT, num_bytes, layout.cp, layout.tp)


def sharding_s(trainer: Trainer, layout: TrainingLayout, parameters: Real, trained: float = 1.0) -> tuple[Real, Real]:
    """Return the seconds to gather split weights, and to reduce and scatter their gradients (ZeRO 3)."""
    ranks, gradient_bytes = layout.degrees.shards, parameters * trainer.constants.gradient_bytes * trained
    return (
        trainer.collective_s(Collective.ALL_GATHER, parameters * _item_bytes(layout), ranks, layout.tp),
        trainer.collective_s(Collective.REDUCE_SCATTER, gradient_bytes, ranks, layout.tp),
    )


def send_s(trainer: Trainer, shape: ModelShape, layout: TrainingLayout, tokens: Real) -> Real:
    """Return the exposed seconds in which the activations of a micro-batch go from a stage to the next."""
    split = np.where(layout.is_sequence_parallel, layout.tp, 1.0)[()]
    sent = tokens / layout.cp * shape.hidden * _item_bytes(layout) / split
    stride = layout.tp * layout.cp * layout.dp
    each_s = trainer.collective_s(Collective.POINT_TO_POINT, sent, np.minimum(layout.pp, 2.0), stride)
    return each_s * trainer.constants.send_exposed


def gradients_s(trainer: Trainer, layout: TrainingLayout, parameters: StageParameters) -> Real:
    """Return the seconds of what ranks send once per update, for the parameters of one device.

    Without ZeRO an all-reduce of the gradients; with level 1 or 2 a reduce-scatter of them and an all-gather of the
    updated weights; with level 3 an all-reduce of what a rank holds, among the copies that hybrid sharding has.
    """
    degrees, ranks = layout.degrees, layout.dp * layout.cp
    experts_tp = degrees.experts_tp
    expert_ranks = np.maximum(1.0, ranks * layout.tp / (layout.ep * experts_tp))
    dense_s = _reduced_s(trainer, layout, parameters.dense, ranks, layout.tp, degrees.shards)
    stride = layout.ep * experts_tp
    return dense_s + _reduced_s(trainer, layout, parameters.routed, expert_ranks, stride, degrees.expert_shards)


def _reduced_s(
    trainer: Trainer, layout: TrainingLayout, parameters: Real, ranks: Real, stride: Real, shards: Real
) -> Real:
    gradient_bytes, copies = parameters * trainer.constants.gradient_bytes, ranks / shards
    if layout.zero == 0:
        return trainer.collective_s(Collective.ALL_REDUCE, gradient_bytes, ranks, stride)
    among_s = trainer.collective_s(Collective.ALL_REDUCE, gradient_bytes / shards, copies, stride * shards)
    if layout.zero == 3:
        return among_s
    scatter_s = trainer.collective_s(Collective.REDUCE_SCATTER, gradient_bytes, shards, stride)
    gathered_bytes = parameters * _item_bytes(layout)
    return among_s + scatter_s + trainer.collective_s(Collective.ALL_GATHER, gathered_bytes, shards, stride)
