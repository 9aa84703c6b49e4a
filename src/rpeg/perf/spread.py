"""What drawn lengths make of a step: the event graph played with durations that follow the samples of every step.

A generation takes as long as its samples have tokens, up to its slowest replica; what is trained on them afterwards
takes as long as the same samples have tokens. So both are drawn together, step by step, and the clock does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.perf.demand import Demand
from rpeg.perf.estimate import Estimate
from rpeg.perf.lengths import Lengths
from rpeg.plan.events import EventGraph
from rpeg.plan.plan import Plan
from rpeg.plan.play import Firing
from rpeg.plan.simulate import simulate

__all__ = ["Spread", "spread_of"]

_Floats = npt.NDArray[np.float64]
_STEPS, _BEFORE = 200, 24
_MOST_DRAWN = 4096
"""Samples drawn of a step; larger batches vary less, by the square root of what is left out."""
_ROWS = (StageKind.FORWARD, StageKind.TRAIN, StageKind.VERIFY)


@dataclass(frozen=True, slots=True)
class Spread:
    """Quantiles of the seconds from the end of one step to the end of the next."""

    p10_s: float
    p50_s: float
    p90_s: float
    mean_s: float
    """What determinism hides: it is above the period where steps that are unlike wait for each other."""


def spread_of(graph: Graph, plan: Plan, estimate: Estimate, events: EventGraph, seed: int = 0) -> Spread:
    """Return the spread of steps with lengths drawn for each; equal seeds give equal answers."""
    draws = _Draws(graph, plan, estimate, np.random.default_rng(seed))
    played = simulate(events, _STEPS + _BEFORE, draws.occupancy_s)
    last = max(events.events, key=lambda event: (event.stage.startswith("update"), event.firing)).id
    ends = np.array([firing.end_s for firing in played if firing.event == last])
    steps = np.diff(ends)[_BEFORE:_STEPS]
    p10, p50, p90 = (float(each) for each in np.percentile(steps, (10, 50, 90)))
    return Spread(p10, p50, p90, float(steps.mean()))


class _Draws:
    """Durations of firings, those of one step from the same samples."""

    def __init__(self, graph: Graph, plan: Plan, estimate: Estimate, rng: np.random.Generator) -> None:
        self._graph, self._plan, self._estimate, self._rng = graph, plan, estimate, rng
        self._found: dict[int, tuple[float, float]] = {}

    def occupancy_s(self, firing: Firing, expected_s: float) -> float:
        """Return the occupancy of a firing, of a generation with what its tail differs from the expected one."""
        stage, _, _ = firing.event.rpartition(".")
        if stage not in self._graph.stage_of:
            return expected_s
        kind = self._graph.stage_of[stage].kind
        total, longest = self._step(firing.index)
        if kind is StageKind.GENERATE:
            tail_s = self._estimate.seconds(stage, self._plan.binding_of[stage]).tail_s
            return max(0.0, expected_s * total + tail_s * (longest - 1.0))
        return expected_s * total if kind in _ROWS else expected_s

    def _step(self, step: int) -> tuple[float, float]:
        """Return tokens and the longest response of a step, over what is expected of them."""
        if step not in self._found:
            drawn = self._rng.choice(self._tokens, self._count, p=self._shares)
            total = float(drawn.sum()) / (self._count * self._lengths.mean_tokens)
            self._found[step] = (total, float(drawn.max()) / self._lengths.expected_max(self._count))
        return self._found[step]

    @cached_property
    def _demand(self) -> Demand | None:
        found = (d for d in self._estimate.tables.demands.values() if d.kind is StageKind.GENERATE)
        return max(found, key=lambda demand: demand.rows, default=None)

    @cached_property
    def _lengths(self) -> Lengths:
        return self._estimate.workload.responses

    @cached_property
    def _tokens(self) -> _Floats:
        return np.array(self._lengths.tokens)

    @cached_property
    def _shares(self) -> _Floats:
        shares = np.array(self._lengths.shares)
        return shares / shares.sum()

    @cached_property
    def _count(self) -> int:
        rows = self._demand.rows if self._demand is not None else 1.0
        return int(max(1, min(_MOST_DRAWN, rows)))
