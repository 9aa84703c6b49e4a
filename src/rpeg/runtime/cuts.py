"""What lies on the arcs at a cut: which rows wait there, and how many of their readers have read them.

At the cut n every event has fired n times plus its shift, so both follow from the graph and the shifts. A checkpoint
holds the rows alone, and a run can go on from it under every plan that lets the same rows wait: on other meshes, in
another order, with other micro-batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from rpeg.graph.access import Access
from rpeg.graph.data import Data, DataKind, Per
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import generators
from rpeg.plan.events import Event, EventGraph
from rpeg.runtime.carry import carry_of
from rpeg.runtime.flow import flows

__all__ = ["PLACES", "Cuts", "placing", "read_row_name", "readers", "row_name"]

PLACES = "places"
"""Kept like the rows of a step: which of its groups each firing of the generator made."""


def placing(graph: Graph) -> set[str]:
    """Return the generators whose groups come in the order of their ends."""
    return {
        each.name for each in generators(graph) if flows(graph, each.name) or carry_of(graph, each.name) is not None
    }


def readers(graph: Graph, given: Collection[str]) -> dict[str, list[Access]]:
    """Return who reads each data of a graph; places are read by those who read data that is ``given`` from outside."""
    found = {data.name: list(graph.readers(data.name)) for data in graph.data}
    others = [access for name in given if name in found for access in found[name]]
    found[PLACES] = [access for access in others if access.stage not in placing(graph)]
    return found


def row_name(data: str, step: int, stage: str, firing: int) -> str:
    """Return the name in a checkpoint of the rows that a firing has made."""
    return f"{data}/{step}/{stage}/{firing}"


def read_row_name(name: str) -> tuple[str, int, str, int]:
    """Return data, step, stage and firing, of which `row_name` made a name."""
    data, step, stage, firing = name.rsplit("/", 3)
    return data, int(step), stage, int(firing)


class Cuts:
    """The cuts of an event graph."""

    def __init__(self, graph: Graph, events: EventGraph, given: Collection[str]) -> None:
        """Look at the events of ``graph``; data that is ``given`` comes from outside in every step."""
        self._graph, self._given = graph, given
        self._events: dict[str, list[Event]] = defaultdict(list)
        for event in events.events:
            self._events[event.stage].append(event)
        self._readers = readers(graph, given)

    def waiting(self, cut: int) -> set[str]:
        """Return the names of the rows that wait at a cut; before the first step nothing does."""
        return set(self._waiting(cut)) if cut else set()

    def _waiting(self, cut: int) -> Iterator[str]:
        for data, writers in self._kept():
            reads = list(self._reads(data))
            if not reads:
                continue
            unread = cut + min(event.shift - delay for event, delay in reads)
            for stage in writers:
                first = max(unread, self._first(stage))
                for event in self._events[stage]:
                    yield from (row_name(data, t, stage, event.firing) for t in range(first, cut + event.shift))

    def _first(self, stage: str) -> int:
        """Return the first step in which a stage has something to work on: what it reads may be of steps before."""
        given = (read.delay for read in self._graph.reads(stage) if read.data in self._given)
        edges = (edge for edge in self._graph.edges() if edge.reader == stage)
        made = (self._first(e.writer) + e.delay for e in edges if not self._graph.is_state(e.data))
        return max([*given, *made], default=0)

    def _kept(self) -> Iterator[tuple[str, list[str]]]:
        """Yield data that is kept as rows, with the stages that make it."""
        for data in self._graph.data:
            if _is_rows(data):
                yield data.name, list(dict.fromkeys(write.stage for write in self._graph.writers(data.name)))
        yield PLACES, sorted(placing(self._graph))

    def _reads(self, data: str) -> Iterator[tuple[Event, int]]:
        """Yield the events that read some data, each with how many steps back."""
        for access in self._readers[data]:
            yield from ((event, access.delay) for event in self._events[access.stage])

    def num_read(self, data: str, step: int, cut: int) -> int:
        """Return how many firings have read the rows of a step before a cut."""
        return sum(step + delay < cut + event.shift for event, delay in self._reads(data))


def _is_rows(data: Data) -> bool:
    """Whether data is rows that come to the controller: gradients stay where they are made."""
    return data.max_carry > 0 or (data.kind is DataKind.STREAM and data.per is not Per.STEP)
