"""P7, cuts: a checkpoint holds rows that wait and one version of every state, so a cut must need no more.

At the cut n every event has fired n times plus its shift. Of states a checkpoint has what the first n steps have made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rpeg.errors import Fault
from rpeg.graph.access import Access
from rpeg.graph.data import Data, DataKind, Per
from rpeg.graph.graph import Graph
from rpeg.plan.plan import Plan

__all__ = ["cut_faults"]


def cut_faults(graph: Graph, plan: Plan) -> Iterator[Fault]:
    """Yield the stages that a cut finds so far ahead, or with so old weights before them, that no checkpoint has it."""
    found: dict[str, list[int]] = defaultdict(list)
    for (stage, _), (_, shift) in plan.standing.items():
        found[stage].append(shift)
    for stage in (each.name for each in graph.stages):
        for read in graph.reads(stage):
            if _is_versioned(graph.data_of[read.data]) and graph.writers(read.data):
                yield from _too_old(read, min(found[stage]))
        ahead = max(found[stage])
        for write in graph.writes(stage):
            data = graph.data_of[write.data]
            if _is_versioned(data) and ahead > 0:
                text = f"makes {data.name} {ahead} steps ahead, and a checkpoint has what steps before it have made"
                yield Fault(stage, text, "give it the shift 0")
            if data.kind is DataKind.STREAM and data.per is Per.STEP:
                reads = [(read, min(found[read.stage]) - read.delay) for read in graph.readers(data.name)]
                yield from (_unfinished(read, stage, ahead, reached) for read, reached in reads if reached < ahead)


def _is_versioned(data: Data) -> bool:
    """Whether data is a state of which a checkpoint has one version; unfinished samples are saved as rows."""
    return data.kind is DataKind.STATE and not data.max_carry


def _too_old(read: Access, ahead: int) -> Iterator[Fault]:
    older = read.delay - 1 - ahead
    if older > 0:
        text = (
            f"reads {read.data} of {read.delay} steps back and runs {ahead} ahead, so a resumed run needs what is "
            f"{older} older than the newest, which no checkpoint has"
        )
        remedy = f"let it run {read.delay - 1} steps ahead, or move the delay: retime{{stage={read.stage},r={-older}}}"
        yield Fault(read.stage, text, remedy)


def _unfinished(read: Access, stage: str, ahead: int, reached: int) -> Fault:
    text = f"makes {read.data} {ahead - reached} steps before {read.stage} uses it, and no checkpoint has it meanwhile"
    return Fault(stage, text, f"give it the shift of {read.stage}, and no delay between them")
