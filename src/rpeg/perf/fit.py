"""Constants from measurements: least squares on the logarithm of the error, so that short times weigh as much as long.

=================  =============================================================================
symbol             meaning
=================  =============================================================================
x                  logarithms of the constants, which are all above 0
r(x)               ``log(predicted / measured)`` of every measurement
J                  derivatives of ``r`` by ``x``, from differences
=================  =============================================================================

Levenberg and Marquardt: ``(J' W J + damping · diag) step = -J' W r``; a step that makes it worse is tried again with
more damping. Weights ``W = 1 / max(1, |r| / tolerance)`` keep disturbed measurements from pulling on the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Fitted", "error_pct", "fit", "left_out_pct"]

_Floats = npt.NDArray[np.float64]
_Predict = Callable[[Mapping[str, float]], _Floats]
_STEP = 1e-4
"""Of a difference, in the logarithm."""
_LONGEST = 1.0
"""Step of a constant, in the logarithm: what has become next to nothing has no slope to come back by."""
_TOLERANCE = 0.1
"""Errors above it count by size and not by square."""
_NOTHING = 1e-12
"""What the constants become that are not needed; all of them are seconds, bytes or factors."""
_SHRINK, _GROW, _MOST = 0.4, 4.0, 1e8
"""Of the damping: after a step that helped, after one that did not, and when to stop."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a fit found."""

    values: Mapping[str, float]
    error_pct: float
    """Mean absolute percentage error on what was fitted."""


def fit(
    predict: Callable[[Mapping[str, float]], _Floats],
    measured: _Floats,
    start: Mapping[str, float],
    limits: Mapping[str, tuple[float, float]] | None = None,
    rounds: int = 40,
) -> Fitted:
    """Return the constants with which ``predict`` is nearest to what was measured.

    >>> size = np.array([1.0, 10.0, 100.0])
    >>> found = fit(lambda c: c["start"] + size * c["each"], 3.0 + 0.5 * size, {"start": 1.0, "each": 1.0})
    >>> {name: round(value, 3) for name, value in found.values.items()}
    {'start': 3.0, 'each': 0.5}

    Args:
        predict: from constants by name to one number per measurement, all above 0.
        measured: what was measured.
        start: constants to begin with, above 0.
        limits: lowest and highest value of a constant.
        rounds: steps at most.
    """
    problem = _Problem(predict, np.log(measured), tuple(start), limits or {})
    point, damping = problem.clipped(np.log(list(start.values()))), 1e-2
    loss = problem.loss(point)
    for _ in range(rounds):
        gradient, curvature = problem.slopes(point)
        while damping < _MOST:
            scale = damping * (np.diag(curvature) + 1e-12)
            step = np.clip(np.linalg.solve(curvature + np.diag(scale), gradient), -_LONGEST, _LONGEST)
            tried = problem.clipped(point - step)
            if (found := problem.loss(tried)) < loss:
                break
            damping *= _GROW
        else:
            break
        is_done = loss - found < 1e-9 * (1.0 + loss)
        point, loss, damping = tried, found, damping * _SHRINK
        if is_done:
            break
    values = {name: value if value > _NOTHING else 0.0 for name, value in problem.values(point).items()}
    return Fitted(values, error_pct(predict(values), measured))


def error_pct(predicted: _Floats, measured: _Floats) -> float:
    """Return the mean absolute percentage error.

    >>> error_pct(np.array([1.1, 0.8]), np.array([1.0, 1.0]))
    15.0
    """
    return round(float(100.0 * np.mean(np.abs(predicted / measured - 1.0))), 6)


def left_out_pct(
    predict: Callable[[Mapping[str, float]], _Floats],
    measured: _Floats,
    start: Mapping[str, float],
    limits: Mapping[str, tuple[float, float]] | None = None,
    folds: int = 5,
) -> float:
    """Return the mean absolute percentage error on measurements that were left out of the fit, every ``folds``-th."""
    number = np.arange(len(measured)) % folds
    errors = [0.0] * len(measured)
    for fold in range(folds):
        kept = np.flatnonzero(number != fold)
        values = fit(lambda c, kept=kept: predict(c)[kept], measured[kept], start, limits, rounds=15).values
        predicted = predict(values)
        for i in np.flatnonzero(number == fold):
            errors[int(i)] = abs(float(predicted[i] / measured[i]) - 1.0)
    return 100.0 * float(np.mean(errors))


@dataclass(frozen=True, slots=True)
class _Problem:
    predict: _Predict
    measured: _Floats
    """Logarithms."""
    names: tuple[str, ...]
    limits: Mapping[str, tuple[float, float]]

    def values(self, point: _Floats) -> dict[str, float]:
        return {name: float(np.exp(x)) for name, x in zip(self.names, point, strict=True)}

    def clipped(self, point: _Floats) -> _Floats:
        low, high = (np.log([self.limits.get(name, (1e-30, 1e30))[i] for name in self.names]) for i in (0, 1))
        return np.clip(point, low, high)

    def errors(self, point: _Floats) -> _Floats:
        return np.log(np.maximum(self.predict(self.values(point)), 1e-30)) - self.measured

    def loss(self, point: _Floats) -> float:
        """Return squares of small errors, twice the size of large ones: Huber's."""
        size = np.abs(self.errors(point)) / _TOLERANCE
        return float(np.sum(np.where(size <= 1.0, size**2, 2.0 * size - 1.0)))

    def slopes(self, point: _Floats) -> tuple[_Floats, _Floats]:
        """Return the weighted gradient and the weighted curvature."""
        errors = self.errors(point)
        columns = [(self.errors(point + _STEP * row) - errors) / _STEP for row in np.eye(len(point))]
        slopes = np.stack(columns, axis=1)
        weighted = slopes.T / np.maximum(1.0, np.abs(errors) / _TOLERANCE)
        return weighted @ errors, weighted @ slopes
