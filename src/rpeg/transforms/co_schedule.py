"""Dispatch several passes over the same rows as one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar, Self

from rpeg.graph.access import Access
from rpeg.graph.dim import ONE
from rpeg.graph.graph import Graph
from rpeg.graph.region import Region
from rpeg.graph.stage import Source, Stage, StageKind
from rpeg.transforms.base import EffectClass, Reason, Transform
from rpeg.transforms.bodies import seen_inside
from rpeg.transforms.edit import downstream, map_accesses, unite, united_name, with_stage, without_record
from rpeg.transforms.passes import coarsest, joint_heads, spelled, tokens_read

__all__ = ["CoSchedule"]

_INDEX = "batch"
"""Index of the loop of one trip that holds the passes."""


@dataclass(frozen=True, slots=True)
class CoSchedule(Transform):
    """Make one stage of FORWARD passes that have different weights but read the same rows.

    It is one dispatch and one read of the batch, not one pass: the passes stay what they are inside of it. Whether
    their weights lie in memory together or one after the other is the plan's.
    """

    name: ClassVar[str] = "co_schedule"
    effect: ClassVar[EffectClass] = EffectClass.EXACT

    stages: tuple[str, ...]

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield every pair of passes that fit together."""
        names = [stage.name for stage in graph.stages if stage.kind is StageKind.FORWARD]
        each = (cls(pair) for pair in combinations(names, 2))
        yield from (candidate for candidate in each if not any(candidate.conditions(graph)))

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """At least two FORWARD stages over the same rows, at the same rate, none of which needs another."""
        found = [graph.stage_of[name] for name in self.stages if name in graph.stage_of]
        unfit = [name for name in self.stages if name not in graph.stage_of or not _is_pass(graph.stage_of[name])]
        for name in unfit:
            yield Reason((name,), "is no pass without gradients", "name stages of kind forward")
        if unfit:
            return
        if len(set(self.stages)) < 2 or len(set(self.stages)) < len(self.stages):
            yield Reason(self.stages, f"names {len(set(self.stages))} different passes", "name at least two, each once")
            return
        for a, b in combinations(found, 2):
            tokens = [tokens_read(graph, stage.name) for stage in (a, b)]
            if tokens[0] != tokens[1]:
                text = f"different rows: {spelled(tokens[0])} and {spelled(tokens[1])}"
                yield Reason((a.name, b.name), text, "one dispatch reads one batch")
            if twice := _read_twice(graph, a.name, b.name):
                yield Reason((a.name, b.name), f"read different versions of {', '.join(twice)}", "read one version")
            if (left := graph.firings(a.name)) != (right := graph.firings(b.name)):
                yield Reason((a.name, b.name), f"{left} and {right} firings", "stream both alike")
            for first, last in ((a.name, b.name), (b.name, a.name)):
                if last in downstream(graph, first):
                    yield Reason((first, last), f"{last} needs the result of {first}", "they run one after the other")

    def rewrite(self, graph: Graph) -> Graph:
        """Put the passes into the body of one stage that has the accesses of all of them."""
        members = [graph.stage_of[name] for name in self.stages]
        models = {stage.model for stage in members}
        joint = Stage(
            united_name(*self.stages),
            StageKind.FORWARD,
            models.pop() if len(models) == 1 else None,
            joint_heads(members),
            coarsest(members),
            members[0].firings,
            effects=frozenset(effect for stage in members for effect in stage.effects),
            body=Region(_INDEX, ONE, _body(graph, self.stages)),
            source=Source(str(self), self.stages),
        )

        def moved(access: Access) -> Access:
            return replace(access, stage=joint.name) if access.stage in self.stages else access

        graph = map_accesses(graph, moved)
        for name in self.stages[1:]:
            graph = without_record(graph, name)
        return unite(with_stage(graph, joint, self.stages[0]), [joint.name])


def _read_twice(graph: Graph, a: str, b: str) -> list[str]:
    """Return the data of which two stages read different versions."""
    delays = [{read.data: read.delay for read in graph.reads(stage)} for stage in (a, b)]
    return sorted(name for name in delays[0].keys() & delays[1].keys() if delays[0][name] != delays[1][name])


def _is_pass(stage: Stage) -> bool:
    return stage.kind is StageKind.FORWARD and (stage.body is None or stage.body.index == _INDEX)


def _body(graph: Graph, names: tuple[str, ...]) -> Graph:
    """Return the graph of the passes alone: what they read comes from outside, and delays are a matter of outside."""
    members = sorted((each for name in names for each in _passes(graph, name)), key=lambda each: each[0].name)
    stages = tuple(replace(stage, firings=ONE) for stage, _ in members)
    accesses = tuple(replace(access, delay=0) for _, own in members for access in own)
    data = tuple(seen_inside(each, accesses) for each in graph.data if each.name in {a.data for a in accesses})
    used = {part.model for part in (*data, *stages)}
    models = tuple(model for model in graph.models if model.name in used)
    return Graph(united_name(*names), graph.contract, (), models, data, stages, accesses)


def _passes(graph: Graph, name: str) -> list[tuple[Stage, list[Access]]]:
    """Return a pass with its accesses, or those inside of it if it is several already."""
    body = graph.stage_of[name].body
    if body is None:
        return [(graph.stage_of[name], [access for access in graph.accesses if access.stage == name])]
    return [each for stage in body.graph.stages for each in _passes(body.graph, stage.name)]
