"""Small graphs and plans by hand, and random live event graphs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from rpeg.graph.access import Access, Mode
from rpeg.graph.contract import Contract
from rpeg.graph.data import Column, Data, DataKind, Per
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Stage, StageKind
from rpeg.plan.events import Arc, Event, EventGraph
from rpeg.plan.plan import Binding, Layout, Mesh, Plan, Slot


class Make:
    """Builds what the tests need, without asking whether it is a useful pipeline."""

    @staticmethod
    def graph(
        firings: Mapping[str, int], data: Sequence[Data], accesses: Sequence[Access], **kinds: StageKind
    ) -> Graph:
        """Return a graph of 8 samples of stages that fire that often; they verify unless ``kinds`` says."""
        stages = [Stage(n, kinds.get(n, StageKind.VERIFY), firings=Dim(str(q))) for n, q in firings.items()]
        contract = Contract("test", Dim("4"), Dim("2"))
        return Graph("test", contract, (), (), tuple(data), tuple(stages), tuple(accesses))

    @staticmethod
    def stream(name: str, versions: int = 0) -> Data:
        return Data(name, DataKind.STREAM, (Column("a", "int64"), Column("b", "int64")), Per.SAMPLE, versions=versions)

    @staticmethod
    def state(name: str, versions: int = 1) -> Data:
        return Data(name, DataKind.STATE, (Column("a", "int64"),), Per.RUN, versions=versions)

    @staticmethod
    def read(stage: str, data: str, delay: int = 0, *columns: str) -> Access:
        return Access(stage, data, Mode.READ, columns, delay)

    @staticmethod
    def write(stage: str, data: str, *columns: str) -> Access:
        return Access(stage, data, Mode.WRITE, columns)

    @staticmethod
    def plan(graph: Graph, **order: Sequence[Slot]) -> Plan:
        """Return the plan with these orders; a stage is bound to the first resource it stands in."""
        home = {slot.stage: name for name, slots in reversed(order.items()) for slot in slots}
        return Plan(
            graph.digest(),
            tuple(Mesh(name, "local.slot[0:1]") for name in order),
            tuple(Binding(stage.name, home[stage.name], Layout(home[stage.name])) for stage in graph.stages),
            tuple((name, tuple(slots)) for name, slots in order.items()),
        )

    @staticmethod
    def alone(graph: Graph) -> Plan:
        """Return the plan that gives every stage a resource of its own."""
        firings = {stage.name: int(max(1, graph.firings(stage.name))) for stage in graph.stages}
        return Make.plan(graph, **{name: [Slot(name, j) for j in range(q)] for name, q in firings.items()})

    @staticmethod
    def events(seed: int, shifts: Sequence[int] = (0,)) -> EventGraph:
        """Return a random live multigraph with whole seconds.

        Arcs without tokens only go up in a random order of the events, so every cycle has some. Shifting an event then
        adds to the arcs into it what it takes from those out of it: tokens may become negative, cycles keep theirs.
        """
        rng = random.Random(seed)
        names = [f"e{i}" for i in range(rng.randint(1, 6))]
        rank = {name: i for i, name in enumerate(rng.sample(names, len(names)))}
        shift = {name: rng.choice(shifts) for name in names}
        events = tuple(Event(name, name, 0, float(rng.randint(0, 9)), ("r",), shift[name]) for name in names)
        arcs = [Arc(name, name, rng.choice([1, 1, 2]), 0.0, "self") for name in names]
        for number in range(rng.randint(0, 3 * len(names))):
            src, dst = rng.choice(names), rng.choice(names)
            tokens = rng.randint(rank[src] >= rank[dst], 3) + shift[dst] - shift[src]
            arcs.append(Arc(src, dst, tokens, float(rng.choice([0, 0, 0, 4, 7])), f"data:{number}"))
        return EventGraph(events, tuple(arcs))


@pytest.fixture(scope="session")
def make() -> type[Make]:
    return Make
