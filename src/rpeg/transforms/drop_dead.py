"""Remove what nobody needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from rpeg.graph.access import Access
from rpeg.graph.contract import Kl
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Effect, Stage, StageKind
from rpeg.transforms.base import EffectClass, Reason, Transform
from rpeg.transforms.edit import without

__all__ = ["DropDead"]

_LASTING = (StageKind.UPDATE, StageKind.SAVE, StageKind.EVALUATE)
_OUTWARD = frozenset({Effect.HOST_IO, Effect.NETWORK})


@dataclass(frozen=True, slots=True)
class DropDead(Transform):
    """Remove ``stage``, whose results nobody reads, with its data, and the inputs and models that only it used.

    The log-probabilities of a reference count as unread when the contract has no distance to one (``kl=none``), since
    then no loss and no reward uses them.
    """

    name: ClassVar[str] = "drop_dead"
    effect: ClassVar[EffectClass] = EffectClass.EXACT

    stage: str

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield every dead stage."""
        yield from (each for each in map(cls, graph.stage_of) if not any(each.conditions(graph)))

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """It writes no STATE, acts on nothing outside, and nobody reads its results."""
        stage = graph.stage_of.get(self.stage)
        if stage is None:
            yield Reason((self.stage,), "is no stage", f"stages: {', '.join(graph.stage_of)}")
            return
        states = [write.data for write in graph.writes(stage.name) if graph.is_state(write.data)]
        if states:
            yield Reason((stage.name,), f"writes the state {', '.join(states)}, which outlives the step", "keep it")
        if stage.kind in _LASTING:
            yield Reason((stage.name,), f"is of kind {stage.kind}, whose work outlives the step", "keep it")
        if outward := sorted(stage.effects & _OUTWARD):
            yield Reason((stage.name,), f"acts on what is outside of the graph: {', '.join(outward)}", "keep it")
        if readers := sorted({read.stage for read in _results_read(graph, stage)}):
            yield Reason((stage.name,), f"its results are read by {', '.join(readers)}", "drop the readers first")

    def rewrite(self, graph: Graph) -> Graph:
        """Drop the stage and what it wrote."""
        stage = graph.stage_of[self.stage]
        made = [write.data for write in graph.writes(stage.name) if len(graph.writers(write.data)) == 1]
        return without(graph, [stage.name], made)


def _results_read(graph: Graph, stage: Stage) -> list[Access]:
    """Return the accesses by which others use what ``stage`` writes."""
    if graph.contract.kl is Kl.NONE and _is_reference(graph, stage):
        return []
    pairs = [pair for write in graph.writes(stage.name) for pair in graph.dependences(write.data)]
    return [reader for writer, reader in pairs if writer.stage == stage.name != reader.stage]


def _is_reference(graph: Graph, stage: Stage) -> bool:
    """Whether a stage returns log-probabilities of a model that no gradients update."""
    trained = {each.model for each in graph.stages if each.kind is StageKind.TRAIN}
    return stage.kind is StageKind.FORWARD and stage.heads == ("logprob",) and stage.model not in trained
