"""What the graph page says about a stage, about data and about a line when the pointer or the focus is on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rpeg.graph.access import Access, Bound, Mode, Refresh
from rpeg.graph.data import Column, Data, DataKind
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Grain, Stage
from rpeg.units import bytes_text
from rpeg.view.graph_svg import access_key

__all__ = ["Tip", "access_text", "tips"]

Tip = tuple[str, list[tuple[str, str]]]
"""A heading, and names with their values."""


def tips(graph: Graph, bytes_of: Mapping[str, int], prefix: str = "") -> dict[str, Tip]:
    """Return the tips of everything in the picture, by its key; ``bytes_of`` has what is known of one version."""
    found: dict[str, Tip] = {}
    for stage in graph.stages:
        found[prefix + stage.name] = (stage.name, list(_stage(graph, stage)))
    for data in graph.data:
        found[prefix + data.name] = (data.name, list(_data(graph, data, bytes_of)))
    for key in dict.fromkeys(access_key(access) for access in graph.accesses):
        accesses = [access for access in graph.accesses if access_key(access) == key]
        found[prefix + key] = _line(graph, accesses, bytes_of)
    return found


def access_text(access: Access) -> str:
    """Return one access in words: ``actor.rollout, 2 steps back``."""
    columns = f" [{' '.join(access.columns)}]" if access.columns else ""
    return ", ".join([f"{access.data}{columns}", *(text for _, text in _special(access))])


def _special(access: Access) -> Iterator[tuple[str, str]]:
    """Yield what an access has beyond its columns."""
    if access.delay:
        yield "delay", f"{access.delay} step{'s' if access.delay > 1 else ''} back"
    if access.bound is Bound.AT_LEAST:
        yield "version", "that or a newer one"
    if access.refresh is not Refresh.STEP:
        yield "refresh", f"with every {access.refresh}"
    if access.merge is not None:
        yield "merge", access.merge


def _stage(graph: Graph, stage: Stage) -> Iterator[tuple[str, str]]:
    yield "kind", str(stage.kind)
    if stage.model is not None:
        yield "model", stage.model
    if stage.heads:
        yield "returns", ", ".join(stage.heads)
    firings = graph.firings(stage.name)
    yield "firings", f"{firings} per step" if firings >= 1 else f"in every {1 / firings}th step"
    if stage.passes > 1:
        yield "sweeps", str(stage.passes)
    if stage.grain is not Grain.SAMPLE:
        yield "works on", f"whole {'groups' if stage.grain is Grain.GROUP else 'batches'}"
    if stage.body is not None:
        yield "inside", f"{stage.body.index}, {stage.body.trips} times at most"
    if stage.effects:
        yield "effects", ", ".join(sorted(stage.effects))
    yield from (("reads", access_text(access)) for access in graph.reads(stage.name))
    for access in graph.writes(stage.name):
        yield ("updates" if access.mode is Mode.UPDATE else "writes"), access_text(access)
    if stage.source is not None:
        parents = f" of {', '.join(stage.source.parents)}" if stage.source.parents else ""
        yield "from", f"{stage.source.origin}{parents}"


def _data(graph: Graph, data: Data, bytes_of: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    yield "kind", str(data.kind)
    yield "columns", ", ".join(_column(column) for column in data.columns)
    yield "a row per", str(data.per)
    if data.model is not None:
        yield "model", data.model
    if data.kind is DataKind.STATE:
        yield "versions kept", str(data.versions)
    if data.kind is DataKind.STREAM:
        yield "batches in flight", str(data.versions) if data.versions else "any number"
    if data.max_carry:
        yield "carried over", f"at most {data.max_carry} steps"
    yield "kept for", str(data.lifetime)
    if data.name in bytes_of:
        yield "one version", bytes_text(bytes_of[data.name])
    yield from (("written by", access.stage) for access in graph.writers(data.name))
    yield from (("read by", access.stage) for access in graph.readers(data.name))


def _column(column: Column) -> str:
    shape = ", ".join(map(str, column.shape))
    return f"{column.name} {column.dtype}" + (f" [{shape}]" if shape else "")


def _line(graph: Graph, accesses: list[Access], bytes_of: Mapping[str, int]) -> Tip:
    first = accesses[0]
    data = graph.data_of[first.data]
    names = list(dict.fromkeys(name for access in accesses for name in access.columns))
    if not all(access.columns for access in accesses):
        names = [column.name for column in data.columns]
    title = f"{first.data} → {first.stage}" if first.mode is Mode.READ else f"{first.stage} → {first.data}"
    rows = [("columns", ", ".join(names)), *_special(first)]
    if first.mode is Mode.READ and not first.delay:
        rows.insert(1, ("delay", "none: of the same step"))
    if first.data in bytes_of:
        rows.append(("one version", bytes_text(bytes_of[first.data])))
    return title, rows
