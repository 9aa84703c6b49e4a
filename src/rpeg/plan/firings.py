"""Firings as events: how many a stage has per step, and what they are called."""

from __future__ import annotations

from fractions import Fraction

from rpeg.graph.graph import Graph

__all__ = ["event_id", "num_events"]


def num_events(graph: Graph, stage: str) -> int:
    """Return the events per step of ``stage``; a stage that acts in every n-th step still has one event in each."""
    return int(max(Fraction(1), graph.firings(stage)))


def event_id(stage: str, firing: int) -> str:
    """Return the name of an event: ``train.1`` is the second firing of ``train``."""
    return f"{stage}.{firing}"
