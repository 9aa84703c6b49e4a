"""Replay and undo: a graph is its base and the rewrites in its history, checked by digest before and after each."""

from __future__ import annotations

from collections.abc import Sequence

from rpeg.errors import Fault, TransformError
from rpeg.graph.graph import Applied, Graph
from rpeg.transforms.registry import parse

__all__ = ["replay", "undo"]


def replay(base: Graph, history: Sequence[Applied]) -> Graph:
    """Return ``base`` after the rewrites of ``history``.

    That a rewrite of class *learning* was allowed is not asked again; all other conditions are.

    Raises:
        TransformError: when an entry does not start from the graph at hand, cannot be read or applied any more, or does
            not lead to the digest it recorded.
    """
    graph = base
    for number, entry in enumerate(history, 1):
        _compare(number, entry, "before", entry.before, graph)
        graph = parse(entry.transform).apply(graph, explore=True)
        _compare(number, entry, "after", entry.after, graph)
    return graph


def undo(base: Graph, graph: Graph, num_rewrites: int) -> Graph:
    """Return ``graph``, which came from ``base``, without its last rewrites.

    Raises:
        TransformError: when ``graph`` has another base or fewer rewrites since, and as `replay`.
    """
    known = len(base.history)
    done = graph.history[known:]
    if graph.history[:known] != base.history:
        text = f"does not begin with the {known} rewrites of {base.name}"
        raise TransformError(f"history of {graph.name}", [Fault("history", text, "name the graph it came from")])
    if not 0 <= num_rewrites <= len(done):
        text = f"has {len(done)} rewrites, {num_rewrites} cannot be undone"
        raise TransformError(f"history of {graph.name}", [Fault("history", text, f"choose 0 to {len(done)}")])
    return replay(base, done[: len(done) - num_rewrites])


def _compare(number: int, entry: Applied, when: str, recorded: str, graph: Graph) -> None:
    if recorded != graph.digest():
        text = f"the graph {when} it has digest {graph.digest()[:8]}, recorded was {recorded[:8]}"
        remedy = "the base or the code has changed since: apply the rewrites anew"
        raise TransformError(f"history of {graph.name}", [Fault(f"{number}. {entry.transform}", text, remedy)])
