"""Show what is inside of a stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from rpeg.graph.graph import Graph
from rpeg.transforms.base import EffectClass, Reason, Transform
from rpeg.transforms.bodies import BODIES
from rpeg.transforms.edit import with_stage

__all__ = ["Expand"]


@dataclass(frozen=True, slots=True)
class Expand(Transform):
    """Give ``stage`` a body: the graph of one trip of the loop it is (`rpeg.transforms.bodies`).

    From outside nothing changes; a finer model of time and memory has more to look at.
    """

    name: ClassVar[str] = "expand"
    effect: ClassVar[EffectClass] = EffectClass.EXACT

    stage: str
    implementation: str
    trips: int
    """How often the loop turns at most: tokens of a sample, micro-batches of a firing."""
    parts: int = 1
    """Parts of the layers, for implementations that cut them."""

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        """Yield every implementation for every stage without a body: 4096 tokens, 8 micro-batches, 4 parts."""
        sizes = {"prefill_decode": (4096, 1), "forward_backward": (8, 1), "one_f_one_b": (8, 4)}
        each = (cls(stage, name, *sizes[name]) for stage in graph.stage_of for name in BODIES)
        yield from (candidate for candidate in each if not any(candidate.conditions(graph)))

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        """A stage of the right kind without a body and without a state of its own, and sensible numbers."""
        stage, body = graph.stage_of.get(self.stage), BODIES.get(self.implementation)
        if stage is None:
            yield Reason((self.stage,), "is no stage", f"stages: {', '.join(graph.stage_of)}")
        if body is None:
            yield Reason((self.implementation,), "is no implementation", f"there is {', '.join(BODIES)}")
        if stage is None or body is None:
            return
        if stage.kind is not body.kind:
            text = f"is of kind {stage.kind}, {self.implementation} implements {body.kind}"
            yield Reason((stage.name,), text, "choose another implementation")
        if stage.body is not None:
            yield Reason((stage.name,), f"has a body already ({stage.body.index})", "nothing to expand")
        if states := [write.data for write in graph.writes(stage.name) if graph.is_state(write.data)]:
            yield Reason(
                (stage.name,), f"makes the state {', '.join(states)} as well", "only plain stages are expanded"
            )
        if self.trips < 1:
            yield Reason((stage.name,), f"would turn {self.trips} times", "at least once")
        if (self.parts > 1) is not body.has_parts or self.parts < 1:
            text = f"would have {self.parts} parts"
            yield Reason((stage.name,), text, "at least 2" if body.has_parts else f"{self.implementation} has one")

    def rewrite(self, graph: Graph) -> Graph:
        """Draw the body."""
        stage = graph.stage_of[self.stage]
        body = BODIES[self.implementation].draw(graph, stage, self.trips, self.parts)
        return with_stage(graph, replace(stage, body=body))
