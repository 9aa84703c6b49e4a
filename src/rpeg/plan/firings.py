"""Firings as events: how many a stage has per step, and what they are called."""

from __future__ import annotations

from rpeg.graph.access import Access
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind

__all__ = ["event_id", "num_events", "optimizer_batches", "row_parts"]


def num_events(graph: Graph, stage: str) -> int:
    """Return the events per step of ``stage``: its firings, in every sweep over the rows of a step.

    A stage that acts in every n-th step still has one event in each.
    """
    firings = graph.firings(stage)
    return max(1, firings.numerator // firings.denominator) * graph.sweeps(stage)


def row_parts(graph: Graph, stage: str) -> int:
    """Return into how many parts the rows of a step fall for ``stage``: event n has part n, and begins again behind."""
    is_train = graph.stage_of[stage].kind is StageKind.TRAIN
    return num_events(graph, stage) // (graph.sweeps(stage) if is_train else 1)


def event_id(stage: str, firing: int) -> str:
    """Return the name of an event: ``train.1`` is the second firing of ``train``."""
    return f"{stage}.{firing}"


def optimizer_batches(graph: Graph, reader: Access, made: int) -> int:
    """Return how often within a step the reader of a state that is ``made`` so often turns to a newer version.

    Once, but a TRAIN does it after every update.
    """
    is_train = graph.stage_of[reader.stage].kind is StageKind.TRAIN
    return made if is_train and num_events(graph, reader.stage) % made == 0 else 1
