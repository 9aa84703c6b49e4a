"""What is inside of a stage: bodies that `expand` can give to one, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

from rpeg.graph.access import Access, Mode
from rpeg.graph.data import Column, Data, DataKind, Lifetime, Per
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.region import Region
from rpeg.graph.stage import Stage, StageKind

__all__ = ["BODIES", "Body", "seen_inside"]


@dataclass(frozen=True, slots=True)
class Body:
    """An implementation: for which kind of stage, and how it is drawn for a number of trips and of parts."""

    kind: StageKind
    draw: Callable[[Graph, Stage, int, int], Region]
    has_parts: bool = False
    """Whether the layers are cut into parts that work side by side."""


def seen_inside(data: Data, accesses: tuple[Access, ...]) -> Data:
    """Return ``data`` as a body sees it: what it does not make itself comes from outside."""
    is_made = any(access.data == data.name and access.writes for access in accesses)
    return data if is_made else replace(data, kind=DataKind.EXTERNAL)


def _prefill_decode(graph: Graph, stage: Stage, trips: int, parts: int) -> Region:
    """Read the prompts once, then write one token per trip; keys and values of all tokens so far are kept."""
    reads, writes = _own(graph, stage)
    prompts = [read for read in reads if not graph.is_state(read.data)]
    weights = [read for read in reads if _is_weights(graph, read, stage)]
    columns = (Column("keys", "float32"), Column("values", "float32"))
    cache = Data("kv", DataKind.STATE, columns, Per.SAMPLE, stage.model, lifetime=Lifetime.FIRING)
    prefill = Stage("prefill", StageKind.FORWARD, stage.model, firings=Dim(f"1 / {trips}"))
    decode = Stage("decode", StageKind.GENERATE, stage.model, yields=stage.yields, effects=stage.effects)
    before = tuple(dict.fromkeys([*prompts, *weights]))
    accesses = (
        *_given(prefill.name, before),
        *_given(decode.name, reads),
        *_given(decode.name, writes),
        Access(decode.name, cache.name, Mode.READ, delay=1),
        Access(prefill.name, cache.name, Mode.UPDATE, merge="append"),
        Access(decode.name, cache.name, Mode.UPDATE, merge="append"),
    )
    return _region(graph, "token", trips, (cache,), (prefill, decode), accesses)


def _forward_backward(graph: Graph, stage: Stage, trips: int, parts: int) -> Region:
    """Run forward and backward over one micro-batch per trip; gradients add up."""
    return _passes(graph, "microbatch", stage, trips, 1)


def _one_f_one_b(graph: Graph, stage: Stage, trips: int, parts: int) -> Region:
    """Send micro-batches through ``parts`` parts of the layers, one forward and one backward at a time.

    That a part begins a forward only when few enough of its micro-batches wait for their backward is the room of the
    queue of activations: ``parts - i`` for part i (Narayanan et al. 2021, arXiv:2104.04473).
    """
    return _passes(graph, "pipeline", stage, trips, parts)


def _passes(graph: Graph, index: str, stage: Stage, trips: int, parts: int) -> Region:
    """Draw forward and backward through the parts: the first one takes the rows in, the last one knows the loss."""
    reads, writes = _own(graph, stage)
    weights = [read for read in reads if _is_weights(graph, read, stage)]
    rows = [read for read in reads if read not in weights]
    names = [f".{i}" for i in range(parts)] if parts > 1 else [""]
    kept = [_queue(f"kept{name}", "activations", parts - i) for i, name in enumerate(names)]
    errors = [_queue(f"error{name}", "errors", 0) for name in names[1:]]
    forward = [Stage(f"forward{name}", StageKind.FORWARD, stage.model) for name in names]
    backward = [Stage(f"backward{name}", StageKind.TRAIN, stage.model) for name in names]
    forward[-1] = replace(forward[-1], heads=stage.heads)
    accesses: list[Access] = []
    for f, b, activations in zip(forward, backward, kept, strict=True):
        accesses += _given(f.name, [*(rows if f in (forward[0], forward[-1]) else []), *weights])
        accesses += [Access(f.name, activations.name, Mode.WRITE), Access(b.name, activations.name, Mode.READ)]
        accesses += _given(b.name, weights)
    accesses += [Access(f.name, before.name, Mode.READ) for before, f in zip(kept, forward[1:], strict=False)]
    for (b, later), error in zip(pairwise(backward), errors, strict=True):
        accesses += [Access(later.name, error.name, Mode.WRITE), Access(b.name, error.name, Mode.READ)]
    accesses += _given(backward[0].name, writes)
    return _region(graph, index, trips, (*kept, *errors), (*forward, *reversed(backward)), tuple(accesses))


def _is_weights(graph: Graph, read: Access, stage: Stage) -> bool:
    data = graph.data_of[read.data]
    return data.model == stage.model and data.kind is not DataKind.STREAM


def _queue(name: str, column: str, room: int) -> Data:
    columns = (Column(column, "float32"),)
    return Data(name, DataKind.STREAM, columns, Per.SAMPLE, versions=room, lifetime=Lifetime.FIRING)


def _own(graph: Graph, stage: Stage) -> tuple[list[Access], list[Access]]:
    """Return reads and writes of a stage as its body has them: delays are a matter of outside."""
    reads = [replace(read, delay=0) for read in graph.reads(stage.name)]
    return reads, graph.writes(stage.name)


def _given(stage: str, accesses: list[Access] | tuple[Access, ...]) -> list[Access]:
    return [replace(access, stage=stage) for access in accesses]


def _region(
    graph: Graph,
    index: str,
    trips: int,
    own: tuple[Data, ...],
    stages: tuple[Stage, ...],
    accesses: tuple[Access, ...],
) -> Region:
    touched = {access.data for access in accesses}
    outer = tuple(seen_inside(data, accesses) for data in graph.data if data.name in touched)
    used = {part.model for part in (*outer, *own, *stages)}
    models = tuple(model for model in graph.models if model.name in used)
    return Region(index, Dim(str(trips)), Graph(index, graph.contract, (), models, (*outer, *own), stages, accesses))


BODIES: Mapping[str, Body] = MappingProxyType(
    {
        "prefill_decode": Body(StageKind.GENERATE, _prefill_decode),
        "forward_backward": Body(StageKind.TRAIN, _forward_backward),
        "one_f_one_b": Body(StageKind.TRAIN, _one_f_one_b, has_parts=True),
    }
)
"""Implementations by name."""
