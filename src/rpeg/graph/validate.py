"""Is this graph a pipeline that can run and learn? A list of rules; all problems are reported at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rpeg.errors import GraphError
from rpeg.graph.graph import Graph
from rpeg.graph.rules import learning, names, order, rates, regions, versions
from rpeg.graph.rules.problem import Problem
from rpeg.graph.text import to_text

__all__ = ["RULES", "check", "validate"]

RULES: tuple[Callable[[Graph], Iterator[Problem]], ...] = (
    names.v1_names,
    rates.v3_sizes,
    names.v2_accesses,
    rates.v3_rates,
    order.v4_cycles,
    names.v5_writers,
    versions.v6_versions,
    versions.v7_staleness,
    rates.v8_grain,
    order.v9_dangling,
    learning.v10_gradients,
    versions.v11_recorded,
    versions.v12_refresh,
    learning.v13_seeds,
    versions.v14_saved,
    regions.v15_regions,
)


_BASE = RULES[:2]


def validate(graph: Graph) -> list[Problem]:
    """Return every violation of V1-V15, in the order of the rules.

    Names, then sizes, come first: the other rules rely on them, so while they are wrong nothing else is reported.
    """
    return _broken_base(graph) or [problem for rule in RULES[len(_BASE) :] for problem in rule(graph)]


def check(graph: Graph) -> Graph:
    """Return ``graph`` when it is valid.

    Raises:
        GraphError: with all problems, and the graph printed with marks at the subjects.
    """
    problems = validate(graph)
    if problems:
        raise GraphError(_drawn(graph, problems), [problem.fault() for problem in problems])
    return graph


def _broken_base(graph: Graph) -> list[Problem]:
    found: list[Problem] = []
    for rule in _BASE:
        found = found or list(rule(graph))
    return found


def _drawn(graph: Graph, problems: list[Problem]) -> str:
    if _broken_base(graph):
        return f"graph {graph.name}"  # without names and sizes it cannot be drawn
    subjects = {subject for problem in problems for subject in problem.subjects}
    marks = {s: ", ".join(dict.fromkeys(p.rule for p in problems if s in p.subjects)) for s in subjects}
    return f"{to_text(graph, marks)}\n\ngraph {graph.name}"
