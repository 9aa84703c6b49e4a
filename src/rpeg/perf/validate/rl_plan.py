"""A run of reinforcement learning as a graph with a plan, priced as any other: its stages and its period."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import lcm

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.graph.contract import Kl, Logprob
from rpeg.graph.data import DataKind
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.perf.estimate import Estimate
from rpeg.perf.software import Software, software_for
from rpeg.perf.validate.rl_layouts import SideLayout
from rpeg.perf.validate.rl_row import RlRun
from rpeg.perf.workload import Workload
from rpeg.plan.events import cycle_ratio
from rpeg.plan.firings import num_events
from rpeg.plan.fixed import draw_groups
from rpeg.plan.groups import DeviceGroup, GroupLayout
from rpeg.plan.lower import lower
from rpeg.plan.plan import Balance, Home, Method, Plan, Recompute, Residency, Transfer
from rpeg.transforms.in_flight import InFlight, KvPolicy

__all__ = ["RunTime", "run_time"]

_ROLES = ("actor", "critic", "ref", "rm")


@dataclass(frozen=True, slots=True)
class RunTime:
    """Seconds of a step and of its stages."""

    step_s: float
    stages: Mapping[str, float]
    """By stage, all its firings of a step, the last one to the end of its tail."""
    trainer_s: float
    """Of the step, what the devices that train are busy."""
    rows: float
    """Samples of a step."""
    tokens_per_row: float
    extrapolates: str


@lru_cache(maxsize=512)
def run_time(run: RlRun, software: Software | None = None) -> RunTime:
    """Return what the model says of a run, with the constants of its own software unless others are given."""
    prompts = _divisible(run)
    graph, workload = _graph(run, prompts), _workload(run)
    plan = _plan(run, graph)
    estimate = Estimate(graph, plan, workload, run.system, software or software_for(run.software))
    period, _ = cycle_ratio(lower(graph, plan, estimate))
    scale = run.prompts / prompts
    stages = {stage.name: scale * _stage_s(graph, plan, estimate, stage.name) for stage in graph.stages}
    step_s = scale * float(period)
    rows = float(run.prompts * run.group)
    trainer_s = sum(stages[stage.name] for stage in graph.stages if plan.mesh_of(stage.name) == "train")
    return RunTime(step_s, stages, trainer_s, rows, workload.samples.mean_tokens, estimate.extrapolates)


def _stage_s(graph: Graph, plan: Plan, estimate: Estimate, stage: str) -> float:
    found = estimate.seconds(stage, plan.binding_of[stage])
    return found.occupancy_s * num_events(graph, stage) + found.tail_s


def _divisible(run: RlRun) -> int:
    """Return the prompts nearest to those of the run that all ranks and updates divide."""
    gen_ranks = run.gen_devices // (run.gen.tp * run.gen.pp)
    train_ranks = run.train_devices // (run.train.tp * run.train.pp * run.train.cp)
    least = lcm(max(1, gen_ranks), max(1, train_ranks) * run.updates)
    step = lcm(least, run.group) // run.group
    step = lcm(step, run.updates)
    return max(step, round(run.prompts / step) * step)


def _graph(run: RlRun, prompts: int) -> Graph:
    if run.algorithm == "ppo":
        return ppo(prompts, run.group, run.staleness, mini_batches=run.updates)
    graph = grpo(
        prompts,
        run.group,
        run.staleness,
        updates_per_step=run.updates,
        kl=Kl.LOSS if run.has_reference else Kl.NONE,
        old_logprob=Logprob.RECOMPUTED if run.recomputes_logprobs else Logprob.RECORDED,
    )
    if run.is_in_flight and run.staleness:
        graph = InFlight("gen", KvPolicy.KEEP).apply(graph, explore=True)
    return graph


def _workload(run: RlRun) -> Workload:
    return Workload(dict.fromkeys(_ROLES, run.shape), run.prompt_lengths, run.response_lengths)


def _plan(run: RlRun, graph: Graph) -> Plan:
    train_where, gen_where = _regions(run)
    training = tuple(stage.name for stage in graph.stages if stage.kind in (StageKind.FORWARD, StageKind.TRAIN))
    sampling = tuple(stage.name for stage in graph.stages if stage.kind is StageKind.GENERATE)
    mean = run.prompt_lengths.mean_tokens + run.response_lengths.mean_tokens
    micro_rows = max(1, int(run.budget_tokens * run.train.cp / mean))
    groups = [
        DeviceGroup("gen", gen_where, sampling, _layout(run.gen, 1)),
        DeviceGroup("train", train_where, training, _layout(run.train, micro_rows)),
    ]
    pulls = [stage.name for stage in graph.stages if stage.kind is StageKind.PULL]
    sent = [Transfer(read.data, name, Method.GATHER) for name in pulls for read in graph.reads(name)]
    sent += [Transfer("actor.rollout", name, Method.GATHER) for name in sampling if not pulls]
    plan = draw_groups(graph, run.system, groups, transfers=sent)
    # A whole batch is dealt by tokens; the mini-batches that are cut from it are as they come.
    is_cut = {stage.name for stage in graph.stages if stage.kind is StageKind.TRAIN and run.updates > 1}
    bindings = tuple(replace(b, balance=Balance.ROWS) if b.stage in is_cut else b for b in plan.bindings)
    return replace(plan, bindings=bindings, residencies=tuple(_residencies(graph, plan)) if run.is_colocated else ())


def _residencies(graph: Graph, plan: Plan) -> Iterator[Residency]:
    """Yield that all weights but those that are sampled from rest on the host while devices sample."""
    (slots,) = [slots for _, slots in plan.slots_of("train")]
    for data in graph.data:
        users = {access.stage for access in graph.accesses if access.data == data.name}
        here = [slot.stage for slot in slots if slot.stage in users and plan.mesh_of(slot.stage) == "train"]
        if data.model is not None and data.kind is not DataKind.STREAM and here:
            yield Residency(data.name, Home.HOST, ((here[0], here[-1]),))


def _layout(side: SideLayout, micro_rows: int) -> GroupLayout:
    return GroupLayout(
        tp=side.tp,
        pp=side.pp,
        cp=side.cp,
        ep=side.ep,
        zero=side.zero,
        micro_rows=micro_rows,
        recompute=Recompute.FULL,
    )


def _regions(run: RlRun) -> tuple[str, str]:
    """Return the regions of both sides: the trainer has the first devices, the generator the last."""
    system, (nodes, devices) = run.system, run.system.levels[-2:]
    outer = [f"{level.name}[0]" for level in system.levels[:-2]]
    if run.is_colocated:
        everything = ".".join(level.name for level in system.levels)
        return everything, everything
    per_node = devices.count
    if run.train_devices % per_node or system.num_hosts == 1:
        first = f"{nodes.name}[0].{devices.name}[0:{run.train_devices}]"
        last = f"{nodes.name}[0].{devices.name}[{run.train_devices}:{run.train_devices + run.gen_devices}]"
    else:
        cut = run.train_devices // per_node
        first, last = f"{nodes.name}[0:{cut}]", f"{nodes.name}[{cut}:{cut + run.gen_devices // per_node}]"
    return ".".join([*outer, first]), ".".join([*outer, last])
