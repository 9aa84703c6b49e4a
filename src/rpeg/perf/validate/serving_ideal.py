"""What an inference engine would deliver at the peak of the hardware, without communication or host."""

from __future__ import annotations

from rpeg.perf.blocks import touched_experts
from rpeg.perf.engine import Engine, cache_bytes, expert_bytes, weight_bytes
from rpeg.perf.serving import Served
from rpeg.shapes.model import ModelShape
from rpeg.shapes.operations import causal_flops_per_token, flops_per_token

__all__ = ["ideal_batch", "ideal_decode_s", "ideal_prefill_s", "ideal_served"]


def ideal_decode_s(engine: Engine, shape: ModelShape, sequences: float, context_tokens: float) -> float:
    """Return the seconds of a token: used weights and caches read once, or the operations if they take longer."""
    rows, split = sequences / engine.dp, engine.split
    weights = weight_bytes(engine, shape)
    if shape.experts is not None:
        touched = float(touched_experts(shape.experts, rows / engine.pp, split)) * engine.ep / shape.experts.count
        weights -= (1.0 - min(1.0, touched)) * expert_bytes(engine, shape)
    num_bytes = (weights + rows * float(cache_bytes(engine, shape, context_tokens))) * engine.pp
    flops = sequences * float(flops_per_token(shape, context_tokens)) / (engine.tp * engine.dp)
    return max(num_bytes / engine.kernels.memory_bytes_per_s, flops / _peak_flops(engine))


def ideal_prefill_s(engine: Engine, shape: ModelShape, prompts: float, prompt_tokens: float) -> float:
    """Return the seconds of reading prompts: weights read once, or the operations, whatever takes longer."""
    flops = prompts * prompt_tokens * float(causal_flops_per_token(shape, prompt_tokens)) / engine.num_devices
    return max(weight_bytes(engine, shape) / engine.kernels.memory_bytes_per_s, flops / _peak_flops(engine))


def ideal_batch(
    engine: Engine, shape: ModelShape, sequences: float, prompt_tokens: float, response_tokens: float
) -> Served:
    """Return what a batch gets that begins and ends together: all prompts, then a token for everyone at a time."""
    first_s = ideal_prefill_s(engine, shape, sequences, prompt_tokens)
    token_s = ideal_decode_s(engine, shape, sequences, prompt_tokens + response_tokens / 2)
    request_s = first_s + (response_tokens - 1) * token_s
    return Served(first_s, token_s, request_s, sequences * response_tokens / request_s, sequences)


def ideal_served(
    engine: Engine, shape: ModelShape, sequences: float, prompt_tokens: float, response_tokens: float
) -> Served:
    """Return what ``sequences`` under way get: a prefill of their own, then tokens between the prefills of the others.

    Where prompts are read in waves, a token waits for half of them.
    """
    first_s = ideal_prefill_s(engine, shape, 1.0, prompt_tokens)
    share = 0.5 if engine.constants.is_prefill_first else 1.0
    all_s = ideal_prefill_s(engine, shape, sequences, prompt_tokens)
    decoding_s = ideal_decode_s(engine, shape, sequences, prompt_tokens + response_tokens / 2)
    token_s = decoding_s + share * all_s / response_tokens
    request_s = all_s + response_tokens * decoding_s
    return Served(first_s, token_s, request_s, sequences * response_tokens / request_s, sequences)


def _peak_flops(engine: Engine) -> float:
    return engine.kernels.peak_flops(engine.precision.products)
