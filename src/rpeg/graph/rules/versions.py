"""V6 versions kept, V7 staleness, V11 recorded columns, V12 refresh, V14 what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterator

from rpeg.graph.access import Access, Bound, Mode, Refresh
from rpeg.graph.data import Data, DataKind, Lifetime
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import generators, staleness
from rpeg.graph.rules.problem import Problem
from rpeg.graph.stage import Stage, StageKind

__all__ = ["v6_versions", "v7_staleness", "v11_recorded", "v12_refresh", "v14_saved"]


def v6_versions(graph: Graph) -> Iterator[Problem]:
    """An EXACT reader with delay d needs at least d versions kept."""
    for access in graph.accesses:
        data = graph.data_of[access.data]
        if data.kind is DataKind.STATE and access.bound is Bound.EXACT and data.versions < access.delay:
            text = f"{access.stage} reads {access.delay} steps back, {data.versions} version(s) kept"
            yield Problem("V6", (data.name, access.stage), text, f"keep {access.delay} versions or read with AT_LEAST")


def v7_staleness(graph: Graph) -> Iterator[Problem]:
    """The staleness computed from the graph is within the contract."""
    for stage in generators(graph):
        found, allowed = staleness(graph, stage.name), graph.contract.max_staleness
        if found > allowed:
            text = f"samples are up to {found} versions old, the contract allows {allowed}"
            yield Problem("V7", (stage.name,), text, "shorten the delays or raise max_staleness")


def _is_off_policy(graph: Graph, stage: Stage) -> bool:
    refreshed = any(a.refresh is not Refresh.STEP for a in graph.reads(stage.name))
    return refreshed or staleness(graph, stage.name) > 0


def v11_recorded(graph: Graph) -> Iterator[Problem]:
    """Stale or refreshed rollouts carry the sampler's ``logp`` and ``version``, and TRAIN reads them."""
    for stage in generators(graph):
        if not _is_off_policy(graph, stage):
            continue
        for write in graph.writes(stage.name):
            data = graph.data_of[write.data]
            if data.kind is DataKind.STREAM:
                yield from _missing_records(graph, stage, data)


def _missing_records(graph: Graph, stage: Stage, data: Data) -> Iterator[Problem]:
    trains = {s.name for s in graph.stages if s.kind is StageKind.TRAIN and s.model == stage.model}
    reads = [a for a in graph.readers(data.name) if a.stage in trains]
    for column in ("logp", "version"):
        if column not in {c.name for c in data.columns}:
            text = f"samples are stale but {stage.name} does not record {column}"
            yield Problem("V11", (data.name,), text, f"add the column {column} to {data.name}")
        elif not any(not a.columns or column in a.columns for a in reads):
            text = f"samples are stale but {', '.join(sorted(trains))} does not read {column}"
            yield Problem("V11", (data.name,), text, "read it: importance ratios need it")


def v12_refresh(graph: Graph) -> Iterator[Problem]:
    """A generator that switches weights within a sample says what happens to its KV cache."""
    for stage in generators(graph):
        refreshed = [a for a in graph.reads(stage.name) if a.refresh is Refresh.TOKEN]
        if refreshed and not {"kv_keep", "kv_recompute"} & set(stage.heads):
            text = "switches weights within a sample without a KV policy"
            yield Problem("V12", (stage.name,), text, "add the head kv_keep or kv_recompute")


def v14_saved(graph: Graph) -> Iterator[Problem]:
    """A checkpoint holds what cannot be recomputed: updated states, unfinished samples, rollouts made ahead."""
    ahead = any(staleness(graph, stage.name) > 0 for stage in generators(graph))
    for data in graph.data:
        needed = _must_be_saved(graph, data, graph.writers(data.name), ahead)
        if needed and data.lifetime is not Lifetime.SAVED:
            text = f"is needed to resume but its lifetime is {data.lifetime}"
            yield Problem("V14", (data.name,), text, "make it SAVED")
        if data.lifetime is Lifetime.SAVED and not needed:
            yield Problem("V14", (data.name,), "is saved but can be recomputed", "give it lifetime RUN or STEP")


def _must_be_saved(graph: Graph, data: Data, writers: list[Access], ahead: bool) -> bool:
    if data.kind is DataKind.STATE:
        return data.max_carry > 0 or any(access.mode is Mode.UPDATE for access in writers)
    made = any(graph.stage_of[a.stage].kind is StageKind.GENERATE for a in writers)
    return data.kind is DataKind.STREAM and made and ahead
