"""V15: a loop inside a stage is bounded, takes what its stage accesses, and its body keeps the rules itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rpeg.graph.data import DataKind, SymbolKind
from rpeg.graph.graph import Graph
from rpeg.graph.region import Region
from rpeg.graph.rules import learning, names, order, rates, versions
from rpeg.graph.rules.problem import Problem

__all__ = ["v15_regions"]

_BASE = (names.v1_names, rates.v3_sizes)
_INSIDE = (
    names.v2_accesses,
    rates.v3_rates,
    order.v4_cycles,
    names.v5_writers,
    versions.v6_versions,
    rates.v8_grain,
    learning.v13_seeds,
)
"""What holds in a body as well. Staleness, checkpoints and dead ends are matters of the whole step."""


def v15_regions(graph: Graph) -> Iterator[Problem]:
    """A region has bounded trips, its body takes what its stage accesses, and the rules hold inside."""
    for stage in graph.stages:
        if stage.body is not None:
            yield from _trips(graph, stage.name, stage.body)
            yield from _ends(graph, stage.name, stage.body.graph)
            yield from _inside(graph, stage.name, stage.body.graph)


def _trips(graph: Graph, stage: str, body: Region) -> Iterator[Problem]:
    kinds = {symbol.name: symbol.kind for symbol in graph.symbols}
    used = body.trips.symbols
    if undeclared := used - set(kinds):
        text = f"its trips {body.trips} use {', '.join(sorted(undeclared))}, which has no bound"
        yield Problem("V15", (stage,), text, "declare the symbol")
        return
    random = {name for name in used if kinds[name] is SymbolKind.RANDOM}
    if not body.trips.is_bounded(random):
        text = f"its trips {body.trips} grow without bound with {', '.join(sorted(random))}"
        yield Problem("V15", (stage,), text, "take the smaller one of them and a number: min(..., 10)")


def _ends(graph: Graph, stage: str, inner: Graph) -> Iterator[Problem]:
    accessed = {access.data for access in graph.accesses if access.stage == stage}
    free = {data.name for data in inner.data if data.kind is DataKind.EXTERNAL}
    if missing := sorted(free - accessed):
        text = f"its body uses {', '.join(missing)}, which it does not access"
        yield Problem("V15", (stage,), text, "add the accesses to the stage")


def _inside(graph: Graph, stage: str, body: Graph) -> Iterator[Problem]:
    """Yield what is wrong in the body, which sees the symbols of the graph around it."""
    declared = {symbol.name for symbol in body.symbols}
    outer = tuple(symbol for symbol in graph.symbols if symbol.name not in declared)
    inner = replace(body, symbols=(*body.symbols, *outer))
    found = next((problems for rule in _BASE if (problems := list(rule(inner)))), None)
    for problem in found or [problem for rule in (*_INSIDE, v15_regions) for problem in rule(inner)]:
        text = f"inside, {problem.rule} {', '.join(problem.subjects)}: {problem.text}"
        yield Problem("V15", (stage,), text, problem.hint)
