"""Seconds of one iteration of a replica: a token for every sequence that decodes, and perhaps a chunk of prompts.

An iteration runs the layers, the head and the sampling of what it is given. Tokens of prompts and of sequences that
decode share the products, so that a chunk reads the weights for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rpeg.perf.collectives import Collective, collective_s
from rpeg.perf.engine import Engine
from rpeg.perf.group import Group
from rpeg.perf.kernels import Kernels
from rpeg.perf.layer import LayerTime, embedding_time, ep_bytes, head_time, layer_time, tp_bytes
from rpeg.perf.load import Load, Phase
from rpeg.shapes.model import ModelShape
from rpeg.shapes.operations import Real

__all__ = ["Chunk", "DecodeTable", "all_reduce_s", "decode_s", "decode_table", "iteration_s", "prefill_s"]

_Index = npt.NDArray[np.intp]

_SAMPLING_PASSES = 4.0
"""Reads and writes of the fp32 logits: scaling, softmax, the draw."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of prompts in one iteration."""

    tokens: Real
    """New tokens, of all prompts together."""
    prompts: Real = 1.0
    """Prompts they belong to."""
    context_tokens: Real = 0.0
    """Tokens that one prompt has at the end of the iteration; 0: as many as are new."""


def decode_s(engine: Engine, shape: ModelShape, sequences: Real, context_tokens: Real) -> Real:
    """Return the seconds in which every one of ``sequences`` gets a token; their mean context is given.

    ``layers · (products + cache + all-reduces) + head + sampling + host``, with ``sequences / (dp · pp)`` rows.
    """
    constants = engine.constants
    rows = sequences / (engine.dp * engine.pp)
    load = Load.decode(rows, context_tokens)
    time = layer_time(shape, engine.kernels, load, engine.split, engine.precision)
    layer_s = time.gemm_s + time.elementwise_s + _caches_s(engine, shape, time)
    device_s = (layer_s * shape.layers + _ends_s(engine, shape, rows, rows)) * constants.decode_factor
    return _with_host(engine, shape, device_s + _communication_s(engine, shape, load), sequences)


@dataclass(frozen=True, slots=True, eq=False)
class DecodeTable:
    """Seconds of decoding over sequences and contexts, for looking up thousands of iterations at once."""

    sequences: npt.NDArray[np.float64]
    contexts: npt.NDArray[np.float64]
    seconds: npt.NDArray[np.float64]
    """Sequences down, contexts across."""

    def lookup(self, sequences: Real, context_tokens: Real) -> npt.NDArray[np.float64]:
        """Return the seconds of iterations, linear between the entries and beyond the last."""
        down, right = _steps(self.sequences, sequences), _steps(self.contexts, context_tokens)
        above = self._across(down[0], right)
        return above + down[1] * (self._across(down[0] + 1, right) - above)

    def _across(self, row: _Index, right: tuple[_Index, npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
        before = self.seconds[row, right[0]]
        return before + right[1] * (self.seconds[row, right[0] + 1] - before)


def _steps(entries: npt.NDArray[np.float64], at: Real) -> tuple[_Index, npt.NDArray[np.float64]]:
    """Return the entry before each place, and how far it is from there to the next."""
    index = np.clip(np.searchsorted(entries, at, side="right") - 1, 0, len(entries) - 2)
    return index, (at - entries[index]) / (entries[index + 1] - entries[index])


@lru_cache(maxsize=1024)
def decode_table(engine: Engine, shape: ModelShape) -> DecodeTable:
    """Return the seconds of decoding for 1 to 8192 sequences with up to a million tokens each."""
    sequences, contexts = np.geomspace(1.0, 8192.0, 40), np.concatenate([[0.0], np.geomspace(256.0, 2.0**20, 13)])
    return DecodeTable(sequences, contexts, np.asarray(decode_s(engine, shape, sequences[:, None], contexts[None, :])))


def prefill_s(engine: Engine, shape: ModelShape, chunk: Chunk) -> Real:
    """Return the seconds of an iteration that has only a chunk of prompts."""
    return _with_host(engine, shape, _chunk_s(engine, shape, chunk, 0.0), 0.0)


def iteration_s(engine: Engine, shape: ModelShape, sequences: Real, context_tokens: Real, chunk: Chunk) -> Real:
    """Return the seconds of an iteration in which ``sequences`` decode beside a chunk of prompts.

    The products see the tokens of both; the sequences that decode add the reading of their caches.
    """
    rows = sequences / (engine.dp * engine.pp)
    alone = layer_time(shape, engine.kernels, Load.decode(rows, context_tokens), engine.split, engine.precision)
    caches_s = _caches_s(engine, shape, alone) * shape.layers * engine.constants.decode_factor
    return _with_host(engine, shape, _chunk_s(engine, shape, chunk, rows) + caches_s, sequences)


def all_reduce_s(engine: Engine, num_bytes: Real) -> Real:
    """Return the seconds of an all-reduce over TP: the library's, or within NVLink the engine's own if it is faster.

    The engine's own kernel starts once, then every rank reads what all others have: ``(n - 1) · bytes / bandwidth``.
    """
    if engine.group.size == 1:
        return 0.0 * num_bytes
    by_library = collective_s(Collective.ALL_REDUCE, num_bytes, engine.group, engine.links)
    own = _own_s(engine, (engine.group.size - 1) * num_bytes, engine.group)
    return by_library if own is None else np.minimum(by_library, own)


def _exchange_s(engine: Engine, num_bytes: Real) -> Real:
    """Return the seconds in which tokens go to their experts, by the library or within NVLink by the engine itself."""
    if engine.expert_group.size == 1:
        return 0.0 * num_bytes
    by_library = collective_s(Collective.ALL_TO_ALL, num_bytes, engine.expert_group, engine.links)
    own = _own_s(engine, num_bytes, engine.expert_group)
    return by_library if own is None else np.minimum(by_library, own)


def _own_s(engine: Engine, num_bytes: Real, group: Group) -> Real | None:
    """Return the seconds of the engine's own kernel that moves so many bytes per rank; None where it has none."""
    if engine.constants.collective_s == 0:
        return None
    if not all(link.kind.startswith(("nvlink", "xgmi")) for link, _ in group.levels):
        return None
    return engine.constants.collective_s + num_bytes / min(link.bytes_per_s for link, _ in group.levels)


def _caches_s(engine: Engine, shape: ModelShape, time: LayerTime) -> Real:
    """Return the seconds in which a layer reads its caches, some kernels a KV head again for further queries."""
    if shape.latent is not None:
        return time.attention_s
    queries = shape.heads / engine.tp / max(1.0, shape.kv_heads / engine.tp)
    return time.attention_s * (1.0 + engine.constants.repeated_share * (queries - 1.0))


def _chunk_s(engine: Engine, shape: ModelShape, chunk: Chunk, decoding: Real) -> Real:
    """Return the device seconds of a chunk and of the products of rows that decode beside it."""
    share = engine.dp * engine.pp
    tokens, prompts = chunk.tokens / share, np.maximum(chunk.prompts / share, 1e-9)
    context = np.maximum(chunk.context_tokens, tokens / prompts)
    load = Load(tokens + decoding, prompts * (tokens + decoding) / tokens, context, Phase.PREFILL)
    time = layer_time(shape, engine.kernels, load, engine.split, engine.precision) * shape.layers
    ends_s = _ends_s(engine, shape, tokens + decoding, prompts + decoding)
    return (time.device_s + ends_s) * engine.constants.prefill_factor + _communication_s(engine, shape, load)


def _ends_s(engine: Engine, shape: ModelShape, tokens: Real, sampled: Real) -> Real:
    """Return the device seconds of embedding, head and sampling."""
    kernels: Kernels = engine.kernels
    embedded = embedding_time(shape, kernels, tokens, engine.split).device_s
    head = head_time(shape, kernels, sampled, engine.split, engine.precision, has_softmax=False).device_s
    logits_bytes = sampled * shape.vocabulary * 4.0
    return embedded + head + kernels.stream_s(_SAMPLING_PASSES * logits_bytes, 4)


def _communication_s(engine: Engine, shape: ModelShape, load: Load) -> Real:
    """Return the seconds of all collectives of a pass through all layers, none of them hidden."""
    each = all_reduce_s(engine, tp_bytes(shape, load, engine.split))
    dense, with_experts = shape.layers - shape.expert_layers, shape.expert_layers
    total = each * (2.0 * dense + with_experts)
    if with_experts and engine.dp == 1:
        total = total + each * with_experts
    elif with_experts:
        total = total + 2.0 * with_experts * _exchange_s(engine, ep_bytes(shape, load, engine.split))
    if engine.pp > 1:
        sent = tp_bytes(shape, load, engine.split)
        total = total + engine.pp * collective_s(Collective.POINT_TO_POINT, sent, engine.stage_group, engine.links)
    return total


def _with_host(engine: Engine, shape: ModelShape, device_s: Real, sequences: Real) -> Real:
    """Return the seconds of an iteration: what the host adds, and without graphs its launches if they take longer."""
    constants, factor = engine.constants, engine.host_factor
    alone_s = factor * (constants.step_s + constants.sequence_s * sequences / engine.dp)
    if constants.is_captured:
        return device_s + alone_s
    collectives = 2.0 if engine.tp > 1 else 0.0
    launches = shape.layers * (constants.layer_launches + collectives * constants.collective_launches)
    launching_s = factor * launches * engine.kernels.launch_s
    p = constants.sharpness
    return (device_s**p + launching_s**p) ** (1.0 / p) + alone_s
