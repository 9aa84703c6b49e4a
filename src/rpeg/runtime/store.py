"""What lies on the arcs: rows of steps under way and weights in transit, kept until their last reader has read them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import torch

from rpeg.graph.access import Access
from rpeg.graph.data import DataKind, Per
from rpeg.graph.graph import Graph
from rpeg.plan.events import Event
from rpeg.plan.firings import num_events, row_parts
from rpeg.runtime.cuts import PLACES, Cuts, placing, read_row_name, readers, row_name
from rpeg.runtime.flow import flows
from rpeg.runtime.rows import Rows
from rpeg.runtime.task import Outcome, Staged, Task, Weights

__all__ = ["Provider", "Store"]

Provider = Callable[[int], Rows]
"""Gives the rows of EXTERNAL data for a step."""

_EMPTY = Rows({})


class Store:
    """Values by data and step; turns a firing into a task, and an outcome into values."""

    def __init__(self, graph: Graph, providers: Mapping[str, Provider]) -> None:
        """Hold nothing yet; ``providers`` give the external rows."""
        self._graph, self._providers = graph, providers
        # By data and step, then by the stage and the firing that made them.
        self._rows: dict[tuple[str, int], dict[tuple[str, int], Rows]] = defaultdict(dict)
        self._weights: dict[tuple[str, int], Weights | Staged] = {}
        self._reads: dict[tuple[str, int], int] = defaultdict(int)
        self._num_reads = {
            data: sum(num_events(graph, access.stage) for access in found)
            for data, found in readers(graph, providers).items()
        }
        self._flowing = {stage.name for stage in graph.stages if flows(graph, stage.name)}
        self._placing = placing(graph)

    def task(self, event: Event, step: int) -> Task:
        """Return the task of ``event`` for ``step`` with the columns that its accesses name."""
        stage = self._graph.stage_of[event.stage]
        groups, samples, versions, weights, carried = _EMPTY, _EMPTY, {}, None, None
        for access in self._graph.reads(event.stage):
            data = self._graph.data_of[access.data]
            version = step - access.delay + 1
            if data.max_carry:
                carried = self._carried(access, step - access.delay)
            elif data.kind is DataKind.STATE:
                versions[data.name] = max(0, version)
                weights = self._weights.get((data.name, version), weights)
            elif (rows := self._read(access, event, step - access.delay)) is not None:
                if data.per is Per.GROUP:
                    groups = groups.joined(rows)
                else:
                    samples = samples.joined(rows)
        firings = num_events(self._graph, stage.name)
        first = step * len(groups)
        places = tuple(range(first, first + len(groups))) if stage.name in self._flowing else ()
        return Task(
            stage.name, stage.kind, step, event.firing, groups, samples, versions, weights, firings, carried, places
        )

    def _read(self, access: Access, event: Event, step: int) -> Rows | None:
        used = row_parts(self._graph, event.stage)
        firing = event.firing % used
        if self._graph.data_of[access.data].kind is DataKind.EXTERNAL:
            is_given = access.data in self._providers and step >= 0
            rows = self._providers[access.data](step) if is_given else None
            return None if rows is None else self._external(rows, access, event, step)
        if (access.data, step) not in self._rows:
            return None
        return self._share(access, self._rows[access.data, step], firing, used)

    def _carried(self, access: Access, step: int) -> Rows | None:
        (rows,) = self._rows.get((access.data, step), {(): None}).values()
        return rows

    def _external(self, rows: Rows, access: Access, event: Event, step: int) -> Rows:
        """Return the share of a firing: a flow gets all at its first, others what belongs to the samples they get."""
        used = row_parts(self._graph, event.stage)
        firing = event.firing % used
        if event.stage in self._flowing:
            return rows.only(access.columns) if firing == 0 else rows.only(access.columns).part(0, 0)
        made = [places for _, places in sorted(self._rows.get((PLACES, step), {}).items())]
        if not made:
            return rows.only(access.columns).share(firing, used)
        numbers, size = Rows.stacked(made).tensor("place").tolist(), len(rows) // used
        wanted = [divmod(n, len(rows)) for n in numbers[firing * size : (firing + 1) * size]]
        found = [self._providers[access.data](at).part(place, place + 1) for at, place in wanted]
        return Rows.stacked(found).only(access.columns)

    def _share(self, access: Access, parts: Mapping[tuple[str, int], Rows], firing: int, used: int) -> Rows:
        """Return the rows of one reader firing out of ``used``, taken from as few producer firings as hold them."""
        (writer,) = {write.stage for write in self._graph.writers(access.data) if write.shares_columns(access)}
        made = num_events(self._graph, writer)
        first, last = firing * made // used, -(-(firing + 1) * made // used) - 1
        rows = Rows.stacked([parts[writer, i].only(access.columns) for i in range(first, last + 1)])
        size = len(rows) * made // ((last - first + 1) * used)
        start = firing * size - first * len(rows) // (last - first + 1)
        return rows.part(start, start + size)

    def finish(self, event: Event, step: int, outcome: Outcome) -> None:
        """Keep what ``event`` made for ``step``, and let go of what it was the last to read."""
        if outcome.places and self._num_reads[PLACES]:
            self._rows[PLACES, step][event.stage, event.firing] = Rows({"place": torch.tensor(outcome.places)})
        for write in self._graph.writes(event.stage):
            is_state = self._graph.data_of[write.data].kind is DataKind.STATE
            if self._graph.data_of[write.data].max_carry and outcome.carried is not None:
                self._rows[write.data, step][event.stage, event.firing] = outcome.carried
            elif is_state and outcome.weights is not None:
                self._weights[write.data, step + 1] = outcome.weights
            elif not is_state and outcome.rows is not None:
                parts = self._rows[write.data, step]
                assert (event.stage, event.firing) not in parts, f"{event.id} of step {step} has fired twice"
                parts[event.stage, event.firing] = self._columns(write.data, outcome.rows)
        for access in self._graph.reads(event.stage):
            self._release(access, step - access.delay)

    def _columns(self, data: str, rows: Rows) -> Rows:
        """Return what belongs to ``data`` of the rows of a stage that writes several."""
        names = {column.name for column in self._graph.data_of[data].columns}
        return Rows({name: column for name, column in rows.columns.items() if name in names})

    def _release(self, access: Access, step: int) -> None:
        is_given = access.data in self._providers
        key = (PLACES if is_given else access.data, step)
        if is_given and access.stage in self._placing:
            return
        if key not in self._rows and (access.data, step + 1) not in self._weights:
            return  # lives in a worker, or comes from outside
        self._reads[key] += 1
        if self._reads[key] == self._num_reads[key[0]]:
            del self._reads[key]
            self._rows.pop(key, None)
            self._weights.pop((access.data, step + 1), None)

    def waiting(self) -> dict[str, Rows]:
        """Return what a checkpoint must hold: rows made but not yet read by all, under the names of `Cuts.waiting`."""
        flat = ((data, step, *made, rows) for (data, step), parts in self._rows.items() for made, rows in parts.items())
        return {row_name(data, step, stage, firing): rows for data, step, stage, firing, rows in flat}

    def restore(self, waiting: Mapping[str, Rows], cuts: Cuts, cut: int) -> None:
        """Put back what `waiting` returned at a cut, some of which may have been read by some."""
        for name, rows in waiting.items():
            data, step, stage, firing = read_row_name(name)
            self._rows[data, step][stage, firing] = rows
        for data, step in self._rows:
            self._reads[data, step] = cuts.num_read(data, step, cut)
