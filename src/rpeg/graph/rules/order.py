"""V4 liveness of the logical graph, V9 nothing dangling or dead."""

from __future__ import annotations

from collections.abc import Iterator

from rpeg.graph.data import Data, DataKind
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import reachable_backwards, zero_delay_cycle
from rpeg.graph.rules.problem import Problem
from rpeg.graph.stage import Effect, StageKind

__all__ = ["v4_cycles", "v9_dangling"]

_ENDS = (StageKind.UPDATE, StageKind.SAVE, StageKind.EVALUATE)


def v4_cycles(graph: Graph) -> Iterator[Problem]:
    """Every cycle of dependences has at least one delay."""
    if (cycle := zero_delay_cycle(graph)) is not None:
        text = f"{' -> '.join([*cycle, cycle[0]])} can never start: no delay on the cycle"
        yield Problem("V4", tuple(cycle), text, "read one of the states one step back (delay 1)")


def v9_dangling(graph: Graph) -> Iterator[Problem]:
    """What is read is written or EXTERNAL; a stage without effects leads to an update, a save or an evaluation."""
    for data in graph.data:
        if data.kind is not DataKind.EXTERNAL:
            yield from _unwritten(graph, data)
    alive = reachable_backwards(graph, [stage.name for stage in graph.stages if stage.kind in _ENDS])
    for stage in graph.stages:
        if stage.name not in alive and not stage.effects & {Effect.HOST_IO, Effect.NETWORK}:
            yield Problem("V9", (stage.name,), "leads to no update, save or evaluation", "drop it or use its result")


def _unwritten(graph: Graph, data: Data) -> Iterator[Problem]:
    names = [column.name for column in data.columns]
    written = {name for access in graph.writers(data.name) for name in access.columns or names}
    for name in names:
        readers = [access.stage for access in graph.readers(data.name) if name in (access.columns or names)]
        if readers and name not in written:
            text = f"column {name} is read by {', '.join(readers)} but nothing writes it"
            yield Problem("V9", (data.name,), text, "add its writer or make it EXTERNAL")
