"""V1 names, V2 columns and modes, V5 writers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from rpeg.graph.access import Access, Mode
from rpeg.graph.data import DataKind
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.rules.problem import Problem

__all__ = ["v1_names", "v2_accesses", "v5_writers"]

_NAME = re.compile(r"[a-z][a-z0-9_.+]*")


def v1_names(graph: Graph) -> Iterator[Problem]:
    """Names are unique over data and stages, follow the grammar, and every name used is declared."""
    names = [d.name for d in graph.data] + [s.name for s in graph.stages]
    for name, count in Counter(names).items():
        if count > 1:
            yield Problem("V1", (name,), f"the name is used {count} times", "rename all but one")
        if not _NAME.fullmatch(name):
            yield Problem("V1", (name,), "is no identifier", "use small letters, digits, _ . + and begin with a letter")
    for access in graph.accesses:
        if access.stage not in graph.stage_of or access.data not in graph.data_of:
            missing = access.stage if access.stage not in graph.stage_of else access.data
            text = f"{missing} is not declared"
            yield Problem("V1", (access.stage, access.data), text, "declare it or drop the access")
    models = {model.name for model in graph.models}
    for part in (*graph.data, *graph.stages):
        if part.model is not None and part.model not in models:
            yield _undeclared(part.name, "model", part.model, models)
    symbols = {symbol.name for symbol in graph.symbols}
    for subject, size in _sizes(graph):
        for name in sorted(size.symbols - symbols):
            yield _undeclared(subject, "symbol", name, symbols)


def _sizes(graph: Graph) -> Iterator[tuple[str, Dim]]:
    """Yield every size of the graph with the name it belongs to; bodies of stages are V15's."""
    yield from (("contract", size) for size in (graph.contract.prompts, graph.contract.group))
    yield from ((stage.name, size) for stage in graph.stages for size in (stage.firings, stage.yields))
    yield from ((data.name, size) for data in graph.data for column in data.columns for size in column.shape)


def _undeclared(subject: str, kind: str, name: str, declared: set[str]) -> Problem:
    hint = f"declared: {', '.join(sorted(declared)) or 'none'}"
    return Problem("V1", (subject,), f"uses the undeclared {kind} {name}", hint)


def v2_accesses(graph: Graph) -> Iterator[Problem]:
    """Columns exist; UPDATE only on STATE; a delay only on READ; EXTERNAL is never written."""
    for access in graph.accesses:
        data = graph.data_of[access.data]
        if unknown := set(access.columns) - {column.name for column in data.columns}:
            have = " ".join(column.name for column in data.columns)
            yield Problem("V2", (access.stage, data.name), f"no column {', '.join(sorted(unknown))}", f"it has {have}")
        yield from _mode_problems(access, data.kind)


def _mode_problems(access: Access, kind: DataKind) -> Iterator[Problem]:
    subjects = (access.stage, access.data)
    if access.mode is Mode.UPDATE and kind is not DataKind.STATE:
        yield Problem("V2", subjects, f"updates {kind} data", "only a STATE has versions; write it instead")
    if access.writes and kind is DataKind.EXTERNAL:
        yield Problem("V2", subjects, "writes EXTERNAL data", "make it a STATE")
    if access.delay and access.mode is not Mode.READ:
        yield Problem("V2", subjects, f"has delay {access.delay} on a {access.mode}", "delays belong to reads")
    if access.delay < 0:
        yield Problem("V2", subjects, f"has delay {access.delay}", "a delay counts steps back and is at least 0")


def v5_writers(graph: Graph) -> Iterator[Problem]:
    """Each column of a STREAM has one writer; a STATE has one, or every writer names a merge."""
    for data in graph.data:
        writers = graph.writers(data.name)
        if data.kind is DataKind.STATE and len(writers) > 1 and any(w.merge is None for w in writers):
            names = tuple(w.stage for w in writers)
            text = f"has {len(writers)} writers and no merge"
            yield Problem("V5", (data.name, *names), text, "keep one, or name a merge")
        if data.kind is DataKind.STREAM:
            for column in data.columns:
                names = tuple(w.stage for w in writers if not w.columns or column.name in w.columns)
                if len(names) > 1:
                    text = f"column {column.name} has {len(names)} writers"
                    yield Problem("V5", (data.name, *names), text, "keep one writer per column")
