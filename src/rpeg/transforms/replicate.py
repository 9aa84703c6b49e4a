"""The logical half of `replicate`: may copies of a stage's engine share its samples among them?

How many copies there are, and where, is a matter of the plan (`rpeg.plan.plan.Binding.servers`); that any number of
them gives the same rows is a matter of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator

from rpeg.graph.graph import Graph
from rpeg.graph.stage import Grain, StageKind
from rpeg.transforms.base import Reason

__all__ = ["dependent"]

_PER_SAMPLE = (StageKind.GENERATE, StageKind.ENVIRONMENT, StageKind.FORWARD, StageKind.VERIFY)


def dependent(graph: Graph, stage: str) -> Iterator[Reason]:
    """Yield why the samples of ``stage`` do not go their ways independently; nothing if any copy may take any of them.

    Random numbers are no obstacle: they are seeded per sample (V13).
    """
    found = graph.stage_of.get(stage)
    if found is None:
        yield Reason((stage,), "is no stage", f"stages: {', '.join(graph.stage_of)}")
        return
    if found.kind not in _PER_SAMPLE:
        kinds = ", ".join(_PER_SAMPLE)
        yield Reason((stage,), f"is of kind {found.kind}, which makes one result of all its rows", f"needs {kinds}")
    if found.grain is Grain.BATCH:
        yield Reason((stage,), "needs the whole batch", "only samples and groups are shared out")
