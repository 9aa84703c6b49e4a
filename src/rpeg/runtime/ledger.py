"""The books of a run: what every step did, row by row accounted for, as one metrics object per step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from rpeg.errors import RunFault
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import waited
from rpeg.graph.stage import Stage, StageKind
from rpeg.observe.measured import MeasuredCosts
from rpeg.observe.trace import Span
from rpeg.plan.events import cycle_ratio
from rpeg.plan.firings import row_parts
from rpeg.plan.lower import lower
from rpeg.plan.plan import Plan
from rpeg.runtime.task import Outcome

__all__ = ["Ledger"]

_SUMMED = ("rows/", "reward/unscorable")
"""Metrics with these prefixes are counts and add up over firings."""


class _Step:
    """What has been heard of one step so far."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.outcomes: list[tuple[Stage | None, Outcome]] = []
        """With the stage; a move of data has none."""


class Ledger:
    """Collects spans and outcomes; closes a step with its metrics, counters and samples."""

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        counters: Mapping[str, int],
        ahead: Iterable[Mapping[str, Any]] = (),
        unread: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        """Go on from ``counters``, all 0 at the beginning of a run, and from what `ahead` and `unread` returned."""
        self._graph, self._plan = graph, plan
        # A generator that judges in rounds has sampled more than is compared in the end.
        has_rounds = any(stage.body is not None and stage.body.index == "round" for stage in graph.stages)
        self._counted = StageKind.GENERATE if has_rounds else StageKind.ADVANTAGE
        self.counters = {name: counters.get(name, 0) for name in ("steps", "updates", "prompts", "samples", "tokens")}
        self._steps: dict[int, _Step] = defaultdict(_Step)
        # Where rows wait before they are judged, so do the samples to read, for the step that has their advantages.
        self._waited = {stage.name: waited(graph, stage.name) for stage in graph.stages}
        self._longest = max((self._waited[s.name] for s in graph.stages if s.kind is StageKind.ADVANTAGE), default=0)
        self._unread: dict[int, list[dict[str, object]]] = defaultdict(list)
        for record in unread:
            self._unread[record["step"]].append(dict(record))
        for entry in ahead:
            self.add(Span.from_row(entry["span"]), _outcome(entry))
        self.costs = MeasuredCosts()
        self._predicted_s: float | None = None
        self._closed_s = time.monotonic()

    def ahead(self) -> list[Mapping[str, Any]]:
        """Return what is known of steps that are not closed, as plain values for a checkpoint."""
        firings = [pair for step in self._steps.values() for pair in zip(step.spans, step.outcomes, strict=True)]
        return [_entry(span, outcome) for span, (_, outcome) in firings]

    def unread(self) -> list[Mapping[str, object]]:
        """Return samples to read of steps that are closed, whose rewards or advantages are still to come."""
        return [record for records in self._unread.values() for record in records]

    def add(self, span: Span, outcome: Outcome) -> None:
        """Enter one firing; rows that are swept over again have been counted.

        Raises:
            RunFault: when it is the last that judges samples of its step, and no sample of it has a reward.
        """
        step, stage = self._steps[span.step], self._graph.stage_of.get(span.stage)
        if stage is not None and stage.kind is StageKind.TRAIN and span.firing >= row_parts(self._graph, span.stage):
            metrics = {name: value for name, value in outcome.metrics.items() if not name.startswith(_SUMMED)}
            outcome = replace(outcome, metrics=metrics, num_tokens=0)
        step.spans.append(span)
        step.outcomes.append((stage, outcome))
        if outcome.rewards:
            self._check_scored(span.step, step)

    def _check_scored(self, number: int, step: _Step) -> None:
        """Refuse to go on once all samples of a step are judged and none has a reward; a firing may well have none."""
        judged = [outcome for _, outcome in step.outcomes if outcome.rewards]
        rewards = [reward for outcome in judged for reward in outcome.rewards]
        if len(rewards) == self._graph.batch_rows and not any(map(isfinite, rewards)):
            reasons = dict.fromkeys(reason for outcome in judged for reason in outcome.unscored)
            why = "; ".join(reasons) or "every reward function returned None"
            raise RunFault(f"no answer of step {number} could be scored: {why}")

    def close(self, number: int) -> tuple[dict[str, object], list[dict[str, object]], list[Span]]:
        """Close a step whose events have all fired; return its metrics, its samples to read, and its spans."""
        step = self._steps.pop(number)
        now_s = time.monotonic()
        step_s, self._closed_s = now_s - self._closed_s, now_s
        of_stages = [(stage, outcome) for stage, outcome in step.outcomes if stage is not None]
        counted = [o for stage, o in of_stages if stage.kind is self._counted]
        # A critic of its own trains on the same tokens, which are counted once.
        trained = [o for stage, o in of_stages if stage.kind is StageKind.TRAIN and "logprob" in stage.heads]
        tokens = sum(outcome.num_tokens for outcome in trained)
        self._count(sum(outcome.num_rows for outcome in counted), tokens)
        metrics: dict[str, object] = {"step": number}
        metrics |= {f"counters/{name}": total for name, total in self.counters.items()}
        metrics |= _merged([outcome.metrics for _, outcome in step.outcomes])
        metrics |= {
            "time/step_s": step_s,
            "time/predicted_step_s": self._predicted_s,
            "perf/tokens_per_s": tokens / step_s,
        }
        metrics |= _seconds_by_stage(step.spans)
        self._predict_next(number, step.spans)
        return metrics, self._samples(number, step), step.spans

    def _samples(self, number: int, step: _Step) -> list[dict[str, object]]:
        """Return the samples to read whose rewards and advantages are all there now, and those held out."""
        records = [record for _, outcome in step.outcomes for record in outcome.records]
        self._unread[number] += [dict(record) for record in records if not record["held_out"]]
        self._enter(number, "reward", [(stage, outcome.rewards) for stage, outcome in step.outcomes])
        self._enter(number, "advantage", [(stage, outcome.worth) for stage, outcome in step.outcomes])
        done = self._unread.pop(number - self._longest, [])
        return [*done, *(dict(record) for record in records if record["held_out"])]

    def _enter(self, number: int, key: str, told: Sequence[tuple[Stage | None, Sequence[float]]]) -> None:
        """Put what stages said in a step beside the samples that it was said of."""
        values: dict[int, list[float]] = defaultdict(list)
        for stage, found in told:
            if stage is not None and found:
                values[number - self._waited[stage.name]] += found
        for at, found in values.items():
            for record, value in zip(self._unread.get(at, ()), found, strict=False):  # some are read, all are judged
                record[key] = value

    def _count(self, samples: int, tokens: int) -> None:
        added = {
            "steps": 1,
            "updates": self._graph.contract.updates_per_step,
            "prompts": samples // self._graph.group_size,
            "samples": samples,
            "tokens": tokens,
        }
        self.counters = {name: total + added[name] for name, total in self.counters.items()}

    def _predict_next(self, number: int, spans: list[Span]) -> None:
        """Price the plan with what was measured: often while little is known, later every 16 steps (it takes 5 ms)."""
        for span in spans:
            is_stage = span.stage in self._graph.stage_of
            # Of a stage that acts in every n-th step, per step.
            share = float(min(1, self._graph.firings(span.stage))) if is_stage else 1.0
            self.costs.add(span.stage, span.duration_s * share)
        if number.bit_count() == 1 or number % 16 == 0:
            period_s, _ = cycle_ratio(lower(self._graph, self._plan, self.costs))
            self._predicted_s = float(period_s)


def _entry(span: Span, outcome: Outcome) -> Mapping[str, Any]:
    return {
        "span": span.as_row(),
        "metrics": dict(outcome.metrics),
        "records": list(outcome.records),
        "num_rows": outcome.num_rows,
        "num_tokens": outcome.num_tokens,
        "rewards": list(outcome.rewards),
        "unscored": list(outcome.unscored),
        "worth": list(outcome.worth),
    }


def _outcome(entry: Mapping[str, Any]) -> Outcome:
    return Outcome(
        metrics=entry["metrics"],
        records=tuple(entry["records"]),
        rewards=_numbers(entry["rewards"]),
        unscored=tuple(entry.get("unscored", ())),
        worth=_numbers(entry["worth"]),
        num_rows=entry["num_rows"],
        num_tokens=entry["num_tokens"],
    )


def _numbers(values: Iterable[float | None]) -> tuple[float, ...]:
    """Return numbers as they were before JSON, which has no NaN."""
    return tuple(float("nan") if value is None else value for value in values)


def _merged(parts: list[Mapping[str, float]]) -> dict[str, float]:
    """Return one value per metric: counts add up, maxima stay the largest, the rest is averaged over firings."""
    found: dict[str, list[float]] = defaultdict(list)
    for part in parts:
        for name, value in part.items():
            found[name].append(value)
    return {name: _merge(name, values) for name, values in found.items()}


def _merge(name: str, values: list[float]) -> float:
    if name.startswith(_SUMMED):
        return sum(values)
    if name.endswith(("max", "max_s")):
        return max(values)
    return min(values) if name.endswith("min") else sum(values) / len(values)


def _seconds_by_stage(spans: list[Span]) -> dict[str, float]:
    seconds: dict[str, float] = defaultdict(float)
    for span in spans:
        seconds[f"time/{span.stage}_s"] += span.duration_s
    return dict(seconds)
