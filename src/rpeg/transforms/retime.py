"""Move delays across a stage (Leiserson and Saxe 1991, doi:10.1007/BF01759032)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from rpeg.graph.access import Access, Bound, Mode
from rpeg.graph.data import Data, DataKind, Per
from rpeg.graph.graph import Graph
from rpeg.transforms.base import EffectClass, Reason, Transform
from rpeg.transforms.edit import map_accesses, settle_lifetimes, with_data

__all__ = ["Retime"]


@dataclass(frozen=True, slots=True)
class Retime(Transform):
    """Let ``stage`` work on what is ``r`` steps older: its inputs get ``r`` more delay, its results ``r`` less.

    Around every cycle the delays sum to the same, so staleness and period stay; what changes is where versions wait.
    With ``r = -k`` on a generator that reads weights k + 1 steps back, k + 1 versions of the weights become one, and
    k batches of rollouts are kept instead. Which row of a data set is the first has no meaning of its own: rows that
    the stage reads are numbered anew, so that the first to read them reads them undelayed.
    """

    name: ClassVar[str] = "retime"
    effect: ClassVar[EffectClass] = EffectClass.EXACT

    stage: str
    r: int
    """Steps; negative moves delays from the inputs to the results."""

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield one step either way for stages whose results are read, wherever no delay falls below zero."""
        both = (cls(stage.name, r) for stage in graph.stages for r in (-1, 1))
        yield from (each for each in both if each._reads_of_results(graph) and not any(each.conditions(graph)))

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """All resulting delays are at least 0, and no access would need two of them."""
        if self.stage not in graph.stage_of:
            yield Reason((self.stage,), "is no stage", f"stages: {', '.join(graph.stage_of)}")
            return
        if self.r == 0 or not graph.reads(self.stage):
            yield Reason((self.stage,), f"has nothing to move by {self.r} steps", "choose r other than 0")
        for before, after in zip(graph.accesses, self._moved(graph).accesses, strict=True):
            if after.delay < 0:
                text = f"would be read {after.delay} steps back instead of {before.delay}"
                yield Reason((before.data, before.stage), text, "a delay is at least 0: move fewer steps")
        yield from self._torn(graph)

    def rewrite(self, graph: Graph) -> Graph:
        """Move the delays, then keep as many more or fewer versions as the oldest reader needs."""
        moved = self._moved(graph)
        for data in graph.data:
            moved = _keep_alike(graph, moved, data)
        return settle_lifetimes(moved)

    def _torn(self, graph: Graph) -> Iterator[Reason]:
        for read in self._reads_of_results(graph):
            writers = [writer.stage for writer, reader in graph.dependences(read.data) if reader == read]
            if others := [name for name in writers if name != self.stage]:
                text = f"reads what {self.stage} and {', '.join(others)} write through one access"
                yield Reason((read.stage, read.data), text, "read the columns of each through an access of its own")

    def _reads_of_results(self, graph: Graph) -> list[Access]:
        """Return the accesses by which other stages read what the stage writes."""
        written = {write.data for write in graph.writes(self.stage)}
        pairs = [pair for data in written for pair in graph.dependences(data)]
        found = [reader for writer, reader in pairs if writer.stage == self.stage != reader.stage]
        return [access for access in graph.accesses if access in found]

    def _moved(self, graph: Graph) -> Graph:
        results = set(self._reads_of_results(graph))
        own = {write.data for write in graph.writes(self.stage)}

        def shifted(access: Access) -> Access:
            if access in results:
                return replace(access, delay=access.delay - self.r)
            is_input = access.stage == self.stage and access.mode is Mode.READ and access.data not in own
            if is_input and not _is_timeless(graph.data_of[access.data]):
                return replace(access, delay=access.delay + self.r)
            return access

        moved = map_accesses(graph, shifted)
        for data in graph.data:
            if data.kind is DataKind.EXTERNAL:
                moved = _renumbered(graph, moved, data.name)
        return moved


def _is_timeless(data: Data) -> bool:
    return data.kind is DataKind.EXTERNAL and data.per is Per.RUN


def _renumbered(before: Graph, after: Graph, name: str) -> Graph:
    """Give back to the rows of a data set the smallest delay they had."""
    change = _least(before, name) - _least(after, name)
    if change == 0:
        return after
    return map_accesses(after, lambda a: replace(a, delay=a.delay + change) if a.data == name else a)


def _least(graph: Graph, name: str) -> int:
    return min((read.delay for read in graph.readers(name)), default=0)


def _keep_alike(before: Graph, after: Graph, data: Data) -> Graph:
    """Keep as many versions of a STATE, or batches of a bounded queue, beyond what its oldest read needs as before."""
    needed = [max(1, _oldest(graph, data.name)) for graph in (before, after)]
    is_bounded = data.kind is DataKind.STATE or (data.kind is DataKind.STREAM and data.versions > 0)
    if needed[0] == needed[1] or not is_bounded:
        return after
    return with_data(after, replace(data, versions=max(1, data.versions - needed[0] + needed[1])))


def _oldest(graph: Graph, name: str) -> int:
    return max((read.delay for read in graph.readers(name) if read.bound is Bound.EXACT), default=0)
