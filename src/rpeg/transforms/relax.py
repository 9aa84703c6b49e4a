"""Let a generator sample from older weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from rpeg.graph.access import Access
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import generators
from rpeg.graph.stage import StageKind
from rpeg.transforms.base import EffectClass, Reason, Transform
from rpeg.transforms.edit import keep_versions, map_accesses, settle_lifetimes

__all__ = ["Relax"]


@dataclass(frozen=True, slots=True)
class Relax(Transform):
    """Read the weights ``steps`` further back: the generator may run that many steps ahead of the trainer.

    The versions kept grow with the delay. How old a sample may become is the contract's to say (V7), and stale samples
    carry the log-probabilities and versions that importance ratios need (V11).
    """

    name: ClassVar[str] = "relax"
    effect: ClassVar[EffectClass] = EffectClass.LEARNING

    stage: str
    """The generator."""
    steps: int
    """Steps added to the delay, at least 1."""
    data: str = ""
    """Which of its states, if it reads several."""

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield one step for every weights that a generator reads."""
        for stage in generators(graph):
            reads = _weights_read(graph, stage.name)
            yield from (cls(stage.name, 1, read.data if len(reads) > 1 else "") for read in reads)

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """A generator that reads the state, and a step forward."""
        stage = graph.stage_of.get(self.stage)
        if stage is None or stage.kind is not StageKind.GENERATE:
            names = ", ".join(each.name for each in generators(graph)) or "none"
            yield Reason((self.stage,), "is no generator", f"generators: {names}")
            return
        if len(found := self._reads(graph)) != 1:
            names = ", ".join(read.data for read in _weights_read(graph, self.stage)) or "none"
            what = f"reads no weights {self.data}" if self.data else f"reads {len(found)} weights"
            yield Reason((self.stage,), what, f"name one: {names}")
        if self.steps < 1:
            yield Reason((self.stage,), f"would read {self.steps} steps further back", "at least 1")

    def rewrite(self, graph: Graph) -> Graph:
        """Raise the delay, the versions kept, and what a checkpoint holds."""
        (read,) = self._reads(graph)
        later = replace(read, delay=read.delay + self.steps)
        graph = map_accesses(graph, lambda access: later if access == read else access)
        return settle_lifetimes(keep_versions(graph, read.data))

    def _reads(self, graph: Graph) -> list[Access]:
        return [read for read in _weights_read(graph, self.stage) if self.data in ("", read.data)]


def _weights_read(graph: Graph, stage: str) -> list[Access]:
    """Return what ``stage`` reads of the states of its own model that it does not write itself."""
    model, own = graph.stage_of[stage].model, {access.data for access in graph.writes(stage)}
    reads = [read for read in graph.reads(stage) if graph.is_state(read.data) and read.data not in own]
    return [read for read in reads if graph.data_of[read.data].model == model]
