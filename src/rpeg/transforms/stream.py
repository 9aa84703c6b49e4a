"""Let a step flow in parts: what a producer has finished is worked on while it makes the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Self

from rpeg.graph.data import Data, DataKind
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import generators
from rpeg.graph.stage import Grain, Stage, StageKind
from rpeg.transforms.base import EffectClass, Reason, Transform
from rpeg.transforms.edit import downstream

__all__ = ["FIRINGS", "Stream", "row", "updates_fed"]

FIRINGS = (1, 2, 4, 8, 16, 32)
"""Parts of a step worth trying: with more, the last part is so small that another split hardly shortens the step."""


@dataclass(frozen=True, slots=True)
class Stream(Transform):
    """Fire ``producer`` and everything downstream of it ``firings`` times per step; updates stay as they are.

    Gradients add up over the firings, in whatever order these arrive, so the sums are the same up to rounding. Nothing
    on the row may need the whole batch: a stage of BATCH grain (of a TRAIN, `DeferNormalise` may remove that) or a
    TRAIN that sweeps over the data several times. With ``until`` the row ends before such stages: neither they nor what
    depends on them is streamed.
    """

    name: ClassVar[str] = "stream"
    effect: ClassVar[EffectClass] = EffectClass.NUMERIC

    producer: str
    firings: int
    until: tuple[str, ...] = ()
    """First stages that take the batch as a whole; empty: the row goes on to the updates."""

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield other numbers of parts for every generator, up to the first barrier if there is one."""
        for stage in generators(graph):
            barriers = _first_barriers(graph, stage.name)
            now = {graph.firings(name) for name in row(graph, stage.name, barriers)}
            for firings in FIRINGS:
                if now - {firings} and graph.batch_rows % (graph.group_size * firings) == 0:
                    yield cls(stage.name, firings, barriers)

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """A producer of rows, a number of parts that optimizer mini-batches divide, and no barrier on the row."""
        if self.producer not in graph.stage_of or not row(graph, self.producer, self.until):
            remedy = f"generators: {', '.join(stage.name for stage in generators(graph)) or 'none'}"
            yield Reason((self.producer,), "makes no rows that anything works on", remedy)
            return
        for name in self.until:
            if name not in row(graph, self.producer):
                yield Reason((name,), f"does not work on the rows of {self.producer}", "leave it out of until")
        if self.firings < 1:
            yield Reason((self.producer,), f"would fire {self.firings} times", "at least once")
        for name in row(graph, self.producer, self.until):
            yield from _barrier(graph, graph.stage_of[name]) if graph.firings(name) != self.firings else ()
            updates = updates_fed(graph, name)
            if self.firings > 0 and self.firings % updates:
                text = f"would fire {self.firings} times for {updates} updates"
                yield Reason((name,), text, f"choose a multiple of {updates}")

    def rewrite(self, graph: Graph) -> Graph:
        """Set the firings of the row."""
        members, firings = row(graph, self.producer, self.until), Dim(str(self.firings))
        stages = (replace(each, firings=firings) if each.name in members else each for each in graph.stages)
        return replace(graph, stages=tuple(stages))


def row(graph: Graph, producer: str, until: Iterable[str] = ()) -> list[str]:
    """Return ``producer`` and the stages that work on its rows within the step, updates excluded.

    The list is in the order of the graph, without ``until`` and what depends on it, and empty if nobody reads its rows.
    """
    after = downstream(graph, producer, _is_stream)
    for name in until:
        after -= {name, *downstream(graph, name, _is_stream)}
    kept = {producer, *(name for name in after if graph.stage_of[name].kind is not StageKind.UPDATE)}
    return [stage.name for stage in graph.stages if stage.name in kept] if len(kept) > 1 else []


def _is_stream(data: Data) -> bool:
    return data.kind is DataKind.STREAM


def _first_barriers(graph: Graph, producer: str) -> tuple[str, ...]:
    """Return the barriers on the row that do not come after another one."""
    found = [name for name in row(graph, producer) if _barrier(graph, graph.stage_of[name])]
    behind = {name for barrier in found for name in downstream(graph, barrier, _is_stream)}
    return tuple(sorted(set(found) - behind))


def _barrier(graph: Graph, stage: Stage) -> list[Reason]:
    """Return why ``stage`` needs all rows of the step before it starts."""
    found: list[Reason] = []
    if stage.grain is Grain.BATCH:
        found.append(Reason((stage.name,), "needs the whole batch", f"stream until=[{stage.name}]", "V8"))
    if stage.passes > 1:
        text = f"sweeps over the data of a step {stage.passes} times, and the second sweep needs all of it"
        found.append(Reason((stage.name,), text, f"stream until=[{stage.name}]"))
    return found


def updates_fed(graph: Graph, train: str) -> Fraction:
    """Return the optimizer updates per step that the gradients of a stage go to, 1 if it makes none."""
    if graph.stage_of[train].kind is not StageKind.TRAIN:
        return Fraction(1)
    readers = {read.stage for write in graph.writes(train) for read in graph.readers(write.data)}
    return max((graph.firings(name) for name in readers), default=Fraction(1))
