"""The structures that a plan may have: everything the allowed transformations make of the algorithm's graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rpeg.errors import Fault, PlanError
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import age, generators, lead
from rpeg.graph.stage import StageKind
from rpeg.transforms.base import EffectClass
from rpeg.transforms.closure import closure
from rpeg.transforms.registry import TRANSFORMS
from rpeg.transforms.retime import Retime

__all__ = ["LEARNING", "Structure", "structures"]

_ALWAYS = ("stream", "fuse_forward", "drop_dead")
"""What changes no more than the rounding is tried without being asked for."""
LEARNING = tuple(sorted(name for name, kind in TRANSFORMS.items() if kind.effect is EffectClass.LEARNING))
"""What changes the learning has to be allowed by its name."""


@dataclass(frozen=True, slots=True)
class Structure:
    """One way to build the pipeline."""

    graph: Graph
    staleness: int
    """k: how many steps the generator may be ahead."""
    firings: int
    """Parts in which samples flow from the generator to what comes after it."""

    @property
    def rewrites(self) -> tuple[str, ...]:
        """What was done to the algorithm's graph, in order."""
        return tuple(applied.transform for applied in self.graph.history)

    @property
    def form(self) -> tuple[str, ...]:
        """What is the same for structures that differ in staleness and streaming only: the stages."""
        return tuple(sorted(stage.name for stage in self.graph.stages))


def structures(graph: Graph, max_staleness: int = 0, allow: Iterable[str] = ()) -> tuple[Structure, ...]:
    """Return every structure, the algorithm's own first.

    Args:
        graph: the algorithm's graph.
        max_staleness: how old the samples of a step may be at most; more than the graph has lets its generator relax.
        allow: transformations of class *learning* that may be used.

    Raises:
        PlanError: when something is allowed that is no transformation, or the graph is staler than allowed.
    """
    allowed = frozenset(allow)
    faults = [
        Fault(name, "is no transformation that changes learning", f"there is {', '.join(LEARNING)}")
        for name in sorted(allowed - set(LEARNING))
    ]
    own = age(graph)
    if max_staleness < own:
        text = f"is {max_staleness}, and samples of {graph.name} are {own} steps old already"
        faults.append(Fault("staleness-max", text, f"at least {own}"))
    if faults:
        raise PlanError("structures", faults)
    relaxes = {"relax"} if max_staleness > own else set[str]()
    bound = max(max_staleness, graph.contract.max_staleness)
    contract = replace(graph.contract, max_staleness=bound, allowed=graph.contract.allowed | allowed | relaxes)
    names = (*_ALWAYS, *sorted(allowed - {"relax"}), *relaxes)
    found = closure(replace(graph, contract=contract), [TRANSFORMS[name] for name in names])
    kept = (Structure(each, age(each), _firings(each)) for each in map(_queued, found.graphs.values()))
    return tuple(each for each in kept if each.staleness <= max_staleness)


def _queued(graph: Graph) -> Graph:
    """Return a graph whose stale generators have the newest weights, and whose samples wait for their turn instead.

    It does the same, and one version of the weights is kept where there were as many as steps in between.
    """
    for stage in generators(graph):
        if (steps := lead(graph, stage.name)) > 0:
            moved = Retime(stage.name, -steps)
            graph = graph if moved.check(graph) else moved.apply(graph)
    return graph


def _firings(graph: Graph) -> int:
    """Return in how many parts the first generator's samples come."""
    generator = next(stage.name for stage in graph.stages if stage.kind is StageKind.GENERATE)
    return max(1, int(graph.firings(generator)))
