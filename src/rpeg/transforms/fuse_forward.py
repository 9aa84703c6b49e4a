"""Make one pass of two that run the same weights over the same tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar, Self

from rpeg.graph.access import Access, Mode
from rpeg.graph.data import DataKind
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Stage, StageKind
from rpeg.transforms.base import EffectClass, Reason, Transform
from rpeg.transforms.edit import between, map_accesses, unite, with_stage, without, without_record
from rpeg.transforms.passes import fused_stage, spelled, tokens_read

__all__ = ["FuseForward"]

_PASSES = (StageKind.FORWARD, StageKind.TRAIN)


@dataclass(frozen=True, slots=True)
class FuseForward(Transform):
    """Fuse the FORWARD ``a`` into ``b``, a FORWARD or a TRAIN: one pass with the heads of both.

    A TRAIN may take over the pass for the old log-probabilities if it makes one update in one sweep: until then the
    weights are the old ones, so its own log-probabilities, detached, are what ``a`` would have returned.
    """

    name: ClassVar[str] = "fuse_forward"
    effect: ClassVar[EffectClass] = EffectClass.NUMERIC

    a: str
    b: str

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield every pair of passes of one model."""
        passes = [stage for stage in graph.stages if stage.kind in _PASSES]
        for a, b in combinations(sorted(passes, key=lambda stage: stage.kind is StageKind.TRAIN), 2):
            if a.kind is StageKind.FORWARD and a.model == b.model:
                yield cls(a.name, b.name)

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """Same weights of the same version, same tokens, same firings, nothing between; a TRAIN makes one update."""
        stages = [graph.stage_of.get(name) for name in (self.a, self.b)]
        wanted = (StageKind.FORWARD,), _PASSES
        for name, stage, kinds in zip((self.a, self.b), stages, wanted, strict=True):
            if stage is None or stage.kind not in kinds:
                found = "no stage" if stage is None else f"a stage of kind {stage.kind}"
                yield Reason((name,), f"is {found}", f"name a {' or '.join(kinds)}")
        a, b = stages
        if a is None or b is None or a.kind is not StageKind.FORWARD or b.kind not in _PASSES:
            return
        if a.name == b.name:
            yield Reason((a.name,), "is one pass already", "name two")
            return
        for stage in (a, b):
            if stage.body is not None:
                yield Reason((stage.name,), f"is a loop itself ({stage.body.index})", "fuse before")
        yield from _different(graph, a, b)
        yield from _apart(graph, a, b)
        if b.kind is StageKind.TRAIN:
            yield from _several_updates(graph, b)

    def rewrite(self, graph: Graph) -> Graph:
        """Put the united stage in the place of ``b``; what only ``b`` read of ``a`` becomes part of the pass."""
        a, b = graph.stage_of[self.a], graph.stage_of[self.b]
        fused = fused_stage(a, b, str(self))
        made = {write.data for write in graph.writes(a.name)}
        inner = [data for data in made if {read.stage for read in graph.readers(data)} == {b.name}]
        graph = without(graph, data=inner)
        own = tuple(x for x in graph.accesses if not (x.stage == b.name and x.data in made and x.mode is Mode.READ))
        graph = replace(graph, accesses=own)

        def moved(access: Access) -> Access:
            return replace(access, stage=fused.name) if access.stage in (a.name, b.name) else access

        graph = map_accesses(without_record(with_stage(graph, fused, b.name), a.name), moved)
        return unite(graph, [fused.name])


def _different(graph: Graph, a: Stage, b: Stage) -> Iterator[Reason]:
    """Yield in what two passes differ that one pass has to have in common."""
    weights = [_weights(graph, stage.name) for stage in (a, b)]
    if weights[0] != weights[1]:
        texts = [spelled(each) for each in weights]
        text = f"different weights: {texts[0]} and {texts[1]}"
        yield Reason((a.name, b.name), text, "one pass has one set of weights")
    tokens = [tokens_read(graph, stage.name) for stage in (a, b)]
    if tokens[0] != tokens[1]:
        texts = [spelled(each) for each in tokens]
        yield Reason((a.name, b.name), f"different tokens: {texts[0]} and {texts[1]}", "one pass reads one batch")
    firings = [graph.firings(stage.name) for stage in (a, b)]
    if firings[0] != firings[1]:
        yield Reason((a.name, b.name), f"{firings[0]} and {firings[1]} firings", "stream both alike")


def _weights(graph: Graph, stage: str) -> set[tuple[str, int]]:
    """Return name and delay of all weights that a pass reads."""
    model = graph.stage_of[stage].model
    return {
        (read.data, read.delay)
        for read in graph.reads(stage)
        if graph.data_of[read.data].model == model and graph.data_of[read.data].kind is not DataKind.STREAM
    }


def _apart(graph: Graph, a: Stage, b: Stage) -> Iterator[Reason]:
    """Yield what makes two passes run one after the other."""
    for first, last in ((a.name, b.name), (b.name, a.name)):
        if stages := between(graph, first, last):
            text = f"another stage lies between: {first} -> {' -> '.join(stages)} -> {last}"
            yield Reason((a.name, b.name), text, "one pass cannot wait for its own results")
    fed = {read.stage for write in graph.writes(a.name) for read in graph.readers(write.data)}
    feeding = {read.stage for write in graph.writes(b.name) for read in graph.readers(write.data)}
    if (b.kind is StageKind.FORWARD and b.name in fed) or a.name in feeding:
        yield Reason((a.name, b.name), "one reads the result of the other", "one pass cannot wait for its own results")


def _several_updates(graph: Graph, train: Stage) -> Iterator[Reason]:
    """Yield why the weights that a TRAIN sees are not the old ones all along."""
    updates = graph.contract.updates_per_step
    if train.passes > 1:
        text = f"sweeps over the data of a step {train.passes} times, and only the first sweep has the old weights"
        yield Reason((train.name,), text, "keep the pass for the old log-probabilities")
    if updates > 1:
        text = f"a step makes {updates} updates, and only the first one has the old weights"
        yield Reason((train.name,), text, "keep the pass for the old log-probabilities")
