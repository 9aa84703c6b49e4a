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


def v3_sizes(graph: Graph) -> Iterator[Problem]:
    """Prompts, group and firings are known whole numbers; a stage may also act in every n-th step (``1 / n``)."""
    contract = graph.contract
    yield from _size_problems(graph, "contract", "prompts", contract.prompts, "a whole number of at least 1")
    yield from _size_problems(graph, "contract", "group", contract.group, "a whole number of at least 1")
    for stage in graph.stages:
        hint = "a whole number of at least 1, or 1 / n to act in every n-th step"
        yield from _size_problems(graph, stage.name, "firings", stage.firings, hint, is_rate=True)


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
    """Firings divide the batch, rows agree between producer and consumer, and a step trains on the whole batch."""
    for stage in graph.stages:
        firings = graph.firings(stage.name)
        if _touches_rows(graph, stage) and (firings.denominator != 1 or graph.batch_rows % firings):
            text = f"{firings} firings do not divide the batch of {graph.batch_rows} rows"
            yield Problem("V3", (stage.name,), text, f"possible: {_divisors(graph.batch_rows)}")
    yield from _disagreeing_rows(graph)


def _divisors(number: int) -> str:
    found = [str(n) for n in range(1, number + 1) if number % n == 0]
    return ", ".join(found if len(found) <= 8 else [*found[:8], "…"])


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
    for _ in graph.stages:
        for stage in graph.stages:
            read = [rows[a.data] for a in graph.reads(stage.name) if a.data in rows]
            source = prompts if stage.kind is StageKind.GENERATE else read[0] if read else None
            yields = _value(stage.yields, graph)
            if source is None or isinstance(yields, str):
                continue
            for write in graph.writes(stage.name):
                if _is_rows(graph.data_of[write.data]):
                    rows.setdefault(write.data, source * yields)
    return rows


def v8_grain(graph: Graph) -> Iterator[Problem]:
    """A firing of GROUP grain holds whole groups; a stage of BATCH grain fires once."""
    for stage in graph.stages:
        firings = graph.firings(stage.name)
        rows = Fraction(graph.batch_rows) / firings
        if stage.grain is Grain.GROUP and rows % graph.group_size:
            text = f"{firings} firings of {rows} rows split groups of {graph.group_size}"
            hint = f"at most {graph.batch_rows // graph.group_size} firings, dividing it"
            yield Problem("V8", (stage.name,), text, hint)
        if stage.grain is Grain.BATCH and firings != 1:
            yield Problem("V8", (stage.name,), f"needs the whole batch but fires {firings} times", "set firings to 1")
