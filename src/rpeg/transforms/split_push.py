"""Stage weights between trainer and generator, so that neither waits for the other to take them over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from rpeg.graph.access import Access, Mode
from rpeg.graph.data import DataKind, Lifetime
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Source, Stage, StageKind
from rpeg.transforms.base import EffectClass, Reason, Transform
from rpeg.transforms.edit import map_accesses

__all__ = ["SplitPush"]


@dataclass(frozen=True, slots=True)
class SplitPush(Transform):
    """Split the rendezvous that publishes ``data`` into a push to staged weights and a pull from there.

    The delays stay. The trainer runs on while the generator finishes its samples, until ``versions`` staged ones wait:
    this is what turns staleness into slack against samples of varying length.
    """

    name: ClassVar[str] = "split_push"
    effect: ClassVar[EffectClass] = EffectClass.EXACT

    data: str
    """The weights a generator samples from, written by a PUSH."""
    versions: int = 1
    """Staged versions kept."""

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield one and two staged versions for all weights that are pushed."""
        for data in graph.data:
            if _push_of(graph, data.name) is not None and not any(cls(data.name).conditions(graph)):
                yield from (cls(data.name, versions) for versions in (1, 2))

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """A STATE that one PUSH writes, and a generator that reads it."""
        data = graph.data_of.get(self.data)
        if data is None or data.kind is not DataKind.STATE or _push_of(graph, self.data) is None:
            yield Reason((self.data,), "is no state that one PUSH stage publishes", "name the rollout weights")
            return
        pulls = [read.stage for read in graph.readers(self.data) if graph.stage_of[read.stage].kind is StageKind.PULL]
        if pulls:
            yield Reason((self.data,), f"is staged already: {', '.join(pulls)} takes it from here", "nothing to split")
        if self.versions < 1:
            yield Reason((self.data,), f"would be staged in {self.versions} versions", "at least 1")

    def rewrite(self, graph: Graph) -> Graph:
        """Put the staged weights and a PULL between the push and the data."""
        push = _push_of(graph, self.data)
        assert push is not None
        data, names = graph.data_of[self.data], {*graph.data_of, *graph.stage_of}
        staged = replace(data, name=_free(f"{data.model}.staged", names), versions=self.versions, lifetime=Lifetime.RUN)
        source = Source(str(self), (push,))
        pull = Stage(_free("pull", names), StageKind.PULL, graph.stage_of[push].model, source=source)

        def to_staged(access: Access) -> Access:
            is_push = access.stage == push and access.data == self.data and access.writes
            return replace(access, data=staged.name) if is_push else access

        graph = map_accesses(graph, to_staged)
        index = [stage.name for stage in graph.stages].index(push) + 1
        accesses = (Access(pull.name, staged.name, Mode.READ), Access(pull.name, self.data, Mode.WRITE))
        return replace(
            graph,
            data=(*graph.data, staged),
            stages=(*graph.stages[:index], pull, *graph.stages[index:]),
            accesses=(*graph.accesses, *accesses),
        )


def _push_of(graph: Graph, data: str) -> str | None:
    """Return the one stage that writes ``data`` if it is a PUSH."""
    names = [write.stage for write in graph.writers(data)]
    return names[0] if len(names) == 1 and graph.stage_of[names[0]].kind is StageKind.PUSH else None


def _free(name: str, taken: set[str]) -> str:
    """Return ``name``, or with as many ``_`` behind it as make it new."""
    return name if name not in taken else _free(f"{name}_", taken)
