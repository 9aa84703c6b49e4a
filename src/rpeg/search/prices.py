"""What every call costs on every kind of place: the layouts worth having, and what it would take to move away and back.

Of the layouts of a call on a place only those are kept that no other one beats in seconds, tail, what it keeps and what
it needs while it runs. For calls whose weights may wait in the memory of the host between their turns there is a second
row for each: nothing kept, all of it needed while it runs, and the copies on top of its seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.hardware.topology import System
from rpeg.perf.demand import Demand
from rpeg.perf.layouts import Choice, LayoutTable, layouts_for, table_of
from rpeg.perf.reshard import haul_s
from rpeg.perf.software import Software
from rpeg.perf.stage import price_stage
from rpeg.perf.stage_prices import StagePrices
from rpeg.plan.firings import num_events
from rpeg.search.calls import StageCall
from rpeg.search.crew import Crew

__all__ = ["Pin", "Row", "call_rows"]

_MOST_ROWS = 8
"""Layouts of one call on one kind of place that are kept."""
_SLOT_SHARES = (2, 4, 8)
"""A generator may have room for a half, a quarter, an eighth of its replica's samples at a time."""


@dataclass(frozen=True, slots=True)
class Row:
    """One way to run a call on a place, for a whole step."""

    choice: Choice
    seconds: float
    """Until its devices are free."""
    tail_s: float
    held_bytes: float
    """On the fullest device, all the time."""
    working_bytes: float
    """On the fullest device, while it runs."""
    is_hauled: bool = False
    """Whether its weights wait on the host until it runs; those of a trained model cannot, others need them."""


@dataclass(frozen=True, slots=True, eq=False)
class Pin:
    """What a user has fixed about the layout of a call: ``train.tp=4``."""

    degrees: Mapping[str, int]
    """By name: tp, pp, dp, cp, ep, zero, micro_rows."""

    def keeps(self, table: LayoutTable) -> LayoutTable:
        """Return the layouts that are as wanted."""
        fits = np.ones(len(table), dtype=bool)
        for name, value in self.degrees.items():
            fits &= getattr(table, name) == value
        return table.take(np.flatnonzero(fits))


def call_rows(
    graph: Graph,
    call: StageCall,
    demands: Mapping[str, Demand],
    place: System,
    software: Software,
    *,
    pin: Pin | None = None,
    crew: Crew | None = None,
) -> tuple[Row, ...]:
    """Return the ways to run a call on a place, the fastest first; none where it does not fit.

    Args:
        graph: the structure.
        call: which of its calls.
        demands: what every stage asks for.
        place: the devices.
        software: whose constants count.
        pin: what of the layout is fixed.
        crew: who carries the layouts out; None: other software.
    """
    demand = demands[call.name]
    shape = demand.parts[0].shape if demand.parts else demand.shape
    assert shape is not None, call
    if crew is None:
        table = layouts_for(shape, place.num_devices, place.levels[-1].count, call.kind, demand.rows)
    else:
        micro_rows = 1 if pin is None else pin.degrees.get("micro_rows", 1)
        table = crew.layouts(shape, place.num_devices, demand.rows, micro_rows)
    if pin is not None:
        table = pin.keeps(table)
    rows = _priced(graph, call, demands, place, software, table)
    if call.kind is StageKind.GENERATE:
        fewer = _with_fewer_slots([row.choice for row in _front(rows)], demand.rows)
        rows += _priced(graph, call, demands, place, software, table_of(fewer))
    if crew is not None:
        return tuple(rows) if crew.keeps_every_row else _front(rows)
    return _front([*rows, *_hauled(rows, call, place)])


def _with_fewer_slots(choices: list[Choice], rows: float) -> Iterator[Choice]:
    """Yield layouts of a generator with room for fewer samples at a time than it could have."""
    for choice in choices:
        slots = {float(np.ceil(rows / choice.dp / share)) for share in _SLOT_SHARES}
        yield from (replace(choice, micro_rows=each) for each in sorted(slots) if each > 1)


def _priced(
    graph: Graph,
    call: StageCall,
    demands: Mapping[str, Demand],
    place: System,
    software: Software,
    table: LayoutTable,
) -> list[Row]:
    """Return the layouts of a table that fit, with what runs in the same binding."""
    if not len(table):
        return []
    prices = price_stage(demands[call.name], place, table, software)
    seconds = prices.occupancy_s * num_events(graph, call.name)
    working = prices.working_bytes
    for name in call.stages[1:]:
        if demands[name].kind is StageKind.UPDATE:
            beside = price_stage(demands[name], place, table, software)
            seconds = seconds + beside.occupancy_s * num_events(graph, name)
            working = np.maximum(working, beside.working_bytes)
    return _rows(table, prices, (seconds, prices.tail_s, working), place.device.memory_bytes)


_Columns = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]


def _rows(table: LayoutTable, prices: StagePrices, columns: _Columns, memory_bytes: float) -> list[Row]:
    seconds, tail_s, working = columns
    held = prices.held_bytes + prices.gradient_bytes
    fits = prices.is_feasible & (held + working <= memory_bytes)
    return [
        Row(table.choice(int(i)), float(seconds[i]), float(tail_s[i]), float(held[i]), float(working[i]))
        for i in np.flatnonzero(fits)
    ]


def _hauled(rows: list[Row], call: StageCall, place: System) -> Iterator[Row]:
    """Yield every row of a pass without gradients with its weights on the host until they are needed."""
    for row in rows if call.kind is StageKind.FORWARD else ():
        needed = row.held_bytes + row.working_bytes
        seconds = row.seconds + haul_s(row.held_bytes, place)
        yield replace(row, seconds=seconds, held_bytes=0.0, working_bytes=needed, is_hauled=True)


def _front(rows: list[Row]) -> tuple[Row, ...]:
    """Return the rows that no other one beats in everything, the fastest few of them and the leanest."""
    kept: list[Row] = []
    for row in sorted(rows, key=lambda r: (r.seconds + r.tail_s, r.held_bytes + r.working_bytes, r.held_bytes)):
        if not any(_beats(other, row) for other in kept):
            kept.append(row)
    if len(kept) <= _MOST_ROWS:
        return tuple(kept)
    leanest = min(kept, key=lambda r: r.held_bytes + r.working_bytes)
    smallest = min(kept, key=lambda r: (r.held_bytes, r.seconds))
    chosen = dict.fromkeys([*kept[: _MOST_ROWS - 2], smallest, leanest])
    return tuple(chosen)


def _beats(a: Row, b: Row) -> bool:
    return (
        a.seconds <= b.seconds
        and a.seconds + a.tail_s <= b.seconds + b.tail_s
        and a.held_bytes <= b.held_bytes
        and a.working_bytes + a.held_bytes <= b.working_bytes + b.held_bytes
    )
