"""Fits the allocator slack of the memory profiles, the one constant of theirs that is fitted, and leaves parts out.

A plan that is said to fit must fit, so the slack is no mean: it is the least with which no peak is predicted more than
5 % too low. That of ``generic`` is the middle of those that were fitted.

    python scripts/fit_memory.py DATA

DATA is a folder with ``memory.csv`` and, for peaks of reinforcement-learning trainers, ``rl_steps.csv``.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rpeg.perf.memory import MemoryConstants
from rpeg.perf.profile import read_table
from rpeg.perf.validate.memory import price, price_peak
from rpeg.perf.validate.memory_job import software_of

_ALLOWED_BELOW_PCT = 5.0
_STEPS = np.arange(0.0, 0.5001, 0.005)


@dataclass(frozen=True)
class Row:
    """A measured peak beside its price."""

    profile: str
    part: str
    """What is left out together: a model of a source."""
    measured: float
    bare: float
    """Predicted without slack."""
    unknown: float
    """Predicted as if the software were not known."""


def rows_of(folder: Path) -> Iterator[Row]:
    """Yield every peak of a folder."""
    for name, metrics in (("memory.csv", ("peak_memory_per_gpu",)), ("rl_steps.csv", ("peak_gpu_memory",))):
        path = folder / name
        for record in csv.DictReader(path.open(encoding="utf-8")) if path.is_file() else ():
            if record["metric"] in metrics:
                yield _row(record)


def _row(record: Mapping[str, str]) -> Row:
    loaded = read_table("memory", software_of(record), MemoryConstants)
    priced = price_peak(record)
    software = priced.source.partition(" ")[0].rpartition("/")[2].partition("@")[0]
    unknown = {**record, "source": "", "system": "", "table_or_page": ""}
    return Row(
        loaded.profile.name,
        f"{software} {priced.model}",
        priced.measured,
        priced.predicted / (1.0 + loaded.constants.slack_share),
        price_peak(unknown).predicted,
    )


def errors_pct(rows: list[Row], slack_share: float) -> npt.NDArray[np.float64]:
    """Return the errors of rows with a slack."""
    return np.array([100.0 * (row.bare * (1.0 + slack_share) / row.measured - 1.0) for row in rows])


def fitted(rows: list[Row]) -> float:
    """Return the least slack with which no row is predicted too far below what was measured."""
    return float(next(step for step in _STEPS if errors_pct(rows, float(step)).min() >= -_ALLOWED_BELOW_PCT))


def main(folder: Path) -> None:
    """Print the fit of every profile, and of every part from all others."""
    found = list(rows_of(folder))
    print(f"{'profile':12} {'left out':38} {'rows':>4} {'slack':>6} {'mean':>6} {'lowest':>7} {'highest':>7}")
    slacks: list[float] = []
    for profile in sorted({row.profile for row in found}):
        own = [row for row in found if row.profile == profile]
        slacks.append(fitted(own))
        _print(profile, "nothing", own, slacks[-1])
        for part in sorted({row.part for row in own}):
            others = [row for row in own if row.part != part]
            _print(profile, part, [row for row in own if row.part == part], fitted(others or own))
        errors = np.array([100.0 * (row.unknown / row.measured - 1.0) for row in own])
        _line(profile, "its software", errors, float("nan"))
    print(f"generic: slack {np.mean(slacks):.3f}")
    _formulas(folder)


def _print(profile: str, part: str, rows: list[Row], slack_share: float) -> None:
    _line(profile, part, errors_pct(rows, slack_share), slack_share)


def _line(profile: str, part: str, errors: npt.NDArray[np.float64], slack_share: float) -> None:
    numbers = f"{np.abs(errors).mean():6.1f} {errors.min():+7.1f} {errors.max():+7.1f}"
    print(f"{profile:12} {part:38} {len(errors):4d} {slack_share:6.3f} {numbers}")


def _formulas(folder: Path) -> None:
    """Print the errors of what has no fitted constant."""
    rows = [record for record in csv.DictReader((folder / "memory.csv").open(encoding="utf-8"))]
    for name in ("memory components", "memory formulas"):
        priced = [each for record in rows for each in price(record) if each.set == name]
        errors = np.array([100.0 * (each.predicted / each.measured - 1.0) for each in priced])
        _line("(not fitted)", name, errors, float("nan"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
