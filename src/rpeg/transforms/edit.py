"""Small edits of a graph that the transformations are made of; each returns a new graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from rpeg.graph.access import Access, Bound, Mode
from rpeg.graph.data import Data, DataKind, Lifetime
from rpeg.graph.graph import Graph
from rpeg.graph.rules.versions import v14_saved
from rpeg.graph.stage import Stage

__all__ = [
    "between",
    "columns_of",
    "downstream",
    "keep_versions",
    "map_accesses",
    "settle_lifetimes",
    "unite",
    "united_name",
    "with_data",
    "with_stage",
    "without",
    "without_record",
]


def with_stage(graph: Graph, stage: Stage, old: str | None = None) -> Graph:
    """Return ``graph`` with ``stage`` in the place of the one named ``old`` (its own name if not given)."""
    name = old or stage.name
    return replace(graph, stages=tuple(stage if each.name == name else each for each in graph.stages))


def with_data(graph: Graph, data: Data, old: str | None = None) -> Graph:
    """Return ``graph`` with ``data`` in the place of the one named ``old`` (its own name if not given)."""
    name = old or data.name
    return replace(graph, data=tuple(data if each.name == name else each for each in graph.data))


def map_accesses(graph: Graph, change: Callable[[Access], Access]) -> Graph:
    """Return ``graph`` with every access replaced by what ``change`` makes of it."""
    return replace(graph, accesses=tuple(map(change, graph.accesses)))


def without(graph: Graph, stages: Collection[str] = (), data: Collection[str] = ()) -> Graph:
    """Return ``graph`` without these stages and data, their accesses, and the inputs and models that only they used."""
    accesses = tuple(a for a in graph.accesses if a.stage not in stages and a.data not in data)
    lost = {access.data for access in graph.accesses} - {access.data for access in accesses}
    gone = {name for name in lost if graph.data_of[name].kind is DataKind.EXTERNAL} | set(data)
    kept_stages = tuple(stage for stage in graph.stages if stage.name not in stages)
    kept_data = tuple(each for each in graph.data if each.name not in gone)
    unused = {part.model for part in (*graph.stages, *graph.data)} - {part.model for part in (*kept_stages, *kept_data)}
    models = tuple(model for model in graph.models if model.name not in unused)
    return replace(graph, models=models, stages=kept_stages, data=kept_data, accesses=accesses)


def without_record(graph: Graph, stage: str) -> Graph:
    """Return ``graph`` without the record of ``stage``; its accesses stay, to be given to another one."""
    return replace(graph, stages=tuple(each for each in graph.stages if each.name != stage))


def columns_of(data: Data, names: Iterable[str]) -> tuple[str, ...]:
    """Return ``names`` as an access spells them: in the order of ``data``, and empty for all of them."""
    wanted = set(names)
    ordered = tuple(column.name for column in data.columns if column.name in wanted)
    return () if len(ordered) == len(data.columns) else ordered


def unite(graph: Graph, stages: Collection[str]) -> Graph:
    """Return ``graph`` with accesses of ``stages`` that differ in nothing but their columns joined into one."""
    found: dict[Access, list[Access]] = {}
    for access in graph.accesses:
        found.setdefault(replace(access, columns=()) if access.stage in stages else access, []).append(access)
    accesses = (_united(graph, bare, each) for bare, each in found.items())
    return replace(graph, accesses=tuple(accesses))


def _united(graph: Graph, bare: Access, accesses: list[Access]) -> Access:
    if len(accesses) == 1 or not all(access.columns for access in accesses):
        return accesses[0] if len(accesses) == 1 else bare
    names = {name for access in accesses for name in access.columns}
    return replace(bare, columns=columns_of(graph.data_of[bare.data], names))


def united_name(*names: str) -> str:
    """Return the name of what is made of several parts: the same whatever the order in which they came together."""
    return "+".join(sorted({part for name in names for part in name.split("+")}))


def downstream(graph: Graph, start: str, is_followed: Callable[[Data], bool] = lambda data: True) -> set[str]:
    """Return the stages that depend on ``start`` within a step, through data that is followed, ``start`` excluded."""
    found, stack = set[str](), [start]
    while stack:
        stage = stack.pop()
        edges = (edge for edge in graph.edges() if edge.writer == stage and edge.delay == 0)
        new = {edge.reader for edge in edges if is_followed(graph.data_of[edge.data])} - found
        found |= new
        stack += new
    return found


def between(graph: Graph, first: str, last: str) -> list[str]:
    """Return the stages on the ways within a step from ``first`` to ``last``, in the order of the graph."""
    after = downstream(graph, first)
    return [stage.name for stage in graph.stages if stage.name in after and last in downstream(graph, stage.name)]


def keep_versions(graph: Graph, name: str, *, shrink: bool = False) -> Graph:
    """Return ``graph`` with enough versions of the STATE ``name`` for its EXACT readers.

    Weights that a PULL installs are staged before: one version fewer of these lets the trainer run on without waiting.
    More versions than needed stay, unless they shall ``shrink``.
    """
    needed = max([1, *(a.delay for a in graph.readers(name) if a.bound is Bound.EXACT)])
    wanted = [(graph.data_of[name], needed), *((staged, max(1, needed - 1)) for staged in _staged_for(graph, name))]
    for data, versions in wanted:
        graph = with_data(graph, replace(data, versions=versions if shrink else max(versions, data.versions)))
    return graph


def _staged_for(graph: Graph, name: str) -> list[Data]:
    """Return the STATE data that the one stage that installs ``name`` takes it from, unless that is trained itself."""
    sources = [graph.data_of[read.data] for write in graph.writers(name) for read in graph.reads(write.stage)]
    written = {d.name: [a.mode for a in graph.writers(d.name)] for d in sources}
    return [d for d in sources if d.kind is DataKind.STATE and written[d.name] == [Mode.WRITE]]


def settle_lifetimes(graph: Graph) -> Graph:
    """Return ``graph`` with exactly that data SAVED which a checkpoint needs (V14)."""
    for problem in v14_saved(graph):
        data = graph.data_of[problem.subjects[0]]
        idle = Lifetime.RUN if data.kind is DataKind.STATE else Lifetime.STEP
        graph = with_data(graph, replace(data, lifetime=idle if data.lifetime is Lifetime.SAVED else Lifetime.SAVED))
    return graph
