"""The price list of a stage: what every layout of a table costs on some devices.

===================  ==============================================================================================
kind                 priced by
===================  ==============================================================================================
GENERATE, EVALUATE   `rpeg.perf.generation` (replicas are data parallel ranks)
FORWARD, TRAIN       `rpeg.perf.training`, micro-batches from the lengths; TRAIN without the optimizer
UPDATE               bytes of master weights and moments; without a model, rows on hosts
PUSH, PULL           bytes between two layouts: see `rpeg.perf.reshard`, here they are free
others               rows on the cores of hosts
===================  ==============================================================================================
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from rpeg.graph.stage import StageKind
from rpeg.hardware.topology import System
from rpeg.perf.demand import Demand
from rpeg.perf.layouts import Choice, LayoutTable, table_of
from rpeg.perf.software import Software
from rpeg.perf.stage_generation import price_generation
from rpeg.perf.stage_passes import price_passes, price_updates
from rpeg.perf.stage_prices import StagePrices, free

__all__ = ["price_choice", "price_stage"]

_SAMPLING = (StageKind.GENERATE, StageKind.EVALUATE)
_PASSES = (StageKind.FORWARD, StageKind.TRAIN)
_MOVES = (StageKind.PUSH, StageKind.PULL, StageKind.SAVE)


def price_stage(
    demand: Demand, region: System, table: LayoutTable, software: Software, *, memory_bytes: float | None = None
) -> StagePrices:
    """Return what one firing costs under every layout of ``table``.

    Args:
        demand: what the firing asks for.
        region: the devices, as a system of their own (`rpeg.perf.regions.region_of`).
        table: the layouts; those that do not divide what they split get a reason and no price.
        software: whose constants count.
        memory_bytes: per device, what a generator may take for weights and caches; None: its engine's usual share.

    >>> from rpeg.hardware.catalog import load_system
    >>> from rpeg.perf.lengths import constant
    >>> from rpeg.perf.software import software_for
    >>> from rpeg.perf.workload import Workload
    >>> from rpeg.shapes.catalog import shape_of
    >>> load = Workload({"actor": shape_of("Llama-3.1-8B")}, constant(1024.0), constant(1024.0))
    >>> demand = Demand(StageKind.FORWARD, load, load.shape("actor"), rows=512)
    >>> table = table_of([Choice(tp=4, dp=2), Choice(tp=3)])
    >>> found = price_stage(demand, load_system("alps:8"), table, software_for())
    >>> bool(found.occupancy_s[0] > 0), found.reasons[1]
    (True, '3 ranks on 8 devices, tp 3 does not divide 32 heads')
    """
    if demand.parts:
        return _together([price_stage(part, region, table, software) for part in demand.parts])
    if demand.shape is None or demand.kind in _MOVES:
        return free(len(table), _host_s(demand, region, software) if demand.shape is None else 0.0)
    if demand.kind in _SAMPLING:
        return price_generation(demand, region, table, software, memory_bytes)
    if demand.kind in _PASSES:
        return price_passes(demand, region, table, software)
    return price_updates(demand, region, table, software)


@lru_cache(maxsize=1 << 16)
def price_choice(
    demand: Demand, region: System, choice: Choice, software: Software, memory_bytes: float | None = None
) -> StagePrices:
    """Return the price list of one layout; the second time it is looked up."""
    return price_stage(demand, region, table_of([choice]), software, memory_bytes=memory_bytes)


def _host_s(demand: Demand, region: System, software: Software) -> float:
    """Return the seconds of rows on the cores of the hosts of a region."""
    used = software.constants
    each_s = used.verify_s if demand.kind is StageKind.VERIFY else used.row_s
    rows_s = demand.rows * each_s / (used.cores * region.num_hosts)
    return (rows_s + used.rows_firing_s) * demand.share


def _together(parts: list[StagePrices]) -> StagePrices:
    """Return the prices of passes one after the other in one firing, their weights side by side."""
    first, said = parts[0], dict.fromkeys(part.extrapolates for part in parts if part.extrapolates)
    return StagePrices(
        np.sum([part.occupancy_s for part in parts], axis=0),
        first.tail_s,
        np.sum([part.held_bytes for part in parts], axis=0),
        first.gradient_bytes,
        np.max([part.working_bytes for part in parts], axis=0),
        np.sum([part.device_flops for part in parts], axis=0),
        [_first([part.reasons[row] for part in parts]) for row in range(len(first))],
        ", ".join(said),
    )


def _first(reasons: list[str]) -> str:
    """Return the first reason there is."""
    return next((reason for reason in reasons if reason), "")
