"""Firings as events."""

from __future__ import annotations

from typing import Any

from rpeg.graph.dim import Dim
from rpeg.plan.firings import event_id, num_events


def test_a_stage_has_as_many_events_as_firings(make: Any) -> None:
    graph = make.graph({"gen": 4, "train": 1, "eval": Dim("1 / 10")}, [], [])
    assert [num_events(graph, stage) for stage in ("gen", "train", "eval")] == [4, 1, 1]


def test_names_of_events() -> None:
    assert event_id("train", 1) == "train.1"
