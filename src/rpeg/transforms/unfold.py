"""Lay several steps side by side as one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Self

from rpeg.graph.access import Access, Bound, Mode
from rpeg.graph.data import Data, DataKind, Per
from rpeg.graph.dim import ONE, Dim
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Source, Stage
from rpeg.transforms.base import EffectClass, Reason, Transform
from rpeg.transforms.edit import settle_lifetimes

__all__ = ["Unfold"]

_LONGEST = 16
"""The longest period worth a candidate."""


@dataclass(frozen=True, slots=True)
class Unfold(Transform):
    """Draw ``n`` steps as one: ``gen`` becomes ``gen.0``, ``gen.1``, …, and delays count n steps.

    What happens in every N-th step only, such as an evaluation, then stands in the copies in which it happens, so the
    period of the unfolded graph divided by n is the honest average. Every copy of a state is a version of its own: the
    one that an UPDATE makes it from is the copy before, which it reads. Staleness is still counted in versions.
    """

    name: ClassVar[str] = "unfold"
    effect: ClassVar[EffectClass] = EffectClass.EXACT

    n: int

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield the periods of what does not happen in every step."""
        periods = {graph.firings(stage.name).denominator for stage in graph.stages}
        yield from (cls(n) for n in sorted(periods) if 1 < n <= _LONGEST)

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """At least two steps, in which whatever happens in every N-th step happens equally often."""
        if self.n < 2:
            yield Reason((graph.name,), f"would be {self.n} steps", "at least 2")
            return
        for stage in graph.stages:
            period = graph.firings(stage.name).denominator
            if period % self.n and self.n % period:
                text = f"acts in every {period}th step, which does not fit into {self.n}"
                yield Reason((stage.name,), text, f"choose a divisor or a multiple of {period}")

    def rewrite(self, graph: Graph) -> Graph:
        """Copy stages and data, and turn delays into copies and periods."""
        accesses: list[Access] = []
        stages: list[Stage] = []
        for i in range(self.n):
            for stage in graph.stages:
                if (firings := self._firings(graph, stage, i)) is not None:
                    own = list(self._accesses(graph, stage, i))
                    accesses += own
                    stages.append(self._copy(graph, stage, i, firings, own))
        data = [copy for each in graph.data for copy in self._data(each, accesses)]
        unfolded = replace(graph, data=tuple(data), stages=tuple(stages), accesses=tuple(accesses))
        return settle_lifetimes(unfolded)

    def _firings(self, graph: Graph, stage: Stage, i: int) -> Dim | None:
        """Return how often copy ``i`` of a stage fires per period, None if it does not act in that step."""
        firings = graph.firings(stage.name)
        if firings.denominator == 1:
            return stage.firings
        if (i + 1) % min(firings.denominator, self.n):
            return None
        left = max(Fraction(1), Fraction(firings.denominator, self.n))
        return ONE if left == 1 else Dim(f"1 / {left}")

    def _copy(self, graph: Graph, stage: Stage, i: int, firings: Dim, accesses: list[Access]) -> Stage:
        body = stage.body
        if body is not None:
            before = [access for access in graph.accesses if access.stage == stage.name]
            names = {old.data: new.data for old, new in zip(before, accesses, strict=False)}
            body = replace(body, graph=_renamed(body.graph, names))
        source = Source(str(self), (stage.name,))
        return replace(stage, name=f"{stage.name}.{i}", firings=firings, body=body, source=source)

    def _accesses(self, graph: Graph, stage: Stage, i: int) -> Iterator[Access]:
        """Yield the accesses of copy ``i``: those it had, then the reads of what its updates start from."""
        own = [access for access in graph.accesses if access.stage == stage.name]
        yield from (self._access(graph, access, i) for access in own)
        for access in own:
            if access.mode is Mode.UPDATE and not _names_its_start(graph, access):
                yield self._access(graph, Access(stage.name, access.data, Mode.READ, access.columns, 1), i)

    def _access(self, graph: Graph, access: Access, i: int) -> Access:
        name = f"{access.stage}.{i}"
        if _is_timeless(graph.data_of[access.data]):
            return replace(access, stage=name)
        periods, copy = divmod(i - access.delay, self.n)
        return replace(access, stage=name, data=f"{access.data}.{copy}", delay=-periods)

    def _data(self, data: Data, accesses: list[Access]) -> Iterator[Data]:
        if _is_timeless(data):
            yield data
            return
        for i in range(self.n):
            name = f"{data.name}.{i}"
            exact = [a.delay for a in accesses if a.data == name and a.mode is Mode.READ and a.bound is Bound.EXACT]
            versions = max([1, *exact]) if data.kind is DataKind.STATE else data.versions
            yield replace(data, name=name, versions=versions)


def _names_its_start(graph: Graph, update: Access) -> bool:
    """Whether the stage reads what it makes the new version from: the version before, or in a copy the other state."""
    made = graph.data_of[update.data]
    reads = [(read, graph.data_of[read.data]) for read in graph.reads(update.stage) if graph.is_state(read.data)]
    if any(data == made and read.delay == 1 for read, data in reads):
        return True
    updated = [data for _, data in reads if any(write.mode is Mode.UPDATE for write in graph.writers(data.name))]
    return any((data.model, data.per, data.columns) == (made.model, made.per, made.columns) for data in updated)


def _is_timeless(data: Data) -> bool:
    """Whether data is the same in every step: frozen weights."""
    return data.kind is DataKind.EXTERNAL and data.per is Per.RUN


def _renamed(graph: Graph, names: dict[str, str]) -> Graph:
    """Return the body of a stage with the names that its data has outside."""
    return replace(
        graph,
        data=tuple(replace(data, name=names.get(data.name, data.name)) for data in graph.data),
        accesses=tuple(replace(access, data=names.get(access.data, access.data)) for access in graph.accesses),
    )
