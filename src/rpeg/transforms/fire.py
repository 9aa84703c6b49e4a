"""Choose how many rows one firing of a stage works on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Self

from rpeg.graph.data import DataKind, Per
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.transforms.base import EffectClass, Reason, Transform
from rpeg.transforms.edit import with_stage
from rpeg.transforms.stream import FIRINGS, updates_fed

__all__ = ["Fire"]

_KINDS = (StageKind.FORWARD, StageKind.TRAIN)


@dataclass(frozen=True, slots=True)
class Fire(Transform):
    """Let ``stage`` alone fire on ``rows`` rows at a time, its neighbours staying as they are.

    This is the logical part of micro-batches: what can begin and end by itself. How many of these rows are on a device
    at once is the plan's. Gradients add up over more firings, the same up to rounding.
    """

    name: ClassVar[str] = "fire"
    effect: ClassVar[EffectClass] = EffectClass.NUMERIC

    stage: str
    rows: int

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield twice and half as many rows for every pass of a model."""
        for stage in graph.stages:
            now = graph.firings(stage.name)
            for firings in FIRINGS if stage.kind in _KINDS else ():
                rows = Fraction(graph.batch_rows, firings)
                if rows.denominator == 1 and firings in (2 * now, now / 2):
                    yield cls(stage.name, int(rows))

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """A stage that works on rows, and a number of them that divides the batch and fits the updates."""
        accesses = [access for access in graph.accesses if access.stage == self.stage]
        data = (graph.data_of[access.data] for access in accesses)
        if not any(each.kind is DataKind.STREAM and each.per is Per.SAMPLE for each in data):
            yield Reason((self.stage,), "works on no rows of samples", "name a stage that reads or writes some")
            return
        if self.rows < 1 or graph.batch_rows % self.rows:
            text = f"{self.rows} rows do not divide the batch of {graph.batch_rows}"
            yield Reason((self.stage,), text, f"a divisor of {graph.batch_rows}")
            return
        updates, firings = updates_fed(graph, self.stage), graph.batch_rows // self.rows
        if firings % updates:
            text = f"would fire {firings} times for {updates} updates"
            yield Reason((self.stage,), text, f"choose rows that make a multiple of {updates}")

    def rewrite(self, graph: Graph) -> Graph:
        """Set the firings of the stage."""
        firings = Dim(str(graph.batch_rows // self.rows))
        return with_stage(graph, replace(graph.stage_of[self.stage], firings=firings))
