"""The table of errors: one line per set of measurements, with what lies behind it.

| Sign | Meaning |
|---|---|
| m, p | measured and predicted, in the same unit |
| i | the same quantity at the peak of the hardware |
| error | 100·(p - m)/m, in percent: above 0 where the prediction is too high |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rpeg.perf.validate.outcome import Outcome
from rpeg.perf.validate.ranking import Ranking, rank
from rpeg.perf.validate.row import Priced

__all__ = ["Errors", "Extreme", "Part", "SetErrors", "baseline_pct", "errors", "set_errors"]

_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Errors:
    """How far predictions are from measurements, in percent of the measurement."""

    rows: int
    mape_pct: float
    """Mean of the absolute errors."""
    median_ape_pct: float
    p90_ape_pct: float
    """Nine in ten absolute errors are smaller."""
    bias_pct: float
    """Median of the signed errors."""


@dataclass(frozen=True, slots=True)
class Extreme:
    """The row with the largest error in one direction."""

    place: str
    error_pct: float


@dataclass(frozen=True, slots=True)
class Part:
    """The errors of one source or one model."""

    name: str
    errors: Errors


@dataclass(frozen=True, slots=True)
class SetErrors:
    """What the predictions of one set of measurements are worth."""

    name: str
    skipped: int
    """Rows of files that were not priced and belong here."""
    reasons: Mapping[str, int]
    errors: Errors | None
    """None where every row was skipped."""
    highest: Extreme | None
    lowest: Extreme | None
    baseline_mape_pct: float | None
    """The mean absolute error of a constant efficiency fitted on these very rows; None where no ideal is known."""
    baseline_median_ape_pct: float | None
    extrapolated_pct: float
    """The share of measurements that lie outside of what the profiles were fitted on."""
    sources: tuple[Part, ...]
    models: tuple[Part, ...]
    ranking: Ranking | None

    @property
    def rows(self) -> int:
        """The number of measurements priced."""
        return self.errors.rows if self.errors else 0


def errors(rows: Sequence[Priced]) -> Errors:
    """Return the errors of at least one row.

    >>> row = Priced("a", "b", "c", measured=2.0, predicted=2.5, ideal=1.0, unit="s")
    >>> errors([row]).mape_pct
    25.0
    """
    signed = _signed_pct(rows)
    absolute = np.abs(signed)
    p90 = float(np.percentile(absolute, 90))
    return Errors(len(rows), float(absolute.mean()), float(np.median(absolute)), p90, float(np.median(signed)))


def baseline_pct(rows: Sequence[Priced]) -> tuple[float, float] | None:
    """Return the mean and the median absolute error of a constant efficiency, fitted on the rows it is judged by.

    Formula: seconds and bytes are predicted as c·i with c = median(m / i); of rates, where more is better, both are
    turned over, so that times and rates of one set have one efficiency.

    >>> times = [Priced("a", "b", "c", m, m, i, "s") for m, i in ((2.0, 1.0), (4.0, 2.0), (9.0, 3.0))]
    >>> [round(pct, 1) for pct in baseline_pct(times)]  # twice the ideal: 6 s instead of 9 s
    [11.1, 0.0]
    """
    usable = [row for row in rows if 0 < row.ideal < np.inf and row.measured > 0]
    if not usable:
        return None
    is_rate = np.array([row.better == "high" for row in usable])
    ratio = np.array([row.measured / row.ideal for row in usable])
    slowness = np.where(is_rate, 1.0 / ratio, ratio)
    constant = float(np.median(slowness))
    absolute = 100.0 * np.abs(np.where(is_rate, slowness / constant, constant / slowness) - 1.0)
    return float(absolute.mean()), float(np.median(absolute))


def set_errors(outcomes: Iterable[Outcome]) -> list[SetErrors]:
    """Return the table: sets in the order in which they first appear."""
    priced: dict[str, list[tuple[str, Priced]]] = {}
    reasons: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        for each in outcome.priced:
            priced.setdefault(each.set, []).append((outcome.place, each))
        if outcome.reason:
            reasons.setdefault(outcome.set, Counter())[outcome.reason] += 1
    names = [*priced, *(name for name in reasons if name not in priced)]
    return [_set_errors(name, priced.get(name, []), reasons.get(name, Counter())) for name in names]


def _set_errors(name: str, placed: Sequence[tuple[str, Priced]], reasons: Counter[str]) -> SetErrors:
    rows = [row for _, row in placed]
    low, high = _extremes(placed)
    baseline = baseline_pct(rows) or (None, None)
    return SetErrors(
        name,
        reasons.total(),
        dict(reasons.most_common()),
        errors(rows) if rows else None,
        high,
        low,
        *baseline,
        100.0 * sum(bool(row.extrapolates) for row in rows) / max(1, len(rows)),
        _parts(rows, lambda row: row.source),
        _parts(rows, lambda row: row.model),
        rank(rows),
    )


def _signed_pct(rows: Sequence[Priced]) -> _Numbers:
    return np.array([100.0 * (row.predicted / row.measured - 1.0) for row in rows], dtype=np.float64)


def _extremes(placed: Sequence[tuple[str, Priced]]) -> tuple[Extreme | None, Extreme | None]:
    """Return the rows that are predicted lowest and highest, compared with what was measured."""
    if not placed:
        return None, None
    signed = _signed_pct([row for _, row in placed])
    at = (int(signed.argmin()), int(signed.argmax()))
    low, high = (Extreme(placed[i][0], float(signed[i])) for i in at)
    return low, high


def _parts(rows: Sequence[Priced], key: Callable[[Priced], str]) -> tuple[Part, ...]:
    parts: dict[str, list[Priced]] = {}
    for row in rows:
        parts.setdefault(key(row), []).append(row)
    return tuple(Part(name, errors(each)) for name, each in sorted(parts.items()))
