"""Everything a set of transformations can make of a graph, breadth first and by digest."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rpeg.graph.graph import Graph
from rpeg.transforms.base import Transform, broken_rules

__all__ = ["Closure", "closure"]


@dataclass(frozen=True, slots=True)
class Closure:
    """What was found."""

    graphs: Mapping[str, Graph]
    """Structures by digest, in the order in which they were found, the first one included; all are valid."""
    attempts: int
    """Rewrites that fitted; all but ``len(graphs) - 1`` of them led to a structure known before."""
    refusals: int
    """Candidates that did not fit, whether by a condition or by a rule of the result."""
    is_complete: bool
    """Whether nothing more can be reached; false when a limit ended the search."""


def closure(
    graph: Graph,
    kinds: Sequence[type[Transform]],
    *,
    depth: int | None = None,
    limit: int = 10_000,
    explore: bool = False,
) -> Closure:
    """Return what the candidates of ``kinds`` lead to.

    Args:
        graph: the valid structure to begin with.
        kinds: the transformations to apply.
        depth: rewrites one after the other at most; None for any number.
        limit: structures at most.
        explore: whether transformations of class *learning* are applied though the contract does not allow them.
    """
    found, broken = {graph.digest(): graph}, set[str]()
    queue = deque([(graph, 0)])
    attempts = refusals = 0
    is_complete = True
    while queue:
        current, level = queue.popleft()
        if depth is not None and level >= depth:
            is_complete = False
            continue
        for candidate in (each for kind in kinds for each in kind.candidates(current)):
            after = None if candidate.refusals(current, explore) else candidate.rewrite(current)
            if after is None or after.digest() in broken:
                refusals += 1
            elif after.digest() in found:
                attempts += 1
            elif broken_rules(current, after):
                broken.add(after.digest())
                refusals += 1
            elif len(found) >= limit:
                return Closure(found, attempts, refusals, False)
            else:
                attempts += 1
                found[after.digest()] = candidate.record(current, after)
                queue.append((found[after.digest()], level + 1))
    return Closure(found, attempts, refusals, is_complete)
