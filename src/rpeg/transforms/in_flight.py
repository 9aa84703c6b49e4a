"""Install new weights while samples are being written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar, Self

from rpeg.graph.access import Access, Bound, Mode, Refresh
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import generators
from rpeg.graph.stage import StageKind
from rpeg.transforms.base import EffectClass, Reason, Transform
from rpeg.transforms.edit import keep_versions, map_accesses, with_stage

__all__ = ["InFlight", "KvPolicy"]


class KvPolicy(StrEnum):
    """What becomes of the keys and values of tokens that older weights have written."""

    KEEP = "keep"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True)
class InFlight(Transform):
    """Let ``stage`` take newer weights between two tokens instead of finishing its samples first.

    A sample then has tokens of several versions, so the sampler's records are needed (V11), and one has to say whether
    keys and values of the older tokens are kept or computed anew (V12). Whether the engine can do it is the plan's.
    """

    name: ClassVar[str] = "in_flight"
    effect: ClassVar[EffectClass] = EffectClass.LEARNING

    stage: str
    kv: KvPolicy

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield both policies for every generator that waits for its samples so far."""
        for stage in generators(graph):
            if any(_is_switchable(graph, read) for read in graph.reads(stage.name)):
                yield from (cls(stage.name, kv) for kv in KvPolicy)

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """A generator that reads weights it does not switch yet."""
        stage = graph.stage_of.get(self.stage)
        if stage is None or stage.kind is not StageKind.GENERATE:
            names = ", ".join(each.name for each in generators(graph)) or "none"
            yield Reason((self.stage,), "is no generator", f"generators: {names}")
        elif not any(_is_switchable(graph, read) for read in graph.reads(self.stage)):
            yield Reason((self.stage,), "switches its weights within a sample already", "nothing to change")

    def rewrite(self, graph: Graph) -> Graph:
        """Refresh the weights token by token, add the policy to the heads, keep no version that nobody asks for."""
        stage = graph.stage_of[self.stage]
        graph = with_stage(graph, replace(stage, heads=(*stage.heads, f"kv_{self.kv}")))

        def switched(access: Access) -> Access:
            if access.stage == self.stage and access.mode is Mode.READ and _is_switchable(graph, access):
                return replace(access, bound=Bound.AT_LEAST, refresh=Refresh.TOKEN)
            return access

        weights = [read.data for read in graph.reads(self.stage) if _is_switchable(graph, read)]
        graph = map_accesses(graph, switched)
        for name in weights:
            graph = keep_versions(graph, name, shrink=True)
        return graph


def _is_switchable(graph: Graph, read: Access) -> bool:
    """Whether a generator's read is of its model's weights, held for the length of a sample."""
    own = {write.data for write in graph.writes(read.stage)}
    is_weights = graph.is_state(read.data) and graph.data_of[read.data].model == graph.stage_of[read.stage].model
    return is_weights and read.data not in own and read.refresh is not Refresh.TOKEN
