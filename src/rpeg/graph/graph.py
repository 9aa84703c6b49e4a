"""The graph: one frozen value that says what a pipeline is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

from rpeg.graph.access import Access, Edge
from rpeg.graph.contract import Contract
from rpeg.graph.data import Data, DataKind, ModelRef, Symbol
from rpeg.graph.record import encode
from rpeg.graph.stage import Stage, StageKind

__all__ = ["Applied", "Graph"]

_NOT_DIGESTED = frozenset({"history", "source", "doc"})
_UNORDERED = ("symbols", "models", "data", "stages", "accesses")


@dataclass(frozen=True, slots=True)
class Applied:
    """One rewrite in a graph's history: its text form, and the digests before and after."""

    transform: str
    before: str
    after: str


@dataclass(frozen=True)
class Graph:
    """Data, stages, accesses and the contract. Rewrites return a new graph; nothing is changed in place."""

    name: str
    contract: Contract
    symbols: tuple[Symbol, ...]
    models: tuple[ModelRef, ...]
    data: tuple[Data, ...]
    stages: tuple[Stage, ...]
    accesses: tuple[Access, ...]
    history: tuple[Applied, ...] = ()
    schema: int = 1

    @cached_property
    def env(self) -> dict[str, Fraction]:
        """Values of the symbols that have one."""
        return {s.name: Fraction(s.value) for s in self.symbols if s.value is not None}

    @cached_property
    def batch_rows(self) -> int:
        """Samples that a step trains on."""
        return int(self.contract.prompts.evaluate(self.env) * self.group_size)

    @cached_property
    def group_size(self) -> int:
        """Samples per prompt."""
        return int(self.contract.group.evaluate(self.env))

    @cached_property
    def stage_of(self) -> dict[str, Stage]:
        """Stages by name."""
        return {stage.name: stage for stage in self.stages}

    @cached_property
    def data_of(self) -> dict[str, Data]:
        """Data by name."""
        return {data.name: data for data in self.data}

    def reads(self, stage: str) -> list[Access]:
        """Return the READ accesses of ``stage`` in declaration order."""
        return self._accesses_of["stage", False].get(stage, []).copy()

    def writes(self, stage: str) -> list[Access]:
        """Return the WRITE and UPDATE accesses of ``stage`` in declaration order."""
        return self._accesses_of["stage", True].get(stage, []).copy()

    def writers(self, data: str) -> list[Access]:
        """Return the accesses that write ``data``."""
        return self._accesses_of["data", True].get(data, []).copy()

    def readers(self, data: str) -> list[Access]:
        """Return the accesses that read ``data``."""
        return self._accesses_of["data", False].get(data, []).copy()

    @cached_property
    def _accesses_of(self) -> dict[tuple[str, bool], dict[str, list[Access]]]:
        """Accesses by the name at one of their ends, reads and writes apart."""
        found: dict[tuple[str, bool], dict[str, list[Access]]] = {
            (end, writes): {} for end in ("stage", "data") for writes in (False, True)
        }
        for access in self.accesses:
            found["stage", access.writes].setdefault(access.stage, []).append(access)
            found["data", access.writes].setdefault(access.data, []).append(access)
        return found

    def firings(self, stage: str) -> Fraction:
        """Return how often ``stage`` fires per step."""
        found = self._firings.get(stage)
        if found is None:
            found = self._firings[stage] = self.stage_of[stage].firings.evaluate(self.env)
        return found

    @cached_property
    def _firings(self) -> dict[str, Fraction]:
        """What `firings` has returned so far: a size without a value is an error only for whoever asks for it."""
        return {}

    def sweeps(self, stage: str) -> int:
        """Return how often per step all firings of ``stage`` happen: a TRAIN as it says, an UPDATE as what feeds it."""
        return self._sweeps.get(stage, 1)

    @cached_property
    def _sweeps(self) -> dict[str, int]:
        """Stages that happen more than once, with how often."""
        found = {s.name: s.passes for s in self.stages if s.kind is StageKind.TRAIN and s.passes > 1}
        for update in (stage.name for stage in self.stages if found and stage.kind is StageKind.UPDATE):
            feeding = {write.stage for read in self.reads(update) for write in self.writers(read.data)}
            if again := feeding & found.keys():
                found[update] = max(found[name] for name in again)
        return found

    def dependences(self, data: str) -> Iterator[tuple[Access, Access]]:
        """Yield each writer of ``data`` with each reader of one of the columns it writes."""
        for writer in self.writers(data):
            yield from ((writer, reader) for reader in self.readers(data) if writer.shares_columns(reader))

    def edges(self) -> Iterator[Edge]:
        """Yield every dependence between stages."""
        yield from self._edges

    @cached_property
    def _edges(self) -> tuple[Edge, ...]:
        return tuple(
            Edge(writer.stage, reader.stage, data.name, reader.delay)
            for data in self.data
            for writer, reader in self.dependences(data.name)
        )

    def is_state(self, data: str) -> bool:
        """Whether ``data`` survives the step."""
        return self.data_of[data].kind is DataKind.STATE

    def digest(self) -> str:
        """Return the sha256 of the canonical JSON without history, source and doc, independent of declaration order."""
        return self._digest

    def recorded(self, entry: Applied) -> Graph:
        """Return this graph with ``entry`` at the end of its history, and with everything computed from it so far."""
        graph = replace(self, history=(*self.history, entry))
        graph.__dict__.update({name: value for name, value in self.__dict__.items() if name != "history"})
        return graph

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(_canonical(self).encode()).hexdigest()


def _canonical(graph: Graph) -> str:
    """Return the JSON text that the digest is of: keys in order, and what has no order put into one."""
    parts = {key: f"[{', '.join(sorted(map(_record_line, getattr(graph, key))))}]" for key in _UNORDERED}
    parts |= {"contract": _record_line(graph.contract)}
    parts |= {"name": json.dumps(graph.name), "schema": json.dumps(graph.schema)}
    return "{" + ", ".join(f'"{key}": {parts[key]}' for key in sorted(parts)) + "}"


@lru_cache(maxsize=1 << 15)
def _record_line(record: Any) -> str:
    """Return one record as JSON; graphs that come from one another share most of theirs, hence the cache."""
    encoded: dict[str, Any] = encode(record, skip=_NOT_DIGESTED)
    if encoded.get("body") is not None:
        _sort(encoded["body"]["graph"])
    return _one_line(encoded)


def _sort(record: dict[str, Any]) -> None:
    """Put what has no order into one, inside the bodies of stages first."""
    for stage in record["stages"]:
        if stage["body"] is not None:
            _sort(stage["body"]["graph"])
    for key in _UNORDERED:
        record[key].sort(key=_one_line)


def _one_line(record: dict[str, Any]) -> str:
    return json.dumps(record, sort_keys=True)
