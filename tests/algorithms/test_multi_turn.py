"""Conversations: the loop of policy and environment inside the generator."""

from __future__ import annotations

import pytest

from rpeg.algorithms.multi_turn import multi_turn
from rpeg.algorithms.reference import Reference
from rpeg.errors import GraphError
from rpeg.graph.contract import Kl
from rpeg.graph.data import DataKind, SymbolKind
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import staleness
from rpeg.graph.region import Region
from rpeg.graph.stage import Effect, StageKind


def turns(graph: Graph) -> Region:
    body = graph.stage_of["gen"].body
    assert body is not None
    return body


def test_a_turn() -> None:
    graph = multi_turn(64, 8, max_turns=5)
    body = turns(graph)
    assert (body.index, str(body.trips), body.trips.evaluate(graph.env)) == ("turn", "turns", 5)
    assert [(s.name, s.kind) for s in body.graph.stages] == [
        ("gen_turn", StageKind.GENERATE),
        ("environment", StageKind.ENVIRONMENT),
    ]
    assert body.graph.stage_of["environment"].effects == {Effect.NETWORK}
    assert ("turns", SymbolKind.CONST, 5) in [(s.name, s.kind, s.value) for s in graph.symbols]


def test_the_conversation_is_read_one_turn_back() -> None:
    inner = turns(multi_turn(64, 8)).graph
    assert inner.data_of["conversation"].kind is DataKind.STATE
    assert [(e.writer, e.reader, e.delay) for e in inner.edges() if e.data == "conversation"] == [
        ("environment", "gen_turn", 1),
        ("environment", "environment", 1),
    ]
    assert [(e.writer, e.reader, e.delay) for e in inner.edges() if e.data == "said"] == [
        ("gen_turn", "environment", 0)
    ]


def test_what_leaves_the_loop_is_what_the_stage_writes() -> None:
    graph = multi_turn(64, 8)
    inner = turns(graph).graph
    assert [access.stage for access in inner.writers("rollouts")] == ["environment"]
    assert [column.name for column in inner.data_of["rollouts"].columns] == [
        column.name for column in graph.data_of["rollouts"].columns
    ]


@pytest.mark.parametrize("k", range(3))
def test_turns_make_nothing_stale(k: int) -> None:
    assert staleness(multi_turn(64, 8, k), "gen") == k


def test_an_adapter_brings_its_base_into_the_loop() -> None:
    graph = multi_turn(64, 8, kl=Kl.LOSS, reference=Reference.ADAPTER_OFF)
    free = {data.name for data in turns(graph).graph.data if data.kind is DataKind.EXTERNAL}
    assert free == {"prompts", "actor.rollout", "actor.base"}
    assert free <= {access.data for access in graph.reads("gen")}


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(GraphError, match="max_turns: is 0; at least 1"):
        multi_turn(64, 8, max_turns=0)
