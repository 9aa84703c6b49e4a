"""Fit the constants of training frameworks on a table of training runs, and say what they are worth on rows left out.

    python scripts/fit_training.py training.csv                      # all frameworks
    python scripts/fit_training.py training.csv nanotron llm-foundry # some
    python scripts/fit_training.py training.csv --check              # only errors, with the shipped constants

Few constants per framework are free; the others stay as they are in ``src/rpeg/perf/profiles/training``, and so do
those of devices and links. The sum of ``|log(predicted / measured)|`` is minimised by Nelder and Mead's simplex over
the logarithms, with a pull towards the shipped values that weighs as much as one row that is off by a tenth per factor
of two.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

import rpeg.perf.stage_work as stage_work
from rpeg.perf.trainer import TrainingConstants, trainer_for
from rpeg.perf.training import training_time
from rpeg.perf.validate.training import measured_s, profile_of
from rpeg.perf.validate.training_run import Run, run_of

FREE = {
    "llm-foundry": (
        "product_factor.default",
        "attention_factor.default",
        "attention_factor.h100",
        "elementwise_factor",
        "interference",
    ),
    "megatron-2021": ("product_factor.default", "attention_factor.default"),
    "megatron-core": ("product_factor.default",),
    "nemo-24": ("product_factor.float8", "elementwise_factor", "tp_exposed"),
    "nanotron": ("product_factor.default",),
    "megatron-bridge": ("product_factor.float8", "product_factor.blackwell"),
    "megatron-bridge-26.04": ("product_factor.float8", "product_factor.blackwell", "elementwise_factor", "tp_exposed"),
}
FREE_OF_EXPERTS = ("expert_factor.default", "expert_factor.float8", "expert_s", "ep_exposed")
_PULL = 0.1

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """One measurement."""

    record: dict[str, str]
    run: Run
    measured_s: float


def error(row: Row, constants: TrainingConstants, profile: str) -> float:
    """Return the logarithm of predicted over measured seconds."""
    shipped = trainer_for(row.run.system, profile)
    trainer = replace(shipped, constants=constants)
    run = row.run
    time = training_time(trainer, run.shape, run.layout, run.rows, run.length_tokens, trains_weights=not run.is_adapter)
    return float(np.log(time.total_s / row.measured_s))


def fit(rows: Sequence[Row], profile: str, free: Sequence[str]) -> TrainingConstants:
    """Return the constants with those that are free fitted."""
    start = trainer_for(rows[0].run.system, profile).constants

    def loss(at: Numbers) -> float:
        found = scaled(start, free, at)
        pull = _PULL * float(np.sum((at / np.log(2.0)) ** 2))
        return pull + sum(abs(error(row, found, profile)) for row in rows)

    return scaled(start, free, simplex(loss, np.zeros(len(free)), 0.15, 40 * len(free)))


def scaled(start: TrainingConstants, free: Sequence[str], at: Numbers) -> TrainingConstants:
    """Return constants of which the free ones are multiplied by ``exp(at)``."""
    found = start
    for name, x in zip(free, at, strict=True):
        field, _, key = name.partition(".")
        value = value_of(start, name) * float(np.exp(x))
        found = replace(found, **{field: {**getattr(found, field), key: value} if key else value})
    return found


def value_of(constants: TrainingConstants, name: str) -> float:
    """Return the constant of a name, ``attention_factor.h100`` for one in a table."""
    field, _, key = name.partition(".")
    return getattr(constants, field)[key] if key else getattr(constants, field)


def simplex(loss: Callable[[Numbers], float], start: Numbers, size: float, most: int) -> Numbers:
    """Return where ``loss`` is smallest, by Nelder and Mead (1965)."""
    points = [start, *(start + size * step for step in np.eye(len(start)))]
    values = [loss(point) for point in points]
    for _ in range(most):
        order = np.argsort(values)
        points, values = [points[i] for i in order], [values[i] for i in order]
        if values[-1] - values[0] < 1e-4:
            break
        middle = np.mean(points[:-1], axis=0)
        step = middle - points[-1]
        reflected, value = middle + step, loss(middle + step)
        if value < values[0]:
            further, more = middle + 2 * step, loss(middle + 2 * step)
            reflected, value = (further, more) if more < value else (reflected, value)
        elif value >= values[-2]:
            reflected = middle - 0.5 * step if value >= values[-1] else middle + 0.5 * step
            value = loss(reflected)
        if value < values[-1]:
            points[-1], values[-1] = reflected, value
        else:
            points = [points[0], *(points[0] + 0.5 * (point - points[0]) for point in points[1:])]
            values = [values[0], *(loss(point) for point in points[1:])]
    return points[int(np.argmin(values))]


def left_out(rows: Sequence[Row], profile: str, free: Sequence[str], key: Callable[[Row], str]) -> list[float]:
    """Return the errors of rows by constants fitted without all rows of the same key."""
    keys, found = sorted({key(row) for row in rows}), list[float]()
    for each in keys:
        kept = [row for row in rows if key(row) != each]
        if kept:
            constants = fit(kept, profile, free)
            found += [error(row, constants, profile) for row in rows if key(row) == each]
    return found


def summary(errors: Sequence[float]) -> str:
    """Return mean and median absolute errors of rates in percent."""
    if not errors:
        return "-"
    share = np.abs(np.exp(-np.array(errors)) - 1.0) * 100
    return f"mean {share.mean():.1f} %, median {np.median(share):.1f} % ({len(errors)} rows)"


def rows_by_profile(path: str) -> dict[tuple[str, bool], list[Row]]:
    """Return the rows of a file by profile and whether the model has experts; of a run in two metrics the first."""
    found, seen = defaultdict[tuple[str, bool], list[Row]](list), set[tuple[str, Run]]()
    with open(path, newline="", encoding="utf-8") as file:
        for record in csv.DictReader(file):
            run = run_of(record)
            key = record["table_or_page"] + record["dtype"], run
            if key not in seen and "known regression" not in record["notes"]:
                seen.add(key)
                profile = profile_of(record, run), run.shape.experts is not None
                found[profile].append(Row(record, run, measured_s(record, run)))
    return found


def main() -> None:
    """Fit, and print constants and errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("frameworks", nargs="*")
    parser.add_argument("--check", action="store_true", help="do not fit")
    options = parser.parse_args()
    for name in ("layer_time", "backward_time", "head_time", "head_backward_time"):
        setattr(stage_work, name, lru_cache(maxsize=None)(getattr(stage_work, name)))
    for (profile, has_experts), rows in rows_by_profile(options.path).items():
        if options.frameworks and profile not in options.frameworks:
            continue
        print(f"{profile}{', experts' if has_experts else ''}: {len(rows)} runs")
        for what, name in (("shipped", profile), ("source left out: generic", "generic")):
            print(f"   {what:25}", summary([error(row, shipped(row, name), name) for row in rows]))
        if not options.check:
            report(rows, profile, FREE_OF_EXPERTS if has_experts else FREE.get(profile, ("product_factor.default",)))


def shipped(row: Row, profile: str) -> TrainingConstants:
    """Return the constants of a profile as they are."""
    return trainer_for(row.run.system, profile).constants


def report(rows: Sequence[Row], profile: str, free: Sequence[str]) -> None:
    """Fit the free constants, and print them with their errors."""
    constants = fit(rows, profile, free)
    print(f"   {'fitted':25}", summary([error(row, constants, profile) for row in rows]))
    print("      ", ", ".join(f"{name} = {value_of(constants, name):.4g}" for name in free))
    keys = (("model", lambda row: row.run.shape.name), ("device", lambda row: row.run.system.name))
    for what, key in keys:
        print(f"   {what + ' left out':25}", summary(left_out(rows, profile, free, key)))


if __name__ == "__main__":
    main()
