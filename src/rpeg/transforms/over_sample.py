"""Begin more samples than a step trains on, and do not wait for the slowest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import ClassVar, Self

from rpeg.graph.access import Access, Mode
from rpeg.graph.data import Data, DataKind, Per
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import generators
from rpeg.graph.stage import Effect, Grain, Source, Stage, StageKind
from rpeg.transforms.base import EffectClass, Reason, Transform
from rpeg.transforms.edit import map_accesses, settle_lifetimes, with_stage

__all__ = ["OverSample", "Stop"]


class Stop(StrEnum):
    """What is left out when enough has been sampled."""

    DROP_GROUPS = "drop_groups"
    """Groups that are not complete: every group that is trained on has all its samples."""
    FEWER_SAMPLES = "fewer_samples"
    """Samples that are not finished: groups may be smaller, and rewards are compared with fewer others."""


@dataclass(frozen=True, slots=True)
class OverSample(Transform):
    """Let ``stage`` begin ``factor`` times the samples of a step; a FILTER behind it keeps the first that are done.

    Whatever takes long is left out more often, long answers first of all: the samples that remain are not a fair draw.
    """

    name: ClassVar[str] = "over_sample"
    effect: ClassVar[EffectClass] = EffectClass.LEARNING

    stage: str
    factor: Fraction
    """Above 1; ``factor`` times the prompts of a step is a whole number."""
    stop: Stop

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield a quarter and a half more, with either rule, for every generator that can have it."""
        for stage in generators(graph):
            each = [cls(stage.name, factor, stop) for factor in (Fraction(5, 4), Fraction(3, 2)) for stop in Stop]
            yield from (candidate for candidate in each if not any(candidate.conditions(graph)))

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """A generator without a loop inside, with one stream of samples that nobody filters yet, and whole groups."""
        stage = graph.stage_of.get(self.stage)
        if stage is None or stage.kind is not StageKind.GENERATE:
            names = ", ".join(each.name for each in generators(graph)) or "none"
            yield Reason((self.stage,), "is no generator", f"generators: {names}")
            return
        if stage.body is not None:
            yield Reason((self.stage,), f"makes its samples in a loop ({stage.body.index})", "filter inside the loop")
        samples = _samples(graph, self.stage)
        if len(samples) != 1:
            yield Reason((self.stage,), f"writes {len(samples)} streams of samples", "it needs one")
        readers = [graph.stage_of[read.stage] for data in samples for read in graph.readers(data.name)]
        if filters := sorted({each.name for each in readers if each.kind is StageKind.FILTER}):
            yield Reason((self.stage, *filters), "its samples are filtered already", "nothing to add")
        groups = self.factor * graph.batch_rows / graph.group_size
        if self.factor <= 1 or groups.denominator != 1:
            text = f"{self.factor} times {graph.batch_rows // graph.group_size} prompts are {groups}"
            yield Reason((self.stage,), text, "above 1, and a whole number of prompts")

    def rewrite(self, graph: Graph) -> Graph:
        """Raise the yield and put the filter between the generator and the readers of its samples."""
        stage = graph.stage_of[self.stage]
        (samples,) = _samples(graph, self.stage)
        drafts = replace(samples, name=f"{self.stage}.drafts")
        grain = Grain.GROUP if self.stop is Stop.DROP_GROUPS else Grain.SAMPLE
        keeping = Stage(
            f"{self.stage}.first",
            StageKind.FILTER,
            grain=grain,
            firings=stage.firings,
            yields=Dim(f"{self.factor.denominator} / {self.factor.numerator}"),
            effects=frozenset({Effect.UNORDERED}),
            source=Source(str(self), (self.stage,)),
        )

        def to_drafts(access: Access) -> Access:
            is_writer = access.stage == self.stage and access.data == samples.name
            return replace(access, data=drafts.name) if is_writer else access

        yields = Dim(f"({stage.yields}) * {self.factor.numerator} / {self.factor.denominator}")
        graph = map_accesses(with_stage(graph, replace(stage, yields=yields)), to_drafts)
        index = [each.name for each in graph.stages].index(self.stage) + 1
        accesses = (Access(keeping.name, drafts.name, Mode.READ), Access(keeping.name, samples.name, Mode.WRITE))
        graph = replace(
            graph,
            data=(*graph.data, drafts),
            stages=(*graph.stages[:index], keeping, *graph.stages[index:]),
            accesses=(*graph.accesses, *accesses),
        )
        return settle_lifetimes(graph)


def _samples(graph: Graph, stage: str) -> list[Data]:
    """Return the streams of samples that a generator writes."""
    written = (graph.data_of[write.data] for write in graph.writes(stage))
    return [data for data in written if data.kind is DataKind.STREAM and data.per is Per.SAMPLE]
