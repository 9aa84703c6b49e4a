"""V3 rows and firings, V8 grain."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from rpeg.errors import GraphError
from rpeg.graph.data import Data, DataKind, Per
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.rules.problem import Problem
from rpeg.graph.stage import Grain, Stage, StageKind

__all__ = ["v3_rates", "v3_sizes", "v8_grain"]

_MAX_TRIED = 10_000


def v3_sizes(graph: Graph) -> Iterator[Problem]:
    """Prompts, group and firings are known whole numbers; a stage may also act in every n-th step (``1 / n``)."""
    contract = graph.contract
    yield from _size_problems(graph, "contract", "prompts", contract.prompts, "a whole number of at least 1")
    yield from _size_problems(graph, "contract", "group", contract.group, "a whole number of at least 1")
    for stage in graph.stages:
        hint = "a whole number of at least 1, or 1 / n to act in every n-th step"
        yield from _size_problems(graph, stage.name, "firings", stage.firings, hint, is_rate=True)
        if stage.passes < 1:
            yield Problem("V3", (stage.name,), f"passes is {stage.passes}", "a whole number of at least 1")


def _size_problems(
    graph: Graph, subject: str, name: str, size: Dim, hint: str, is_rate: bool = False
) -> Iterator[Problem]:
    value = _value(size, graph)
    if isinstance(value, str):
        yield Problem("V3", (subject,), f"{name} {size}: {value}", "give it a value")
    elif value <= 0 or (value.denominator != 1 and not (is_rate and value.numerator == 1)):
        yield Problem("V3", (subject,), f"{name} is {value}", hint)


def _value(size: Dim, graph: Graph) -> Fraction | str:
    """Return the value of a size, or why it has none."""
    try:
        return size.evaluate(graph.env)
    except GraphError as error:
        return error.faults[0].what


def v3_rates(graph: Graph) -> Iterator[Problem]:
    """Firings divide the batch and are no more than its rows; rows agree between producers, consumers and the batch."""
    for stage in graph.stages:
        firings = graph.firings(stage.name)
        if _touches_rows(graph, stage) and (firings.denominator != 1 or graph.batch_rows % firings):
            text = f"{firings} firings do not divide the batch of {graph.batch_rows} rows"
            yield Problem("V3", (stage.name,), text, f"possible: {_divisors(graph.batch_rows)}")
        elif firings > graph.batch_rows:
            text = f"{firings} firings are more than the {graph.batch_rows} rows of a step"
            yield Problem("V3", (stage.name,), text, "at most one firing per row")
    yield from _disagreeing_rows(graph)


def _divisors(number: int) -> str:
    """Return the smallest divisors as text; a number from a file may be too large to look for all of them."""
    found = [str(n) for n in range(1, min(number, _MAX_TRIED) + 1) if number % n == 0]
    return ", ".join(found if len(found) <= 8 and number <= _MAX_TRIED else [*found[:8], "…"])


def _touches_rows(graph: Graph, stage: Stage) -> bool:
    return any(_is_rows(graph.data_of[access.data]) for access in graph.accesses if access.stage == stage.name)


def _is_rows(data: Data) -> bool:
    return data.kind is DataKind.STREAM and data.per is Per.SAMPLE


def _disagreeing_rows(graph: Graph) -> Iterator[Problem]:
    rows = _rows_of_streams(graph)
    for stage in graph.stages:
        seen = {a.data: rows[a.data] for a in graph.reads(stage.name) if a.data in rows}
        if len(set(seen.values())) > 1:
            text = "reads " + " and ".join(f"{count} rows of {name}" for name, count in seen.items())
            yield Problem("V3", (stage.name, *seen), text, "make the yields of the producers agree")
        elif stage.kind is StageKind.TRAIN and seen and set(seen.values()) != {graph.batch_rows}:
            text = f"reads {next(iter(seen.values()))} rows, the contract has {graph.batch_rows}"
            yield Problem("V3", (stage.name, *seen), text, "make the yields of the generator the group size")


def _rows_of_streams(graph: Graph) -> dict[str, Fraction]:
    """Return rows per step of each STREAM of samples: what its writer reads times what it yields, where known."""
    prompts = graph.contract.prompts.evaluate(graph.env)
    rows: dict[str, Fraction] = {}
    num_known = -1
    while num_known < len(rows):
        num_known = len(rows)
        for stage in graph.stages:
            new = [w.data for w in graph.writes(stage.name) if w.data not in rows and _is_rows(graph.data_of[w.data])]
            read = [rows[a.data] for a in graph.reads(stage.name) if a.data in rows]
            source = prompts if stage.kind is StageKind.GENERATE else read[0] if read else None
            if not new or source is None or isinstance(yields := _value(stage.yields, graph), str):
                continue
            rows |= dict.fromkeys(new, source * yields)
    return rows


def v8_grain(graph: Graph) -> Iterator[Problem]:
    """A firing of GROUP grain holds whole groups; a stage of BATCH grain fires once, a TRAIN once per update."""
    for stage in graph.stages:
        firings = graph.firings(stage.name)
        rows = Fraction(graph.batch_rows) / firings
        if stage.grain is Grain.GROUP and rows % graph.group_size:
            text = f"{firings} firings of {rows} rows split groups of {graph.group_size}"
            hint = f"at most {graph.batch_rows // graph.group_size} firings, dividing it"
            yield Problem("V8", (stage.name,), text, hint)
        batches = _batches(graph, stage)
        if stage.grain is Grain.BATCH and firings != batches:
            text = f"needs the whole batch but fires {firings} times"
            yield Problem("V8", (stage.name,), text, f"set firings to {batches}")


def _batches(graph: Graph, stage: Stage) -> int:
    """Return into how many batches a step falls for ``stage``: a TRAIN has one per update of a sweep."""
    return graph.contract.updates_per_step // stage.passes if stage.kind is StageKind.TRAIN else 1
