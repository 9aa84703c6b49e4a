"""Baselines beside measurements of the systems they stand for: the plan that was run, and the one they would choose.

A generous baseline should be as fast as what was measured or faster; how much faster says how generous it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.errors import InvalidInput
from rpeg.graph.contract import Kl, Logprob
from rpeg.perf.lengths import constant
from rpeg.perf.software import software_for
from rpeg.perf.validate import real_steps, rl_plan, rl_row
from rpeg.perf.validate.measurements import Record, read_measurements
from rpeg.perf.validate.rl_text import number, text_of
from rpeg.perf.validate.row import Skip
from rpeg.perf.workload import Workload
from rpeg.search.baselines.baseline import Baseline
from rpeg.search.baselines.bench import Bench
from rpeg.search.baselines.real import HEURISTIC
from rpeg.search.baselines.verl import SYNC
from rpeg.search.case import Case
from rpeg.search.find import Goal

__all__ = ["Held", "held"]


@dataclass(frozen=True, slots=True)
class Held:
    """A measured step with what the model says of it."""

    baseline: str
    what: str
    """Models, batch and lengths."""
    gpus: int
    measured_s: float
    known_s: float
    """Of the plan that was run, as far as the row tells it."""
    best_s: float | None
    """Of the best plan that the baseline may have; None where it has none."""


def held(files: Sequence[Path]) -> tuple[tuple[Held, ...], int]:
    """Return measured steps of ReaL's heuristic and of synchronous verl, and how many other rows there were.

    Raises:
        DataError: when a file cannot be read.
    """
    found: dict[tuple[object, ...], Held] = {}
    others = 0
    for record in (record for path in files for record in read_measurements(path).records):
        try:
            each = _held(record)
        except Skip:
            others += 1
            continue
        found.setdefault((each.baseline, each.what, each.gpus), each)  # the same run may stand in several sources
    return tuple(found.values()), others


def _held(record: Record) -> Held:
    values = record.values
    text = text_of(values, "system", "plan", "mode")
    if values.get("metric", "") != "step_time" or record.fault:
        raise Skip("no whole step")
    if "real-heuristic" in text:
        return _of_real(values)
    if "verl" in text and "sync colocated" in text:
        return _of_verl(values)
    raise Skip("of no baseline")


def _of_real(values: Mapping[str, str]) -> Held:
    run, _ = real_steps.run_of(values)
    shapes = {"actor": run.actor, "ref": run.actor, "critic": run.critic, "rm": run.critic}
    load = Workload(shapes, constant(run.prompt_tokens), constant(run.response_tokens), run.dtype)
    graph = ppo(run.rows, mini_batches=run.mini_batches)
    case = Case(graph, load, run.system, Goal(), software_for("real"))
    what = f"PPO, {run.actor.name} and {run.critic.name}, {run.rows} rows, {run.response_tokens:g} tokens"
    known_s, _, _ = real_steps.run_time(run)
    return Held(
        HEURISTIC.name, what, run.system.num_devices, number(values, "value"), known_s, _best_s(HEURISTIC, case)
    )


def _of_verl(values: Mapping[str, str]) -> Held:
    run = rl_row.run_of(values)
    graph = grpo(
        run.prompts,
        run.group,
        updates_per_step=run.updates,
        kl=Kl.LOSS if run.has_reference else Kl.NONE,
        old_logprob=Logprob.RECOMPUTED if run.recomputes_logprobs else Logprob.RECORDED,
    )
    shapes = dict.fromkeys((model.name for model in graph.models), run.shape)
    load = Workload(shapes, run.prompt_lengths, run.response_lengths)
    case = Case(graph, load, run.system, Goal(), software_for(run.software))
    what = f"{values.get('algorithm', '')}, {run.shape.name}, {run.prompts} x {run.group} rows, lengths assumed"
    known_s = rl_plan.run_time(run).step_s
    return Held(SYNC.name, what, run.num_devices, number(values, "value"), known_s, _best_s(SYNC, case))


def _best_s(baseline: Baseline, case: Case) -> float | None:
    try:
        return baseline.plan(case, Bench(case.market())).step_s
    except InvalidInput:
        return None
