"""Fit what only whole steps of reinforcement learning show, and say what it is worth on rows left out.

    python scripts/fit_rl.py rl_steps.csv real_steps.csv

Every measurement is a sum of parts that the model knows (seconds of generation, of passes, bytes, tensors, hosts)
times a constant of the software, and of weights on their way, which have none. The sum of
``|log(predicted / measured)|`` is minimised by Nelder and Mead's simplex over the logarithms of the constants, with a
pull towards a start that weighs as much as one row that is off by a twentieth per factor of two. Rows that leave
lengths open have those of the shipped profile ``rl/mathematics``.

The profile ``generic`` is made of those that were fitted on whole steps: of factors the geometric mean, of seconds that
most of them take the mean. What that is worth is shown on the rows of a system by the mean of all others.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rpeg.perf.reshard import num_tensors, routed_parameters
from rpeg.perf.software import Software, software_for
from rpeg.perf.trainer import Trainer
from rpeg.perf.training import training_time
from rpeg.perf.validate import real_steps, rl_plan, rl_steps, rl_sync, rl_trainer
from rpeg.perf.validate.rl_row import run_of, software_of
from rpeg.shapes.columns import shape_from_columns
from rpeg.shapes.parameters import num_parameters

Numbers = npt.NDArray[np.float64]
Record = Mapping[str, str]
_PULL = 0.05
_GB = 1e9


@dataclass(frozen=True)
class Sample:
    """One measurement as a sum of parts."""

    parts: Mapping[str, float]
    measured: float
    group: str
    """What is left out together."""
    fixed: float = 0.0
    """What comes on top and has no constant to fit: weights on their way."""


@dataclass(frozen=True)
class Fit:
    """Constants by name, and errors in percent."""

    constants: Mapping[str, float]
    fitted: float
    left_out: float


def predicted(constants: Mapping[str, float], sample: Sample) -> float:
    """Return the sum of the parts, each times its constant, and of what is fixed."""
    return sample.fixed + sum(constants[name] * amount for name, amount in sample.parts.items())


def fit(samples: Sequence[Sample], start: Mapping[str, float]) -> Fit:
    """Return the constants that fit best, with the error on the samples and on groups left out."""
    constants = fitted(samples, start)
    groups = dict.fromkeys(sample.group for sample in samples)
    left: list[float] = []
    for group in groups:
        others = fitted([sample for sample in samples if sample.group != group], start)
        left += [error_pct(others, sample) for sample in samples if sample.group == group]
    own = [error_pct(constants, sample) for sample in samples]
    return Fit(constants, float(np.mean(own)), float(np.mean(left)))


def error_pct(constants: Mapping[str, float], sample: Sample) -> float:
    """Return the absolute error of one sample in percent."""
    return 100.0 * abs(predicted(constants, sample) / sample.measured - 1.0)


def fitted(samples: Sequence[Sample], start: Mapping[str, float]) -> dict[str, float]:
    """Return the constants that fit best."""
    names, base = list(start), np.log(np.array(list(start.values())))

    def loss(at: Numbers) -> float:
        constants = dict(zip(names, np.exp(base + at), strict=True))
        errors = [abs(np.log(predicted(constants, sample) / sample.measured)) for sample in samples]
        return float(np.sum(errors) + _PULL * np.sum((at / np.log(2.0)) ** 2))

    return dict(zip(names, np.exp(base + simplex(loss, len(names))), strict=True))


def simplex(loss: Callable[[Numbers], float], size: int, rounds: int = 4000) -> Numbers:
    """Return where Nelder and Mead's simplex comes to rest, started at zero."""
    points = [np.zeros(size), *(0.2 * row for row in np.eye(size))]
    values = [loss(point) for point in points]
    for _ in range(rounds):
        order = np.argsort(values)
        points, values = [points[i] for i in order], [values[i] for i in order]
        middle, worst = np.mean(points[:-1], axis=0), points[-1]
        tried = [(loss(point), point) for point in (2 * middle - worst, 3 * middle - 2 * worst, (middle + worst) / 2)]
        best = min(tried, key=lambda pair: pair[0])
        if best[0] < values[-1]:
            values[-1], points[-1] = best
        else:
            points = [points[0], *((points[0] + point) / 2 for point in points[1:])]
            values = [loss(point) for point in points]
    return points[int(np.argmin(values))]


@cache
def plain(name: str) -> Software:
    """Return a software whose constants add nothing: factors of 1, and nothing else that takes time."""
    used = software_for(name)
    names = ("generation_factor", "forward_factor", "training_factor")
    none = ("step_s", "host_s", "forward_row_s", "firing_s", "switch_s")
    publish = replace(used.constants.publish, tensor_s=0.0)
    constants = replace(used.constants, publish=publish, **dict.fromkeys(names, 1.0), **dict.fromkeys(none, 0.0))
    return replace(used, loaded=replace(used.loaded, constants=constants))


def steps_of_nemo(records: Sequence[Record]) -> list[Sample]:
    """Return whole steps of NeMo-RL; of asynchronous ones, what the trainer is busy with."""
    found: list[Sample] = []
    for record in (each for each in records if software_of(each) == "nemo-rl" and each["metric"] == "step_time"):
        run = run_of(record)
        time = rl_plan.run_time(run, plain(run.software))
        stages = time.stages
        passes = sum(stages[name] for name in ("old", "ref", "train", "update") if name in stages)
        parts = {"passes": passes, "step_s": 1.0, "tensor_s": float(num_tensors(run.shape))}
        if run.is_colocated:
            parts["generation"] = stages["gen"]
        busy_s = time.step_s if run.is_colocated else time.trainer_s
        fixed = max(0.0, busy_s - passes - parts.get("generation", 0.0))
        found.append(Sample(parts, float(record["value"]), f"{run.shape.name} {run.is_colocated}", fixed))
    return found


def steps_of_verl(records: Sequence[Record]) -> list[Sample]:
    """Return steps of verl and their stages."""
    found: list[Sample] = []
    for record in (each for each in records if software_of(each) == "verl" and each["unit"] == "s"):
        if rl_sync.is_sync(record["metric"]):
            continue
        run, metric = run_of(record), record["metric"]
        time, rows = rl_plan.run_time(run, plain(run.software)), float(run.prompts * run.group)
        stages = time.stages
        parts = {
            "gen_time": {"generation": stages["gen"]},
            "old_log_prob_time": {"forward": stages["old"], "forward_row_s": rows},
            "update_actor_time": {"training": stages["train"] + stages["update"]},
        }
        every = {name: amount for each in parts.values() for name, amount in each.items()} | {"step_s": 1.0}
        busy_s = sum(stages[name] for name in ("gen", "old", "train", "update"))
        fixed = 0.0 if metric in parts else max(0.0, time.step_s - busy_s)
        found.append(Sample(parts.get(metric, every), float(record["value"]), record["gpus"], fixed))
    return found


def steps_of_real(records: Sequence[Record]) -> list[Sample]:
    """Return steps of ReaL-Heuristic, each once."""
    found: dict[str, Sample] = {}
    for record in (each for each in records if each["metric"] == "step_time"):
        run, _ = real_steps.run_of(record)
        period_s, stages, _ = real_steps.run_time(run, plain("real"))
        passes = sum(seconds for name, seconds in stages.items() if name not in ("gen", "publish"))
        parts = {"generation": stages["gen"], "passes": passes, "step_s": 1.0, "host_s": float(run.system.num_hosts)}
        key = f"{run.actor.name} {run.critic.name} {run.response_tokens}"
        fixed = max(0.0, period_s - passes - stages["gen"])
        found[key] = Sample(parts, float(record["value"]), f"{run.actor.name} {run.critic.name}", fixed)
    return list(found.values())


def trainers(records: Sequence[Record]) -> list[Sample]:
    """Return micro-batches of trainers alone."""
    found: list[Sample] = []
    for record in (each for each in records if each["metric"] == "micro_batch_time"):
        job = rl_trainer.job_of(record)
        shipped = job.software.trainer(job.system)
        used = shipped.constants
        attention_s = micro_batch_s(job, shipped) - micro_batch_s(
            job, replace(shipped, constants=replace(used, attention_factor={"default": 0.0}))
        )
        has_host = job.has_optimizer_on_host and not job.is_adapter
        parts = {
            "attention": attention_s,
            "others": micro_batch_s(job, shipped) - attention_s - used.step_s / 2,
            "step_s": 0.5,
            "logit_ns": 0.0 if job.is_supervised else job.length_tokens * job.shape.vocabulary / _GB,
            "host_s_per_billion": num_parameters(job.shape) / _GB / job.system.num_hosts / 2 * has_host,
        }
        found.append(Sample(parts, float(record["value"]), f"{job.shape.name} {job.length_tokens}"))
    return found


def micro_batch_s(job: rl_trainer.Job, trainer: Trainer) -> float:
    """Return the seconds of one of two micro-batches of a step."""
    rows, is_whole = 2.0 * job.gpus, not job.is_adapter
    return (
        float(training_time(trainer, job.shape, job.layout, rows, job.length_tokens, trains_weights=is_whole).total_s)
        / 2
    )


@cache
def stand_in(**constants: float) -> Software:
    """Return the generic software with some of its constants changed."""
    used = software_for("generic")
    return replace(used, loaded=replace(used.loaded, constants=replace(used.constants, **constants)))


def generic(fits: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the middle of systems; one that has the same factor for all passes has it for both kinds."""
    factors = {"generation_factor": "generation", "forward_factor": "forward", "training_factor": "training"}
    found: dict[str, float] = {}
    for field, name in factors.items():
        values = [each.get(name, each.get("passes", 1.0)) for each in fits.values()]
        found[field] = float(np.exp(np.mean(np.log(values))))
    for field in ("step_s", "forward_row_s", "host_s"):
        found[field] = _shared([each.get(field, 0.0) for each in fits.values()])
    return found


def _shared(seconds: Sequence[float]) -> float:
    """Return the mean of seconds that most systems take, else 0: what grows with rows or hosts has no end."""
    return float(np.mean(seconds)) if 2 * sum(each > 0.0 for each in seconds) > len(seconds) else 0.0


def report_generic(fits: Mapping[str, Mapping[str, float]], records: Sequence[Record]) -> None:
    """Print the middle of systems, and on the steps and stages of each what the middle of the others is worth."""
    print("generic:", ", ".join(f"{name} {value:.3g}" for name, value in generic(fits).items()))
    for name in fits:
        used = stand_in(**generic({other: found for other, found in fits.items() if other != name}))
        rows = [
            each
            for each in records
            if software_of(each) == name
            and (each["metric"] == "step_time" or (name == "verl" and each["unit"] == "s"))
            and not rl_sync.is_sync(each["metric"])
        ]
        errors = [abs(rl_steps.price(each, used)[0].predicted / float(each["value"]) - 1.0) for each in rows]
        if errors:
            print(f"{name} as generic: mean {100 * np.mean(errors):.1f} %, median {100 * np.median(errors):.1f} %")


def pushes(records: Sequence[Record], profile: str) -> list[Sample]:
    """Return times of weights on their way, by gigabytes."""
    found: list[Sample] = []
    for record in (each for each in records if rl_sync.is_sync(each["metric"]) and rl_sync.profile_of(each) == profile):
        shape = shape_from_columns(record)
        assert shape is not None, record
        routed = 2.0 * routed_parameters(shape) / _GB
        dense = 2.0 * num_parameters(shape) / _GB - routed
        crossing = (dense + routed) * (rl_sync.is_crossing(record) and profile != "verl")
        parts = {"start_s": 1.0, "dense_s_per_gb": dense, "routed_s_per_gb": routed, "crossing_s_per_gb": crossing}
        found.append(Sample(parts, float(record["value"]), record["model"]))
    return found


def main(paths: Sequence[str]) -> None:
    """Fit everything there are rows for."""
    records: list[Record] = []
    for path in paths:
        with Path(path).open(encoding="utf-8") as file:
            records += list(csv.DictReader(file))
    real = [each for each in records if each.get("actor_model")]
    rest = [each for each in records if not each.get("actor_model")]
    push = {"start_s": 1.0, "dense_s_per_gb": 0.25, "routed_s_per_gb": 0.5, "crossing_s_per_gb": 1.2}
    trained = {"attention": 1.0, "others": 1.0, "step_s": 0.1, "logit_ns": 0.2, "host_s_per_billion": 1.0}
    verl = {"generation": 1.0, "forward": 1.2, "forward_row_s": 2.5e-3, "training": 1.0, "step_s": 10.0}
    fits: dict[str, Mapping[str, float]] = {}
    for title, samples, start in (
        ("nemo-rl steps", steps_of_nemo(rest), {"generation": 1.2, "passes": 1.2, "step_s": 10.0, "tensor_s": 1.5e-3}),
        ("verl steps", steps_of_verl(rest), verl),
        ("real steps", steps_of_real(real), {"generation": 1.0, "passes": 1.1, "step_s": 0.5, "host_s": 0.3}),
        ("prime-rl trainer", trainers(rest), trained),
        ("verl publish", pushes(rest, "verl"), push),
        ("verl-one-step-off publish", pushes(rest, "verl-one-step-off"), push),
    ):
        if samples:
            found = fit(samples, start)
            shown = ", ".join(f"{name} {value:.3g}" for name, value in found.constants.items())
            print(f"{title}: {shown}; error {found.fitted:.1f} %, left out {found.left_out:.1f} %")
            if title.endswith(" steps"):
                fits[title.removesuffix(" steps")] = found.constants
    report_generic(fits, rest)


if __name__ == "__main__":
    main(sys.argv[1:])
