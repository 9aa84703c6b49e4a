"""The printed form of a graph: one line per stage, diffable; used in errors, docs and golden tests.

The first line has the staleness that the graph comes to and, in parentheses, what the contract promises: the bound, of
every sample or of their mean, and where samples are carried over how it is kept and how many are carried at most.

``rollouts[tokens mask]`` names columns, ``@-2`` how many steps back is read, ``+`` that a newer version will do and
``/token`` how often it is looked for; ``!`` is an update, with its merge if it has one. How a stage works on its reads
stands in parentheses, and the stages inside a loop stand below it, with the trips.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rpeg.graph.access import Access, Bound, Mode, Refresh
from rpeg.graph.contract import Enforce
from rpeg.graph.dim import ONE
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import age
from rpeg.graph.stage import Grain, Stage, StageKind

__all__ = ["headline", "to_text"]


def to_text(graph: Graph, marks: Mapping[str, str] | None = None) -> str:
    """Return the graph as text; names in ``marks`` get their mark at the end of their line."""
    return "\n".join([headline(graph), *_lines(graph, marks or {}, "  ")])


def headline(graph: Graph) -> str:
    """Return name, batch, staleness and digest on one line."""
    group = graph.group_size
    batch = f"batch {graph.batch_rows} = {graph.batch_rows // group} x {group}"
    return f"{graph.name}  {batch}  staleness {age(graph)} ({_promise(graph)})  digest {graph.digest()[:8]}"


def _promise(graph: Graph) -> str:
    """Return what the contract says of staleness, and how it is kept where delays alone do not."""
    contract, symbols = graph.contract, {symbol.name: symbol.value for symbol in graph.symbols}
    of_mean = " on average" if contract.enforce is Enforce.COUNT else ""
    parts = [f"<= {contract.max_staleness}{of_mean}"]
    if contract.enforce is not Enforce.ADMIT:
        parts.append(str(contract.enforce))
    if "carried" in symbols:
        parts.append(f"{symbols['carried']} carried")
    return ", ".join(parts)


def _lines(graph: Graph, marks: Mapping[str, str], indent: str) -> Iterator[str]:
    """Yield one line per stage, followed by the stages inside it if it is a loop."""
    rows = [_row(graph, stage) for stage in graph.stages]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(5)]
    for stage, row in zip(graph.stages, rows, strict=True):
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        yield _marked(f"{indent}{cells}  -> {row[5]}".rstrip(), stage, graph, marks)
        if stage.body is not None:
            yield f"{indent}  {stage.body.index} x {stage.body.trips}"
            yield from _lines(stage.body.graph, {}, f"{indent}    ")


def _row(graph: Graph, stage: Stage) -> tuple[str, ...]:
    reads = ", ".join(_access(a) for a in graph.reads(stage.name))
    writes = ", ".join(_access(a) for a in graph.writes(stage.name))
    notes = ", ".join(_notes(graph, stage))
    inputs = f"{reads} ({notes})" if notes else reads
    return stage.name, str(stage.kind), stage.model or "-", f"x{stage.firings}", inputs, writes


def _notes(graph: Graph, stage: Stage) -> Iterator[str]:
    if stage.grain is not Grain.SAMPLE:
        yield f"by {stage.grain}"
    if stage.yields not in (ONE, graph.contract.group):
        yield f"yields {stage.yields}"
    if stage.passes > 1:
        yield f"{stage.passes} passes"
    if stage.kind is StageKind.GENERATE:
        yield from (head for head in stage.heads if head != "logprob")


def _access(access: Access) -> str:
    columns = f"[{' '.join(access.columns)}]" if access.columns else ""
    delay = f"@-{access.delay}" if access.delay else ""
    newer = "+" if access.bound is Bound.AT_LEAST else ""
    refresh = f"/{access.refresh}" if access.refresh is not Refresh.STEP else ""
    update = f"!{access.merge or ''}" if access.mode is Mode.UPDATE else ""
    return f"{access.data}{columns}{delay}{newer}{refresh}{update}"


def _marked(line: str, stage: Stage, graph: Graph, marks: Mapping[str, str]) -> str:
    touched = [stage.name, *(a.data for a in graph.writes(stage.name))]
    found = dict.fromkeys(marks[name] for name in touched if name in marks)
    return f"{line}   <-- {', '.join(found)}" if found else line
