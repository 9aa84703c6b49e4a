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
    """Samples that are trained on when stale or refreshed carry ``logp`` and ``version``, and TRAIN reads both."""
    for stage in generators(graph):
        if _is_off_policy(graph, stage):
            yield from _missing_records(graph, stage)


def _missing_records(graph: Graph, stage: Stage) -> Iterator[Problem]:
    trains = sorted(s.name for s in graph.stages if s.kind is StageKind.TRAIN and s.model == stage.model)
    samples = _samples(graph, stage.name)
    reads = [read for _, data in samples for read in graph.readers(data.name) if read.stage in trains]
    if not reads:
        return  # what nobody trains on, such as a greedy answer to compare with, needs no importance ratio
    for column in ("logp", "version"):
        lacking = [(writer, data) for writer, data in samples if column not in {c.name for c in data.columns}]
        for writer, data in lacking:
            text = f"samples are stale but {writer} does not record {column}"
            yield Problem("V11", (data.name,), text, f"add the column {column} to {data.name}")
        if not lacking and not any(not read.columns or column in read.columns for read in reads):
            text = f"samples are stale but {', '.join(trains)} does not read {column}"
            yield Problem("V11", (reads[0].data,), text, "read it: importance ratios need it")


def _samples(graph: Graph, generator: str) -> list[tuple[str, Data]]:
    """Return writer and data of the streams with the tokens of ``generator``, those that filters pass on included."""
    found: list[tuple[str, Data]] = []
    writers = [generator]
    for writer in writers:
        for access in graph.writes(writer):
            data = graph.data_of[access.data]
            if data.kind is not DataKind.STREAM or "tokens" not in {column.name for column in data.columns}:
                continue
            found.append((writer, data))
            stages = [graph.stage_of[read.stage] for read in graph.readers(data.name)]
            writers += [s.name for s in stages if s.kind is StageKind.FILTER and s.name not in writers]
    return found


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
    kept = ahead or any(read.delay for read in graph.readers(data.name))
    return data.kind is DataKind.STREAM and made and kept
