"""Divide the loss after the gradient has been taken, when the number to divide by is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from rpeg.graph.access import Access
from rpeg.graph.contract import Normalise
from rpeg.graph.data import Column
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Grain, StageKind
from rpeg.transforms.base import EffectClass, Reason, Transform
from rpeg.transforms.edit import with_data, with_stage

__all__ = ["DeferNormalise"]

_COUNTED = (Normalise.TOKEN, Normalise.GROUP)


@dataclass(frozen=True, slots=True)
class DeferNormalise(Transform):
    """Let ``train`` add up gradients that are not divided yet, with their count beside them, and ``update`` divide.

    How many tokens or groups a step has is known when its last sample is. As one factor of all gradients the number can
    wait until the update, so the gradient pass no longer needs the whole batch before it starts.
    """

    name: ClassVar[str] = "defer_normalise"
    effect: ClassVar[EffectClass] = EffectClass.NUMERIC

    train: str
    update: str

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield every gradient pass that waits for the whole batch, with its update."""
        for stage in graph.stages:
            if stage.kind is StageKind.TRAIN and stage.grain is Grain.BATCH:
                yield from (cls(stage.name, update) for update in _updates(graph, stage.name))

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """A gradient pass of BATCH grain, its update, and a loss divided by a count."""
        stage = graph.stage_of.get(self.train)
        if stage is None or stage.kind is not StageKind.TRAIN:
            yield Reason((self.train,), "is no gradient pass", "name a stage of kind train")
            return
        if self.update not in (updates := _updates(graph, self.train)):
            names = ", ".join(updates) or "none"
            yield Reason((self.update, self.train), "is no update by these gradients", f"updates: {names}")
        if stage.grain is not Grain.BATCH:
            text = f"is of {stage.grain} grain: its gradients are divided at the update already"
            yield Reason((self.train,), text, "nothing to defer")
        if graph.contract.normalise not in _COUNTED:
            text = f"the loss is divided by {graph.contract.normalise}, which is no count of the whole step"
            yield Reason((self.train,), text, f"needs {' or '.join(_COUNTED)}")

    def rewrite(self, graph: Graph) -> Graph:
        """Add the count to the gradients and lift the barrier."""
        count = Column(f"num_{graph.contract.normalise}s", "int64")
        (grads,) = (graph.data_of[read.data] for read in _gradients(graph, self.train, self.update))
        graph = with_data(graph, replace(grads, columns=(*grads.columns, count)))
        return with_stage(graph, replace(graph.stage_of[self.train], grain=Grain.SAMPLE))


def _gradients(graph: Graph, train: str, update: str) -> list[Access]:
    """Return the reads by which ``update`` takes what ``train`` writes."""
    written = {write.data for write in graph.writes(train)}
    return [read for read in graph.reads(update) if read.data in written]


def _updates(graph: Graph, train: str) -> list[str]:
    """Return the updates that take the gradients of ``train``."""
    kinds = {stage.name: stage.kind for stage in graph.stages}
    return [name for name in kinds if kinds[name] is StageKind.UPDATE and _gradients(graph, train, name)]
