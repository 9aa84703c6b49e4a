"""Who depends on whom across steps: staleness along a sample's lineage, and reachability.

Staleness is computed, never stored: follow STREAM data from the generator to the update of the same model, then STATE
data of that model back to the generator, add the delays, subtract one. Other cycles (through the state of a KL
controller, say) delay something too, but they do not make a sample older.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rpeg.graph.data import Data, DataKind
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Stage, StageKind

__all__ = ["generators", "lead", "reachable_backwards", "staleness", "zero_delay_cycle"]


def generators(graph: Graph) -> list[Stage]:
    """Return the stages that sample from a model."""
    return [stage for stage in graph.stages if stage.kind is StageKind.GENERATE]


def staleness(graph: Graph, generator: str) -> int:
    """Return how many versions behind the newest weights a sample of ``generator`` can be when it is trained on.

    -1 when the samples never reach an update of the generator's model.
    """
    updates = _updates(graph, generator)
    there = [(stage, delay) for stage, delay in _paths(graph, generator, _is_stream) if stage in updates]
    sums = (forth + back for stage, forth in there for back in _ways_back(graph, stage, generator))
    total = max(sums, default=0) - 1
    return total + _carry(graph, generator) if total >= 0 else -1


def lead(graph: Graph, generator: str) -> int:
    """Return how many steps ``generator`` can run ahead of the updates that make its weights, 0 when none does.

    This is the part of the staleness that sits on the way of the weights. The rest sits on the way of the samples: they
    wait for their turn, but the generator starts no earlier.
    """
    ways = (back for stage in _updates(graph, generator) for back in _ways_back(graph, stage, generator))
    return max(0, min(ways, default=1) - 1)


def _updates(graph: Graph, generator: str) -> list[str]:
    model = graph.stage_of[generator].model
    return [stage.name for stage in graph.stages if stage.kind is StageKind.UPDATE and stage.model == model]


def _is_stream(data: Data) -> bool:
    return data.kind is DataKind.STREAM


def _ways_back(graph: Graph, update: str, generator: str) -> Iterator[int]:
    """Yield the sum of delays of every way of the weights from ``update`` to ``generator``."""
    model = graph.stage_of[generator].model
    paths = _paths(graph, update, lambda data: data.kind is DataKind.STATE and data.model == model)
    yield from (delay for stage, delay in paths if stage == generator)


def _paths(graph: Graph, start: str, is_followed: Callable[[Data], bool]) -> Iterator[tuple[str, int]]:
    """Yield (end, sum of delays) of every simple path from ``start`` along the data followed, itself included."""
    edges = [edge for edge in graph.edges() if is_followed(graph.data_of[edge.data])]
    stack = [(start, 0, frozenset({start}))]
    while stack:
        stage, total, seen = stack.pop()
        yield stage, total
        for edge in edges:
            if edge.writer == stage and edge.reader not in seen:
                stack.append((edge.reader, total + edge.delay, seen | {edge.reader}))


def _carry(graph: Graph, generator: str) -> int:
    states = (graph.data_of[a.data] for a in graph.writes(generator))
    return sum(data.max_carry for data in states if data.kind is DataKind.STATE)


def reachable_backwards(graph: Graph, ends: Iterable[str]) -> set[str]:
    """Return the stages whose results reach one of ``ends``, these included."""
    found, stack = set(ends), list(ends)
    while stack:
        reader = stack.pop()
        new = {edge.writer for edge in graph.edges() if edge.reader == reader} - found
        found |= new
        stack += new
    return found


def zero_delay_cycle(graph: Graph) -> list[str] | None:
    """Return the stages of one cycle of dependences without delay, or None."""
    after: dict[str, list[str]] = {stage.name: [] for stage in graph.stages}
    for edge in graph.edges():
        if edge.delay == 0:
            after[edge.writer].append(edge.reader)
    done: set[str] = set()
    for start in after:
        if (cycle := _cycle_from(start, after, done)) is not None:
            return cycle
    return None


def _cycle_from(start: str, after: dict[str, list[str]], done: set[str]) -> list[str] | None:
    path, iterators = [start], [iter(after[start])]
    while path:
        successor = next(iterators[-1], None)
        if successor is None:
            done.add(path.pop())
            iterators.pop()
        elif successor in path:
            return path[path.index(successor) :]
        elif successor not in done:
            path.append(successor)
            iterators.append(iter(after[successor]))
    return None
