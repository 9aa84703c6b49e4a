"""Who depends on whom across steps: staleness along a sample's lineage, and reachability.

Staleness is computed, never stored: follow STREAM data from the generator to the update of the same model, then STATE
data of that model back to the generator, add the delays, subtract one. Other cycles (through the state of a KL
controller, say) delay something too, but they do not make a sample older.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rpeg.graph.access import Edge, Refresh
from rpeg.graph.data import Data, DataKind
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Stage, StageKind

__all__ = [
    "Path",
    "age",
    "generators",
    "is_refreshed",
    "lead",
    "oldest_lineage",
    "reachable_backwards",
    "staleness",
    "waited",
    "zero_delay_cycle",
]

Path = tuple[Edge, ...]
"""Dependences one after the other."""


def generators(graph: Graph) -> list[Stage]:
    """Return the stages that sample from a model."""
    return [stage for stage in graph.stages if stage.kind is StageKind.GENERATE]


def is_refreshed(graph: Graph, generator: str) -> bool:
    """Return whether a generator takes newer weights between two tokens."""
    return any(read.refresh is Refresh.TOKEN for read in graph.reads(generator))


def staleness(graph: Graph, generator: str) -> int:
    """Return how many versions behind the newest weights a sample of ``generator`` can be when it is trained on.

    -1 when the samples never reach an update of the generator's model.
    """
    total = _ages(graph, generator)(oldest_lineage(graph, generator)) - 1
    return total + _carry(graph, generator) if total >= 0 else -1


def age(graph: Graph) -> int:
    """Return how many versions behind the newest weights any sample of a graph can be when it is trained on."""
    return max((staleness(graph, stage.name) for stage in generators(graph)), default=0)


def oldest_lineage(graph: Graph, generator: str) -> Path:
    """Return the way of a sample to the update and of the weights back to ``generator`` that makes a sample oldest.

    Empty when the samples never reach an update of the generator's model.
    """
    age_of = _ages(graph, generator)
    forth: dict[str, list[Path]] = {update: [] for update in _updates(graph, generator)}
    for stage, path in _paths(graph, generator, _is_stream):
        if stage in forth:
            forth[stage].append(path)
    ways: list[Path] = []
    for update, there in forth.items():  # ages add up, so the oldest way there and the oldest way back belong together
        back = list(_ways_back(graph, update, generator)) if there else []
        if back:
            ways.append((*max(there, key=age_of), *max(back, key=age_of)))
    return max(ways, key=age_of, default=())


def _ages(graph: Graph, generator: str) -> Callable[[Path], int]:
    """Return what says how many versions are published while a sample and the weights made with it go along a path.

    One per delay, if a step makes one version. Where n updates follow one another, each making its weights from those
    of the one before (n steps drawn as one), a delay is n versions, less one for every update that the way leads on to.
    """
    updates = _updates(graph, generator)
    if len(updates) < 2 or not any(edge.writer in updates and edge.reader in updates for edge in graph.edges()):
        return _delays

    def age_of(path: Path) -> int:
        hops = sum(edge.writer in updates and edge.reader in updates for edge in path)
        return _delays(path) * len(updates) - hops

    return age_of


def lead(graph: Graph, generator: str) -> int:
    """Return how many steps ``generator`` can run ahead of the updates that make its weights, 0 when none does.

    This is the part of the staleness that sits on the way of the weights. The rest sits on the way of the samples: they
    wait for their turn, but the generator starts no earlier.
    """
    ways = (back for stage in _updates(graph, generator) for back in _ways_back(graph, stage, generator))
    return max(0, min(map(_delays, ways), default=1) - 1)


def _updates(graph: Graph, generator: str) -> list[str]:
    model = graph.stage_of[generator].model
    return [stage.name for stage in graph.stages if stage.kind is StageKind.UPDATE and stage.model == model]


def _is_stream(data: Data) -> bool:
    return data.kind is DataKind.STREAM


def _ways_back(graph: Graph, update: str, generator: str) -> Iterator[Path]:
    """Yield every way of the weights from ``update`` to ``generator``."""
    model = graph.stage_of[generator].model
    paths = _paths(graph, update, lambda data: data.kind is DataKind.STATE and data.model == model)
    yield from (path for stage, path in paths if stage == generator)


def _paths(graph: Graph, start: str, is_followed: Callable[[Data], bool]) -> Iterator[tuple[str, Path]]:
    """Yield (end, dependences) of every simple path from ``start`` along the data followed, the empty one included."""
    edges: dict[str, list[Edge]] = {}
    for edge in graph.edges():
        if is_followed(graph.data_of[edge.data]):
            edges.setdefault(edge.writer, []).append(edge)
    stack: list[tuple[str, Path]] = [(start, ())]
    while stack:
        stage, path = stack.pop()
        yield stage, path
        seen = {start, *(edge.reader for edge in path)}
        stack += [(edge.reader, (*path, edge)) for edge in edges.get(stage, ()) if edge.reader not in seen]


def _delays(path: Path) -> int:
    return sum(edge.delay for edge in path)


def _carry(graph: Graph, generator: str) -> int:
    states = (graph.data_of[a.data] for a in graph.writes(generator))
    return sum(data.max_carry for data in states if data.kind is DataKind.STATE)


def waited(graph: Graph, stage: str) -> int:
    """Return how many steps the rows that come to a stage have waited on their way from the generator."""
    ways = (edge for edge in graph.edges() if edge.reader == stage and _is_stream(graph.data_of[edge.data]))
    return max((waited(graph, edge.writer) + edge.delay for edge in ways), default=0)


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
