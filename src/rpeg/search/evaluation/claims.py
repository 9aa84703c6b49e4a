"""What the paper of this project reports, beside what the model says of the same comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rpeg.search.evaluation.assumptions import common
from rpeg.search.evaluation.ladder import ASYNCHRONY, PARALLELISM, RUNGS
from rpeg.search.evaluation.line import Line
from rpeg.search.evaluation.sheet import Sheet, seconds_text
from rpeg.search.evaluation.solve import Order, Solved

__all__ = ["CLAIMS", "Claim", "claims_sheet", "missed_sheet"]

_LEAST = 0.005
"""By so much, as a share of the step, a baseline has to be faster to be named."""

_Measure = Callable[[Line, Line], float]
"""Of this system's line and the other's."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence of the paper, as a comparison of two lines."""

    text: str
    other: str
    """The baseline."""
    measure: _Measure
    reported: float
    is_share: bool = False
    """Whether it is an increase in percent rather than a ratio."""


def _faster(mine: Line, other: Line) -> float:
    return (other.step_s or 0.0) / (mine.step_s or 1.0)


def _busier(mine: Line, other: Line) -> float:
    return mine.busy - other.busy


def _more_flops(mine: Line, other: Line) -> float:
    return mine.mfu / other.mfu - 1.0


CLAIMS = (
    Claim("up to 2x faster than ReaL", "real", _faster, 2.0),
    Claim("up to 2.48x lower step latency than verl", "verl", _faster, 2.48),
    Claim("up to 30 % more utilisation (busy share, points), than ReaL", "real", _busier, 0.30, is_share=True),
    Claim("up to 30 % more utilisation (busy share, points), than verl", "verl", _busier, 0.30, is_share=True),
    Claim("up to 30 % more utilisation (model FLOPs, relative), than ReaL", "real", _more_flops, 0.30, is_share=True),
    Claim("up to 30 % more utilisation (model FLOPs, relative), than verl", "verl", _more_flops, 0.30, is_share=True),
)
"""Of the paper that this project implements."""


def claims_sheet(solved: Sequence[Solved], order: Order) -> Sheet | None:
    """Return the table of claims over all columns that are climbed from the base; None where there are none."""
    solved = [each for each in solved if each.line(RUNGS[0].name) is not None]
    rows = [row for claim in CLAIMS for rung in (PARALLELISM, ASYNCHRONY) for row in _row(claim, rung, solved)]
    head = ("the paper says", "with", "columns", "least", "median", "most", "most where", "reached in")
    return Sheet("What the paper reports", tuple(_notes(solved, order)), head, tuple(rows)) if rows else None


def missed_sheet(solved: Sequence[Solved], order: Order) -> Sheet | None:
    """Return the table of columns where a baseline is faster than all freedom: plans that the search has missed."""
    rows: list[tuple[str, ...]] = []
    for each in solved:
        mine = each.line(ASYNCHRONY)
        for line in each.lines if mine is not None else ():
            if mine and line.is_baseline and mine.step_s and line.step_s and line.step_s < mine.step_s * (1.0 - _LEAST):
                where = f"{each.scenario} {each.column.label}"
                seconds = seconds_text(line.step_s), seconds_text(mine.step_s)
                rows.append((f"{line.name} (modelled)", where, *seconds, f"{line.step_s / mine.step_s:.2f}x"))
    head = ("faster than all freedom", "where", "its step s", "this system s", "ratio")
    return Sheet("Where a baseline is faster", tuple(_notes(solved, order)), head, tuple(rows)) if rows else None


def _notes(solved: Sequence[Solved], order: Order) -> Iterator[str]:
    """Yield what the table assumes: that of all tables it is made of."""
    names = dict.fromkeys(each.scenario for each in solved if each.line(ASYNCHRONY) is not None)
    yield f"Columns: those of {', '.join(names)} where both have a plan, with all that is assumed there."
    yield from common(solved, order)


def _row(claim: Claim, rung: str, solved: Sequence[Solved]) -> Iterator[tuple[str, ...]]:
    found: list[tuple[float, str]] = []
    for each in solved:
        mine, other = each.line(rung), each.line(claim.other)
        if mine is not None and other is not None and mine.step_s is not None and other.step_s is not None:
            found.append((claim.measure(mine, other), f"{each.scenario} {each.column.label}"))
    if found:
        values = sorted(value for value, _ in found)
        most, where = max(found)
        reached = sum(value >= claim.reported for value in values)
        texts = [_text(claim, value) for value in (values[0], _median(values), most)]
        how = "all freedom" if rung == ASYNCHRONY else "synchronous only"
        yield (claim.text, how, str(len(found)), *texts, where, f"{reached} of {len(found)}")


def _text(claim: Claim, value: float) -> str:
    return f"{100 * value:+.0f} %" if claim.is_share else f"{value:.2f}x"


def _median(values: Sequence[float]) -> float:
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
