"""What one firing of a stage asks for: rows of which lengths, through which model, how often.

===========  ======================================================================================================
kind         rows of one firing
===========  ======================================================================================================
GENERATE     samples that begin: prompts · yields / firings, times the rounds of a loop that filters
TRAIN        samples it reads, of every step it reads, / firings of a sweep
FORWARD …    samples it reads / firings
UPDATE …     none: what counts is the weights
===========  ======================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from rpeg.errors import GraphError
from rpeg.graph.data import DataKind, Per
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Stage, StageKind
from rpeg.perf.workload import ASSUMED, Workload
from rpeg.plan.firings import num_events, row_parts
from rpeg.shapes.model import ModelShape

__all__ = ["Demand", "demands", "stage_rows"]

_ROWS = (Per.SAMPLE, Per.GROUP)
_WITHOUT_LOGITS = frozenset({"value", "value_detached", "score"})
_HELD_OUT_ROWS = 256.0
"""Held-out prompts of an evaluation: the usual number, where a workload does not say (``symbols["held_out"]``)."""


@dataclass(frozen=True, slots=True)
class Demand:
    """One firing of a stage; equal demands have equal prices."""

    kind: StageKind
    workload: Workload
    shape: ModelShape | None
    """Of its model, None where it has none."""
    rows: float
    share: float = 1.0
    """Of the steps in which it acts: one eighth for an evaluation in every eighth step."""
    updates: float = 1.0
    """Of an UPDATE: the optimizer's steps."""
    group_size: float = 1.0
    """Samples that share a prompt."""
    needed: float | None = None
    """Samples whose end is the end of a generation; None is all."""
    rounds: float = 1.0
    """Generations one after the other, each of all rows."""
    turns: float = 0.0
    """Pauses of a sample for its environment."""
    budget_tokens: float = 0.0
    """New tokens of a sample per step, where samples are carried over; 0: none are."""
    max_carry: int = 0
    """Steps that a sample may be carried over."""
    recomputes_cache: bool = False
    """Whether new weights that come in the middle make the caches of unfinished samples anew."""
    has_logits: bool = True
    """Whether the pass ends in the vocabulary, and not in one number."""
    trains_weights: bool = True
    """Whether all weights are trained, and not adapters only."""
    is_average: bool = False
    """Whether an update moves an average of weights instead of making an optimizer's step."""
    parts: tuple[Demand, ...] = ()
    """Passes of several models that are dispatched together."""

    @property
    def has_model(self) -> bool:
        """Whether devices do it; else hosts do."""
        return self.shape is not None or bool(self.parts)


def demands(graph: Graph, workload: Workload) -> tuple[dict[str, Demand], tuple[str, ...]]:
    """Return the demand of every stage, and what had to be assumed.

    Raises:
        InvalidInput: when a role has no model.
    """
    values = _Values(graph, workload)
    rows = stage_rows(graph, values)
    found = {stage.name: _demand(graph, stage, workload, rows[stage.name], values) for stage in graph.stages}
    return found, tuple(values.assumed)


class _Values:
    """Sizes of a graph with the expected values of what is random; remembers which were assumed."""

    def __init__(self, graph: Graph, workload: Workload) -> None:
        self._env: dict[str, float] = {name: float(value) for name, value in graph.env.items()}
        self._given = workload.symbols
        self.assumed: dict[str, None] = {}

    def of(self, size: Dim) -> float | None:
        """Return a size, None where a symbol has no value anywhere."""
        env = dict(self._env)
        for name in size.symbols - env.keys():
            if name in self._given:
                env[name] = self._given[name]
            elif name in ASSUMED:
                env[name] = ASSUMED[name]
                self.assumed[f"{name} {ASSUMED[name]:g}"] = None
        try:
            return float(size.evaluate(env))
        except GraphError:
            return None

    def named(self, name: str, usual: float) -> float:
        """Return a number that no size of the graph has."""
        if name not in self._given:
            self.assumed[f"{name} {usual:g}"] = None
        return self._given.get(name, usual)


def stage_rows(graph: Graph, values: _Values) -> dict[str, float]:
    """Return the rows per step of every stage: what it makes of prompts, or reads of samples or groups; 0 for none."""
    streams = _stream_rows(graph, values)
    return {stage.name: _rows_of(graph, stage, streams, values) for stage in graph.stages}


def _rows_of(graph: Graph, stage: Stage, streams: Mapping[str, float], values: _Values) -> float:
    if stage.kind is StageKind.EVALUATE:
        return values.named("held_out", _HELD_OUT_ROWS)
    if stage.kind is StageKind.GENERATE:
        made = [streams[write.data] for write in graph.writes(stage.name) if write.data in streams]
        return max(made, default=0.0)
    read: dict[str, set[int]] = {}
    for access in graph.reads(stage.name):
        if access.data in streams:
            read.setdefault(access.data, set()).add(access.delay)
    return max((streams[name] * len(delays) for name, delays in read.items()), default=0.0)


def _stream_rows(graph: Graph, values: _Values) -> dict[str, float]:
    """Return rows per step of each STREAM of samples or groups: what its writer reads times what it yields."""
    prompts = float(graph.contract.prompts.evaluate(graph.env))
    is_rows = {data.name for data in graph.data if data.kind is DataKind.STREAM and data.per in _ROWS}
    rows: dict[str, float] = {}
    num_known = -1
    while num_known < len(rows):
        num_known = len(rows)
        for stage in graph.stages:
            new = [write.data for write in graph.writes(stage.name) if write.data in is_rows - rows.keys()]
            read = [rows[access.data] for access in graph.reads(stage.name) if access.data in rows]
            source = prompts if stage.kind is StageKind.GENERATE else max(read, default=None)
            if new and source is not None:
                rows |= dict.fromkeys(new, source * (values.of(stage.yields) or 1.0))
    return rows


def _demand(graph: Graph, stage: Stage, workload: Workload, rows: float, values: _Values) -> Demand:
    firings, share = num_events(graph, stage.name), min(1.0, float(graph.firings(stage.name)))
    each = rows / row_parts(graph, stage.name)
    if stage.body is not None and stage.kind is StageKind.FORWARD and stage.model is None:
        inner = stage.body.graph.stages
        parts = tuple(_plain(part, workload, each, _is_adapter(stage.body.graph, part)) for part in inner)
        return Demand(stage.kind, workload, None, each, share, parts=parts)
    found = _plain(stage, workload, each, _is_adapter(graph, stage), share)
    if stage.kind is StageKind.GENERATE:
        return _generation(graph, stage, found, values)
    if stage.kind is StageKind.UPDATE and stage.model is not None:
        merges = [write.merge or "" for write in graph.writes(stage.name)]
        is_average = any(merge.startswith("ema") for merge in merges)
        updates = 1.0 if is_average else max(1.0, graph.contract.updates_per_step / firings)
        return replace(found, updates=updates, is_average=is_average)
    return found


def _plain(stage: Stage, workload: Workload, rows: float, is_adapter: bool, share: float = 1.0) -> Demand:
    return Demand(
        stage.kind,
        workload,
        None if stage.model is None else workload.shape(stage.model),
        rows,
        share,
        has_logits=not stage.heads or bool(set(stage.heads) - _WITHOUT_LOGITS),
        trains_weights=not is_adapter,
    )


def _is_adapter(graph: Graph, stage: Stage) -> bool:
    """Whether what is trained of a model is an adapter: its frozen weights are read beside it."""
    return any(read.data == f"{stage.model}.base" for read in graph.reads(stage.name))


def _generation(graph: Graph, stage: Stage, found: Demand, values: _Values) -> Demand:
    carried = max((graph.data_of[write.data].max_carry for write in graph.writes(stage.name)), default=0)
    loop, trips = ("", 1.0) if stage.body is None else (stage.body.index, values.of(stage.body.trips) or 1.0)
    budget = values.of(Dim("budget")) if carried else None
    return replace(
        found,
        group_size=max(1.0, values.of(stage.yields) or 1.0),
        needed=next(_needed(graph, stage, found.rows, values), None),
        rounds=trips if loop == "round" else 1.0,
        turns=trips if loop == "turn" else 0.0,
        budget_tokens=budget or 0.0,
        max_carry=carried if budget else 0,
        recomputes_cache="kv_recompute" in stage.heads,
    )


def _needed(graph: Graph, stage: Stage, rows: float, values: _Values) -> Iterator[float]:
    """Yield the samples that a filter behind the generator keeps of those that begin."""
    for write in graph.writes(stage.name):
        for read in graph.readers(write.data):
            reader = graph.stage_of[read.stage]
            if reader.kind is StageKind.FILTER and (kept := values.of(reader.yields)) is not None and kept < 1.0:
                yield rows * kept
