"""The smallest graph that keeps every rule, and ways to change one thing about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rpeg.graph.access import Access, Mode
from rpeg.graph.contract import Contract
from rpeg.graph.data import Column, Data, DataKind, Lifetime, ModelRef, Per, Symbol, SymbolKind
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Effect, Stage, StageKind
from rpeg.graph.validate import validate


def columns(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "float32") for name in names)


@pytest.fixture(scope="session")
def minimal() -> Graph:
    """Four groups of two samples: generate, train, update, and the next step generates with the new weights."""
    return Graph(
        name="minimal",
        contract=Contract("minimal", Dim("B"), Dim("G")),
        symbols=(Symbol("B", "samples", SymbolKind.CONST, "", 4), Symbol("G", "samples", SymbolKind.CONST, "", 2)),
        models=(ModelRef("actor"),),
        data=(
            Data("prompts", DataKind.EXTERNAL, columns("text", "seed"), Per.GROUP),
            Data("rollouts", DataKind.STREAM, columns("tokens", "logp", "version"), Per.SAMPLE, versions=0),
            Data("grads", DataKind.STREAM, columns("grads"), Per.STEP, "actor", 0),
            Data("weights", DataKind.STATE, columns("weights"), Per.RUN, "actor", lifetime=Lifetime.SAVED),
        ),
        stages=(
            Stage("gen", StageKind.GENERATE, "actor", yields=Dim("G"), effects=frozenset({Effect.RNG})),
            Stage("train", StageKind.TRAIN, "actor"),
            Stage("update", StageKind.UPDATE, "actor"),
        ),
        accesses=(
            Access("gen", "prompts", Mode.READ),
            Access("gen", "weights", Mode.READ, delay=1),
            Access("gen", "rollouts", Mode.WRITE),
            Access("train", "rollouts", Mode.READ),
            Access("train", "weights", Mode.READ, delay=1),
            Access("train", "grads", Mode.WRITE),
            Access("update", "grads", Mode.READ),
            Access("update", "weights", Mode.UPDATE),
        ),
    )


class Edit:
    """Returns graphs that differ in one thing."""

    @staticmethod
    def contract(graph: Graph, **fields: Any) -> Graph:
        return replace(graph, contract=replace(graph.contract, **fields))

    @staticmethod
    def stage(graph: Graph, name: str, **fields: Any) -> Graph:
        return replace(graph, stages=tuple(replace(s, **fields) if s.name == name else s for s in graph.stages))

    @staticmethod
    def data(graph: Graph, name: str, **fields: Any) -> Graph:
        return replace(graph, data=tuple(replace(d, **fields) if d.name == name else d for d in graph.data))

    @staticmethod
    def access(graph: Graph, stage: str, data: str, **fields: Any) -> Graph:
        return replace(
            graph,
            accesses=tuple(replace(a, **fields) if (a.stage, a.data) == (stage, data) else a for a in graph.accesses),
        )

    @staticmethod
    def add(graph: Graph, *records: Symbol | ModelRef | Data | Stage | Access) -> Graph:
        keys = {Symbol: "symbols", ModelRef: "models", Data: "data", Stage: "stages", Access: "accesses"}
        for record in records:
            key = keys[type(record)]
            graph = replace(graph, **{key: (*getattr(graph, key), record)})
        return graph

    @staticmethod
    def drop(graph: Graph, stage: str, data: str) -> Graph:
        return replace(graph, accesses=tuple(a for a in graph.accesses if (a.stage, a.data) != (stage, data)))


@pytest.fixture(scope="session")
def edit() -> type[Edit]:
    return Edit


@pytest.fixture(scope="session")
def broken() -> Callable[[Graph], list[tuple[str, tuple[str, ...], str]]]:
    """Rule, subjects and text of each problem."""
    return lambda graph: [(problem.rule, problem.subjects, problem.text) for problem in validate(graph)]
