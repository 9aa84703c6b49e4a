"""What is known of passes of a model over rows of tokens, and how two become one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rpeg.graph.data import DataKind
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Grain, Source, Stage
from rpeg.transforms.edit import united_name

__all__ = ["coarsest", "fused_stage", "joint_heads", "spelled", "tokens_read"]

_GRAINS = (Grain.SAMPLE, Grain.GROUP, Grain.BATCH)
_HEADS = ("logprob", "entropy", "value", "score")


def fused_stage(a: Stage, b: Stage, origin: str) -> Stage:
    """Return ``b`` with the heads and effects of both stages, and the coarser of their grains."""
    return replace(
        b,
        name=united_name(a.name, b.name),
        heads=joint_heads([a, b]),
        grain=coarsest([a, b]),
        effects=a.effects | b.effects,
        source=Source(origin, (a.name, b.name)),
    )


def joint_heads(stages: Iterable[Stage]) -> tuple[str, ...]:
    """Return the heads of several passes, in the same order whatever the order of the passes."""
    return tuple(sorted({head for stage in stages for head in stage.heads}, key=_head_order))


def coarsest(stages: Iterable[Stage]) -> Grain:
    """Return the grain that suits all of several passes."""
    return max((stage.grain for stage in stages), key=_GRAINS.index)


def _head_order(head: str) -> tuple[int, str]:
    return _HEADS.index(head) if head in _HEADS else len(_HEADS), head


def tokens_read(graph: Graph, stage: str) -> set[tuple[str, int]]:
    """Return name and delay of all rows of tokens that a pass reads."""
    reads = [read for read in graph.reads(stage) if graph.data_of[read.data].kind is DataKind.STREAM]
    names = {read: read.columns or tuple(c.name for c in graph.data_of[read.data].columns) for read in reads}
    return {(read.data, read.delay) for read in reads if "tokens" in names[read]}


def spelled(reads: set[tuple[str, int]]) -> str:
    """Return names with their delays as text."""
    return ", ".join(f"{name}@-{delay}" if delay else name for name, delay in sorted(reads)) or "none"
