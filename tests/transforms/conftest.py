"""Graphs to rewrite, and short ways to ask what a rewrite says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rpeg.graph.graph import Graph
from rpeg.transforms.registry import parse

Refusals = Callable[[Graph, str], list[tuple[str, tuple[str, ...], str]]]
Allow = Callable[..., Graph]


@pytest.fixture(scope="session")
def refusals() -> Refusals:
    """Rule, subjects and text of every reason against a rewrite, whether or not the contract allows it."""

    def found(graph: Graph, text: str) -> list[tuple[str, tuple[str, ...], str]]:
        return [(r.rule, r.subjects, r.text) for r in parse(text).check(graph, explore=True)]

    return found


@pytest.fixture(scope="session")
def allow() -> Allow:
    """The graph with a contract that allows more."""

    def allowed(graph: Graph, *names: str, max_staleness: int | None = None) -> Graph:
        stale = graph.contract.max_staleness if max_staleness is None else max_staleness
        return replace(graph, contract=replace(graph.contract, max_staleness=stale, allowed=frozenset(names)))

    return allowed
