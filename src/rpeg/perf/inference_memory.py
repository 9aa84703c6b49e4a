"""What lies on a device that generates: weights, keys and values, and what one pass needs.

=================  =============================================================================
symbol             meaning
=================  =============================================================================
n, c               sequences under way, tokens of each at its longest
tp, pp             ranks of tensor and pipeline parallelism
=================  =============================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rpeg.perf.memory import MemoryConstants, collective_buffer_bytes, weights_bytes
from rpeg.perf.stage_parameters import Degrees, stage_layers, stage_parameters
from rpeg.perf.training_memory import Moment
from rpeg.shapes.model import ModelShape
from rpeg.shapes.operations import Real, kv_bytes

__all__ = ["Generation", "generation_memory", "kv_bytes_on_device", "kv_tokens_room", "rows_in_flight"]

_LOGIT_BYTES = 10.0
"""Per logit of a sampler: bfloat16 logits, float32 logits, their probabilities."""
_PASS_ITEM_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class Generation:
    """What one replica generates at a time; numbers may be arrays over layouts."""

    shape: ModelShape
    degrees: Degrees
    rows: Real
    """Sequences of one micro-batch; a pipeline has as many micro-batches under way as stages."""
    context_tokens: Real
    """Tokens of a sequence at its end: prompt and response."""
    pass_tokens: Real = 8192.0
    """Tokens of one pass at most: the budget of a prefill."""
    weight_bytes: float = 2.0
    """Per parameter."""
    cache_bytes: float = 2.0
    """Per element of keys and values."""


def rows_in_flight(micro_rows: Real, pp: Real) -> Real:
    """Return the sequences whose keys and values a stage keeps: those of all ``pp`` micro-batches under way.

    >>> rows_in_flight(16.0, 4.0)
    64.0
    """
    return micro_rows * pp


def kv_bytes_on_device(
    shape: ModelShape, rows: Real, context_tokens: Real, degrees: Degrees | None = None, item_bytes: float = 2.0
) -> Real:
    """Return the bytes of keys and values of ``rows`` sequences on one device of the fullest stage.

    The layers of a stage over all layers, over ``min(tp, kv_heads)``: ranks beyond the heads hold copies, and the small
    vectors of latent attention are on every rank.

    Example:
        >>> from rpeg.shapes.catalog import shape_of
        >>> float(kv_bytes_on_device(shape_of("Llama-3.1-8B"), 1, 1))
        131072.0
    """
    ranks = degrees or Degrees()
    heads = 1.0 if shape.latent is not None else np.minimum(ranks.tp, float(shape.kv_heads))
    share = stage_layers(shape.layers, ranks.pp) / shape.layers
    return rows * kv_bytes(shape, context_tokens, item_bytes) * share / heads


def kv_tokens_room(
    shape: ModelShape, room_bytes: Real, degrees: Degrees | None = None, item_bytes: float = 2.0
) -> Real:
    """Return how many tokens of context fit into ``room_bytes`` on every device of a replica, over all sequences.

    >>> from rpeg.shapes.catalog import shape_of
    >>> round(float(kv_tokens_room(shape_of("Llama-3.1-8B"), 50e9)))
    381470
    """
    return room_bytes / kv_bytes_on_device(shape, 1.0, 1.0, degrees, item_bytes)


def generation_memory(generation: Generation, constants: MemoryConstants | None = None) -> Moment:
    """Return what lies on the fullest device of a replica, at the end of its longest sequences.

    Weights; keys and values of all micro-batches under way; one pass (hidden states three times, and the two or three
    vectors of a feed-forward block); logits of the sequences and what sampling makes of them.

    Example:
        >>> from rpeg.shapes.catalog import shape_of
        >>> found = generation_memory(Generation(shape_of("Llama-3.1-8B"), Degrees(), rows=64, context_tokens=4096))
        >>> {name: round(float(size) / 1e9, 1) for name, size in found.residents.items() if size}
        {'weights': 16.1, 'keys and values': 34.4, 'pass': 0.9, 'logits': 0.1, 'allocator slack': 4.9, 'context': 1.0}
    """
    used, shape, degrees = constants or MemoryConstants(), generation.shape, generation.degrees
    rows = rows_in_flight(generation.rows, degrees.pp)
    residents: dict[str, Real] = {
        "weights": weights_bytes(stage_parameters(shape, degrees), degrees, generation.weight_bytes),
        "keys and values": kv_bytes_on_device(shape, rows, generation.context_tokens, degrees, generation.cache_bytes),
        "pass": _pass_bytes(generation),
        "logits": _LOGIT_BYTES * generation.rows * shape.vocabulary / degrees.tp,
    }
    residents["allocator slack"] = used.slack_share * sum(residents.values(), start=0.0)
    residents["collective buffers"] = collective_buffer_bytes(degrees.tp, used) + collective_buffer_bytes(
        degrees.pp, used
    )
    residents["context"] = used.context_bytes
    return Moment("first", "generation", residents)


def _pass_bytes(generation: Generation) -> Real:
    """Return the tensors of one layer that live at once, of the tokens of one pass."""
    shape, experts = generation.shape, generation.shape.experts
    routed = 0.0 if experts is None else float(experts.active * experts.ffn + experts.shared_ffn)
    width = max(float(shape.ffn), routed) * (3.0 if shape.is_gated else 2.0)
    channels = 3.0 * shape.hidden + width / generation.degrees.tp
    return _PASS_ITEM_BYTES * generation.pass_tokens * channels
