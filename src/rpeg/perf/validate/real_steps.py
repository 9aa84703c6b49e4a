"""Rows of PPO steps of ReaL-Heuristic: all calls on all devices, tensors split within nodes, a pipeline over them.

The plan is known, the device is not: an A100 or H800 with 80 GB. So the profile ``real`` holds, besides constants of
the software, how fast the unnamed device is beside an A100.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from rpeg.algorithms.ppo import ppo
from rpeg.errors import InvalidInput
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.hardware.topology import System
from rpeg.perf.estimate import Estimate
from rpeg.perf.lengths import constant
from rpeg.perf.software import Software, software_for
from rpeg.perf.validate.misfit import misfit
from rpeg.perf.validate.rl_row import machine_of
from rpeg.perf.validate.rl_text import number, text_of
from rpeg.perf.validate.row import Priced, Skip
from rpeg.perf.workload import Workload
from rpeg.plan.events import cycle_ratio
from rpeg.plan.firings import num_events
from rpeg.plan.fixed import draw_groups
from rpeg.plan.groups import DeviceGroup, GroupLayout
from rpeg.plan.lower import lower
from rpeg.plan.plan import Home, Pipeline, Plan, Recompute, Residency
from rpeg.shapes.columns import shape_from_columns
from rpeg.shapes.model import ModelShape

__all__ = ["COLUMNS", "RealRun", "price", "run_of", "run_time"]

COLUMNS = frozenset({"gpus", "actor_model", "critic_model", "batch", "prompt_len", "gen_len", "metric", "value"})
_SET = "ReaL-Heuristic steps"
_STAGES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"actor_?gen|generat|rollout", ("gen",)),
    (r"critic_?train|train_?critic", ("train_critic", "update_critic")),
    (r"actor_?train|train_?actor", ("train_actor", "update_actor")),
    (r"critic_?inf|value", ("value",)),
    (r"ref_?inf|ref", ("ref",)),
    (r"rew", ("reward",)),
)
_MICRO_BATCHES_PER_STAGE = 2


@dataclass(frozen=True, slots=True)
class RealRun:
    """A step as a row tells of it."""

    system: System
    actor: ModelShape
    critic: ModelShape
    tp: int
    pp: int
    rows: int
    prompt_tokens: float
    response_tokens: float
    mini_batches: int
    dtype: str


def price(record: Mapping[str, str]) -> list[Priced]:
    """Return the price of a step time, of the time of one of its calls, or of the operations per second.

    Raises:
        Skip: when a model or the metric is unknown.
    """
    if number(record, "value") <= 0:
        raise Skip("no value", set=_SET)
    try:
        run, assumed = run_of(record)
        step_s, stages, extrapolates = run_time(run)
    except InvalidInput as error:
        raise Skip(error.faults[0].what, set=_SET) from error
    peak = dict(run.system.device.peak_flops)["bfloat16"] * float(number(record, "gpus"))
    ideal_s, text = _counted_flops(run) / peak, text_of(record, "metric", "stage_or_step")
    found, ideal, better = step_s, ideal_s, "low"
    if re.search(r"throughput|flop", record.get("metric", "").lower()):
        found, ideal, better = _counted_flops(run) / step_s / 1e15, peak / 1e15, "high"
    elif "step" not in text:
        names = next((names for pattern, names in _STAGES if re.search(pattern, text)), None)
        if names is None:
            raise Skip(f"unknown metric {record.get('metric', '')!r}", set=_SET)
        found = sum(stages[name] for name in names)
    name = f"{run.actor.name} with {run.critic.name}"
    said = ", ".join(filter(None, (assumed, extrapolates)))
    return [
        Priced(
            _SET, record.get("source", ""), name, number(record, "value"), found, ideal, record.get("unit", ""),
            better=better, extrapolates=said,
        )
    ]  # fmt: skip


def run_of(record: Mapping[str, str]) -> tuple[RealRun, str]:
    """Return the run of a row, and what had to be assumed.

    Raises:
        Skip: when a model is unknown or does not allow its layout, or there is no batch or length.
    """
    shapes = [shape_from_columns({"model": record.get(key, "")}) for key in ("actor_model", "critic_model")]
    if shapes[0] is None or shapes[1] is None:
        raise Skip(f"unknown model {record.get('actor_model', '')!r} or {record.get('critic_model', '')!r}", set=_SET)
    gpus = int(number(record, "gpus"))
    system, assumed = machine_of(record, gpus)
    plan, notes = text_of(record, "plan"), text_of(record, "notes")
    per_node = min(gpus, system.levels[-1].count)
    tp = int(match[1]) if (match := re.search(r"tp\s*=?\s*(\d+)", plan)) else per_node
    pp = int(match[1]) if (match := re.search(r"pp\s*=?\s*(\d+)", plan)) else max(1, gpus // tp)
    mini = int(match[1]) if (match := re.search(r"(\d+) (?:ppo )?mini", notes)) else 4
    rows = int(number(record, "batch"))
    if not rows or not number(record, "gen_len"):
        raise Skip("no batch or no length", set=_SET)
    ranks = max(1, gpus // (tp * pp))
    reason = misfit(shapes[0], tp=tp, pp=pp) or misfit(shapes[1], tp=tp, pp=pp)
    if not reason and rows // mini < ranks:
        reason = f"{rows} rows in {mini} mini-batches for {ranks} data parallel ranks"
    if reason:
        raise Skip(reason, set=_SET)
    prompt = number(record, "prompt_len") or 128.0
    run = RealRun(system, shapes[0], shapes[1], tp, pp, rows, prompt, number(record, "gen_len"), mini, "float16")
    return run, assumed


@lru_cache(maxsize=256)
def run_time(run: RealRun, software: Software | None = None) -> tuple[float, dict[str, float], str]:
    """Return the seconds of a step, of its calls, and what extrapolates; with other constants if given."""
    graph = ppo(run.rows, mini_batches=run.mini_batches)
    shapes = {"actor": run.actor, "ref": run.actor, "critic": run.critic, "rm": run.critic}
    workload = Workload(shapes, constant(run.prompt_tokens), constant(run.response_tokens), run.dtype)
    plan = _plan(run, graph)
    estimate = Estimate(graph, plan, workload, run.system, software or software_for("real"))
    period, _ = cycle_ratio(lower(graph, plan, estimate))
    stages = dict[str, float]()
    for stage in graph.stages:
        found = estimate.seconds(stage.name, plan.binding_of[stage.name])
        stages[stage.name] = found.occupancy_s * num_events(graph, stage.name) + found.tail_s
    return float(period), stages, estimate.extrapolates


def _plan(run: RealRun, graph: Graph) -> Plan:
    everything = ".".join(level.name for level in run.system.levels)
    kinds = (StageKind.FORWARD, StageKind.TRAIN)
    passes = tuple(stage.name for stage in graph.stages if stage.kind in kinds)
    rows = max(1, run.rows // run.mini_batches // (_MICRO_BATCHES_PER_STAGE * run.pp))
    layout = GroupLayout(
        tp=run.tp,
        pp=run.pp,
        zero=1,
        micro_rows=rows,
        recompute=Recompute.FULL,
        pipeline=Pipeline.ONE_F_ONE_B if run.pp > 1 else None,
    )
    groups = [
        DeviceGroup("gen", everything, ("gen",), GroupLayout(tp=run.tp, pp=run.pp, micro_rows=run.rows)),
        DeviceGroup("train", everything, passes, layout),
    ]
    away = [
        Residency(f"{role}.weights", Home.HOST, ((stage, stage),)) for role, stage in (("rm", "reward"), ("ref", "ref"))
    ]
    return draw_groups(graph, run.system, groups, dtype=run.dtype, residencies=away)


def _counted_flops(run: RealRun) -> float:
    """Return the operations that the source counts: of each model a pass, another or writing, and four of training."""
    length = run.prompt_tokens + run.response_tokens
    return run.rows * length * 6.0 * sum(_counted_flops_per_token(shape, length) for shape in (run.actor, run.critic))


def _counted_flops_per_token(shape: ModelShape, length_tokens: float) -> float:
    """Return those of a pass: as if no heads were shared, and every token saw all others."""
    block = 4.0 * shape.hidden * shape.heads * shape.head_size + 3.0 * shape.hidden * shape.ffn
    attention = 2.0 * shape.heads * shape.head_size * length_tokens
    return 2.0 * (shape.layers * (block + attention) + shape.hidden * shape.vocabulary)
