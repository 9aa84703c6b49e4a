"""Do once what is done twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar, Self

from rpeg.graph.access import Access
from rpeg.graph.data import Data
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Effect, Stage
from rpeg.transforms.base import EffectClass, Reason, Transform
from rpeg.transforms.edit import columns_of, map_accesses, unite, without

__all__ = ["MergeEqual"]

_FREE = frozenset({Effect.RNG, Effect.HOST_IO, Effect.NETWORK, Effect.UNORDERED})


@dataclass(frozen=True, slots=True)
class MergeEqual(Transform):
    """Drop ``b``, which does to the same inputs what ``a`` does, and give its readers the results of ``a``."""

    name: ClassVar[str] = "merge_equal"
    effect: ClassVar[EffectClass] = EffectClass.EXACT

    a: str
    b: str

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield every pair of equal stages."""
        pairs = (cls(a.name, b.name) for a, b in combinations(graph.stages, 2) if a.kind is b.kind)
        yield from (each for each in pairs if not any(each.conditions(graph)))

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """Two stages alike in everything but the name, without effects, that read the same and write alike."""
        if missing := [name for name in (self.a, self.b) if name not in graph.stage_of]:
            yield Reason(tuple(missing), "is no stage", f"stages: {', '.join(graph.stage_of)}")
            return
        a, b = graph.stage_of[self.a], graph.stage_of[self.b]
        if a == b:
            yield Reason((a.name,), "is one stage already", "name two")
            return
        for field in ("kind", "model", "heads", "grain", "passes", "yields", "body"):
            if (left := getattr(a, field)) != (right := getattr(b, field)):
                yield Reason((a.name, b.name), f"different {field}: {left} and {right}", "only equal stages are merged")
        if (left := graph.firings(a.name)) != (right := graph.firings(b.name)):
            yield Reason((a.name, b.name), f"{left} and {right} firings", "stream both alike")
        yield from _unequal_accesses(graph, a, b)

    def rewrite(self, graph: Graph) -> Graph:
        """Send the readers of ``b`` to the results of ``a``."""
        pairs = zip(graph.writes(self.a), graph.writes(self.b), strict=True)
        twin = {old.data: graph.data_of[new.data] for new, old in pairs}
        old_data = {name: graph.data_of[name] for name in twin}

        def redirected(access: Access) -> Access:
            if access.data not in twin or access.stage == self.b:
                return access
            return _read_of(access, old_data[access.data], twin[access.data])

        readers = {read.stage for name in twin for read in graph.readers(name)}
        return unite(without(map_accesses(graph, redirected), [self.b], list(twin)), readers)


def _unequal_accesses(graph: Graph, a: Stage, b: Stage) -> Iterator[Reason]:
    """Yield in what the accesses of two stages differ that have to be alike."""
    for stage in (a, b):
        if effects := sorted(stage.effects & _FREE):
            yield Reason((stage.name,), f"has the effect {', '.join(effects)}", "twice is not the same as once")
        states = [write.data for write in graph.writes(stage.name) if graph.is_state(write.data)]
        if states:
            yield Reason((stage.name,), f"writes the state {', '.join(states)}", "twice is not the same as once")
    left, right = ({replace(read, stage="") for read in graph.reads(stage.name)} for stage in (a, b))
    if left != right:
        names = sorted({f"{read.data}@-{read.delay}" if read.delay else read.data for read in left ^ right})
        text = f"they differ in what they read of {', '.join(names)}"
        yield Reason((a.name, b.name), text, "only stages with equal inputs are merged")
    shapes = [[_shape(graph, write) for write in graph.writes(stage.name)] for stage in (a, b)]
    if shapes[0] != shapes[1]:
        yield Reason((a.name, b.name), "they write data of different form", "only equal results are merged")
    shared = {write.data for write in graph.writes(a.name)} & {write.data for write in graph.writes(b.name)}
    crowded = [w.data for s in (a, b) for w in graph.writes(s.name) if len(graph.writers(w.data)) > 1]
    if names := sorted(shared | set(crowded)):
        yield Reason((a.name, b.name), f"{', '.join(names)} has several writers", "write to data of their own")


def _shape(graph: Graph, write: Access) -> tuple[object, ...]:
    """Return what has to be equal for the data of one stage to stand for that of the other."""
    data = graph.data_of[write.data]
    columns = tuple((column.dtype, column.shape) for column in data.columns)
    return data.kind, data.per, data.versions, data.lifetime, columns


def _read_of(access: Access, old: Data, new: Data) -> Access:
    """Return a read of ``old`` as the read of the same columns, by place, of ``new``."""
    place = {column.name: i for i, column in enumerate(old.columns)}
    names = [new.columns[place[name]].name for name in access.columns]
    return replace(access, data=new.name, columns=columns_of(new, names) if names else ())
