"""The order of alternatives: does the prediction put the plans for the same work in the order that was measured?

| Sign | Meaning |
|---|---|
| C, D | pairs of a group that prediction and measurement put in the same, in the opposite order |
| T_m, T_p | pairs that are equal in the measurement, in the prediction |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rpeg.perf.validate.row import Priced

__all__ = ["Ranking", "kendall_tau", "rank", "ranked_rows", "regret_pct"]

_FEWEST = 3
"""Different measurements in a group whose order says anything."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """How well the order of alternatives is predicted."""

    groups: int
    rows: int
    kendall_tau: float
    """Mean over groups, weighted by their rows: 1 is the measured order, 0 is chance, -1 its reverse."""
    top1_regret_pct: float
    """Mean over groups: how much worse than the best the alternative is that was predicted to be the best."""


def kendall_tau(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Return Kendall's rank correlation, corrected for ties; 0 where all predictions are equal.

    Formula: tau_b = (C - D) / sqrt((C + D + T_m)·(C + D + T_p)).
    Source: Kendall, The treatment of ties in ranking problems, Biometrika 33 (1945).

    >>> round(kendall_tau([1, 2, 3, 4], [10, 30, 20, 40]), 3)  # five of six pairs agree
    0.667
    """
    first, second = (_signs(np.asarray(values, dtype=np.float64)) for values in (measured, predicted))
    pairs = float(np.abs(first).sum() * np.abs(second).sum())
    return float((first * second).sum()) / pairs**0.5 if pairs else 0.0


def _signs(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.sign(values[:, None] - values[None, :])


def regret_pct(measured: Sequence[float], predicted: Sequence[float], better: str = "low") -> float:
    """Return how much worse than the best measured the alternative is that is predicted to be the best.

    Formula: 100·(measured(predicted best) / best measured - 1) for times, with the quotient turned over for rates;
    where several are predicted to be the best, the mean over these.

    >>> round(regret_pct([10.0, 12.0, 11.0], [3.0, 2.5, 2.0]), 1)  # takes 11 s, could have had 10 s
    10.0
    """
    cost = np.asarray(measured, dtype=np.float64) if better == "low" else 1.0 / np.asarray(measured, dtype=np.float64)
    guess = np.asarray(predicted, dtype=np.float64) * (1.0 if better == "low" else -1.0)
    return 100.0 * float(cost[guess == guess.min()].mean() / cost.min() - 1.0)


def ranked_rows(rows: Iterable[Priced]) -> list[list[Priced]]:
    """Return the groups whose order can be judged: those with at least three different measurements."""
    groups: dict[tuple[str, str, str], list[Priced]] = {}
    for row in rows:
        if row.group:
            groups.setdefault((row.set, row.group, row.unit), []).append(row)
    return [group for group in groups.values() if len({row.measured for row in group}) >= _FEWEST]


def rank(rows: Iterable[Priced]) -> Ranking | None:
    """Return how well the order within the groups of ``rows`` is predicted; None where there is nothing to order."""
    groups = ranked_rows(rows)
    if not groups:
        return None
    sizes = [len(group) for group in groups]
    pairs = [([row.measured for row in group], [row.predicted for row in group]) for group in groups]
    taus = [kendall_tau(measured, predicted) for measured, predicted in pairs]
    regrets = [regret_pct(*pair, group[0].better) for pair, group in zip(pairs, groups, strict=True)]
    return Ranking(len(groups), sum(sizes), float(np.average(taus, weights=sizes)), float(np.mean(regrets)))
