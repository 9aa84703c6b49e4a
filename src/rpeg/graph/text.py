"""The printed form of a graph: one line per stage, diffable; used in errors, docs and golden tests."""

from __future__ import annotations

from collections.abc import Mapping

from rpeg.graph.access import Access, Mode
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import generators, staleness
from rpeg.graph.stage import Grain, Stage

__all__ = ["headline", "to_text"]


def to_text(graph: Graph, marks: Mapping[str, str] | None = None) -> str:
    """Return the graph as text; names in ``marks`` get their mark at the end of their line."""
    marks = marks or {}
    rows = [_row(graph, stage) for stage in graph.stages]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(5)]
    lines = [headline(graph)]
    for stage, row in zip(graph.stages, rows, strict=True):
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        lines.append(_marked(f"  {cells}  -> {row[5]}".rstrip(), stage, graph, marks))
    return "\n".join(lines)


def headline(graph: Graph) -> str:
    """Return name, batch, staleness and digest on one line."""
    found = max((staleness(graph, stage.name) for stage in generators(graph)), default=0)
    group = graph.group_size
    batch = f"batch {graph.batch_rows} = {graph.batch_rows // group} x {group}"
    return f"{graph.name}  {batch}  staleness {found} (<= {graph.contract.max_staleness})  digest {graph.digest()[:8]}"


def _row(graph: Graph, stage: Stage) -> tuple[str, ...]:
    reads = ", ".join(_access(a) for a in graph.reads(stage.name))
    writes = ", ".join(_access(a) for a in graph.writes(stage.name))
    grain = f" (by {stage.grain})" if stage.grain is not Grain.SAMPLE else ""
    return stage.name, str(stage.kind), stage.model or "-", f"x{stage.firings}", reads + grain, writes


def _access(access: Access) -> str:
    columns = f"[{' '.join(access.columns)}]" if access.columns else ""
    delay = f"@-{access.delay}" if access.delay else ""
    return f"{access.data}{columns}{delay}{'!' if access.mode is Mode.UPDATE else ''}"


def _marked(line: str, stage: Stage, graph: Graph, marks: Mapping[str, str]) -> str:
    touched = [stage.name, *(a.data for a in graph.writes(stage.name))]
    found = dict.fromkeys(marks[name] for name in touched if name in marks)
    return f"{line}   <-- {', '.join(found)}" if found else line
