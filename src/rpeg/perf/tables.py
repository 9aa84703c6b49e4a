"""Prices that are kept from plan to plan: of a stage by layout and region, of data by layout."""

from __future__ import annotations

from functools import cached_property, lru_cache

from rpeg.graph.graph import Graph
from rpeg.hardware.topology import System
from rpeg.perf.demand import Demand, demands
from rpeg.perf.held import Holdings
from rpeg.perf.layouts import Choice
from rpeg.perf.regions import region_of, share_of
from rpeg.perf.software import Software
from rpeg.perf.stage import price_choice
from rpeg.perf.stage_prices import StagePrices
from rpeg.perf.workload import Workload
from rpeg.plan.firings import row_parts

__all__ = ["Tables", "tables_for"]


class Tables:
    """What one graph costs on one machine, as far as anybody has asked."""

    def __init__(self, graph: Graph, workload: Workload, system: System, software: Software) -> None:
        """Start empty.

        Raises:
            InvalidInput: when a role of the graph has no model.
        """
        self._graph, self._workload, self._system, self._software = graph, workload, system, software
        self.demands, self.assumed = demands(graph, workload)
        self._prices: dict[tuple[str, Choice, str, int, float | None], StagePrices] = {}
        self._bytes: dict[tuple[str, Choice, str], float] = {}

    def prices(self, stage: str, choice: Choice, where: str, servers: int, room_bytes: float | None) -> StagePrices:
        """Return the prices of a stage for one layout on a region of the machine; see `rpeg.perf.stage.price_stage`."""
        key = stage, choice, where, servers, room_bytes
        found = self._prices.get(key)
        if found is None:
            region = share_of(region_of(self._system, where), servers)
            found = price_choice(self.demands[stage], region, choice, self._software, room_bytes)
            self._prices[key] = found
        return found

    def held_bytes(self, data: str, choice: Choice, dtype: str) -> float:
        """Return the bytes of one version of data on its fullest device."""
        key = data, choice, dtype
        if key not in self._bytes:
            self._bytes[key] = self._holdings.num_bytes(data, choice, dtype)
        return self._bytes[key]

    def demand(self, stage: str) -> Demand:
        """Return what one firing of a stage asks for."""
        return self.demands[stage]

    @cached_property
    def _holdings(self) -> Holdings:
        rows = {name: demand.rows * row_parts(self._graph, name) for name, demand in self.demands.items()}
        return Holdings(self._graph, self._workload, self._software.memory, rows)


@lru_cache(maxsize=256)
def _kept(digest: str, workload: Workload, system: System, software: Software) -> dict[str, Tables]:
    return {}


def tables_for(graph: Graph, workload: Workload, system: System, software: Software) -> Tables:
    """Return the tables of a graph, the same ones every time."""
    kept = _kept(graph.digest(), workload, system, software)
    if graph.name not in kept:
        kept[graph.name] = Tables(graph, workload, system, software)
    return kept[graph.name]
