"""From a graph and its history to the frames of its page, priced when seconds are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rpeg.cli.amounts import read_amounts
from rpeg.graph.graph import Graph

if TYPE_CHECKING:
    from rpeg.plan.costs import KnownCosts
    from rpeg.view.graph_page import Frame

__all__ = ["frames", "through_history"]


def through_history(graph: Graph, base: Graph | None) -> list[Graph]:
    """Return the graph at every point of its history, the first one first; only itself when the base is not known.

    Args:
        graph: with a history.
        base: where the history starts; without it the algorithms in their usual sizes are looked through.

    Raises:
        TransformError: when the history does not lead from ``base`` to ``graph``.
    """
    from rpeg.transforms.history import replay

    start = base or _known_base(graph)
    if start is None:
        return [graph]
    digests = [entry.before for entry in graph.history]
    since = digests.index(start.digest()) if start.digest() in digests else 0  # if it is not, replay says what differs
    graphs = [start]
    for entry in graph.history[since:]:
        graphs.append(replay(graphs[-1], [entry]))
    return graphs


def _known_base(graph: Graph) -> Graph | None:
    from rpeg.algorithms.catalog import ALGORITHMS

    if not graph.history:
        return None
    built = (build() for build in ALGORITHMS.values())
    return next((each for each in built if each.digest() == graph.history[0].before), None)


def frames(graphs: Sequence[Graph], step_seconds: Sequence[str], num_bytes: Sequence[str]) -> list[Frame]:
    """Return a frame for every graph; each but the first came from the one before by the last rewrite in its history.

    Args:
        graphs: at least one.
        step_seconds: ``stage=seconds`` in a step, which its firings share. A stage that was fused from several takes as
            long as the slowest of them unless it is named itself.
        num_bytes: ``data=bytes`` of one version, of a stream of one batch.

    Raises:
        RecipeError: when an amount cannot be read or belongs to nothing in any of the graphs.
    """
    stages = {stage.name for graph in graphs for stage in graph.stages}
    known_s = read_amounts("--step-seconds", step_seconds, stages, "stage", "seconds")
    data = {data.name for graph in graphs for data in graph.data}
    sizes = read_amounts("--bytes", num_bytes, data, "data", "bytes")
    return [
        _frame(graph, place > 0, known_s, {name: int(size) for name, size in sizes.items()})
        for place, graph in enumerate(graphs)
    ]


def _frame(graph: Graph, is_rewritten: bool, known_s: Mapping[str, float], sizes: Mapping[str, int]) -> Frame:
    from rpeg.plan.bind import bind_local
    from rpeg.plan.costs import KnownSizes
    from rpeg.plan.memory import residents
    from rpeg.plan.timeline import peak, schedule
    from rpeg.transforms.registry import parse
    from rpeg.view.graph_page import Frame

    title, effect = "as given", ""
    if is_rewritten:
        title = graph.history[-1].transform
        effect = parse(title).effect
    if not known_s:
        return Frame(graph, title, effect, bytes_of=sizes)
    plan = bind_local(graph)
    played = schedule(graph, plan, _costs(graph, known_s))
    held = residents(graph, plan, KnownSizes(sizes), played) if sizes else {}
    return Frame(graph, title, effect, played.events, sizes, {name: peak(found) for name, found in held.items()})


def _costs(graph: Graph, known_s: Mapping[str, float]) -> KnownCosts:
    from rpeg.plan.costs import Duration, KnownCosts
    from rpeg.plan.firings import num_events

    found: dict[str, Duration] = {}
    for stage in graph.stages:
        slowest_s = max(known_s.get(part, 0.0) for part in stage.name.split("+"))
        found[stage.name] = Duration(known_s.get(stage.name, slowest_s) / num_events(graph, stage.name))
    return KnownCosts(found)
