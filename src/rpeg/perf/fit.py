"""Fits constants to measured seconds: relative errors count, so that a microsecond matters as much as a second.

========  ====================================================================================================
y         measured seconds, one per row
f(x)      what a formula makes of constants ``x``; a curve, or a sum of parts with one factor each
========  ====================================================================================================

A curve is fitted by the simplex search of Nelder and Mead in the logarithms of its constants, which are thereby
positive; a sum by least squares with factors that are not negative (Lawson and Hanson's active set).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Fit", "error_pct", "fit_curve", "fit_sum", "left_out_pct"]

Floats = npt.NDArray[np.float64]
_TURN, _GROW, _SHRINK = 1.0, 2.0, 0.5
"""Steps of the simplex search."""
_FIRST_STEP = 0.3
"""Edge of the first simplex, in natural logarithms."""
_WEIGHINGS = 20
"""Rounds in which the weights of measurements follow what is predicted of them."""
_FARTHEST = 10.0
"""By which a prediction may be off and still count for the weight."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants, and how far what they predict is from the measurements they come from."""

    values: tuple[float, ...]
    error_pct: float
    """Mean absolute error, in percent of what was measured."""


def error_pct(predicted: npt.ArrayLike, measured: npt.ArrayLike) -> float:
    """Return the mean of ``|predicted - measured| / measured``, in percent.

    >>> error_pct([1.1, 1.8], [1.0, 2.0])
    10.0
    """
    real = np.asarray(measured, dtype=float)
    return round(float(np.mean(np.abs(np.asarray(predicted, dtype=float) - real) / real)) * 100.0, 10)


def fit_curve(
    curve: Callable[[Floats], npt.ArrayLike], start: Sequence[float], measured: npt.ArrayLike, *, rounds: int = 400
) -> Fit:
    """Return the positive constants with which a curve is nearest to what was measured.

    Least is the mean of ``log(f / y)²``.

    >>> sizes = np.array([1.0, 10.0, 100.0])
    >>> found = fit_curve(lambda x: x[0] + sizes / x[1], (1.0, 1.0), 3.0 + sizes / 4.0)
    >>> [round(value, 3) for value in found.values]
    [3.0, 4.0]

    Args:
        curve: from constants to seconds per row.
        start: where the search begins.
        measured: seconds per row.
        rounds: of the search.
    """
    real = np.asarray(measured, dtype=float)

    def loss(logs: Floats) -> float:
        predicted = np.maximum(np.asarray(curve(np.exp(logs)), dtype=float), 1e-300)
        return float(np.mean(np.log(predicted / real) ** 2))

    best = np.exp(_lowest(loss, np.log(np.asarray(start, dtype=float)), rounds))
    return Fit(tuple(float(value) for value in best), error_pct(curve(best), real))


def _lowest(loss: Callable[[Floats], float], start: Floats, rounds: int) -> Floats:
    """Return where ``loss`` is low, by the simplex search of Nelder and Mead (1965)."""
    points = np.vstack([start, start + _FIRST_STEP * np.eye(len(start))])
    values = np.array([loss(point) for point in points])
    for _ in range(rounds):
        order = np.argsort(values, kind="stable")
        points, values = points[order], values[order]
        if values[-1] - values[0] < 1e-12 * (1.0 + values[0]):
            break
        point, value = _better(loss, points, values)
        if value < values[-1]:
            points[-1], values[-1] = point, value
        else:
            points[1:] = points[0] + _SHRINK * (points[1:] - points[0])
            values[1:] = [loss(each) for each in points[1:]]
    return points[np.argmin(values)]


def _better(loss: Callable[[Floats], float], points: Floats, values: Floats) -> tuple[Floats, float]:
    """Return what may take the place of the worst corner: beyond the middle of the others, farther, or nearer."""
    middle, worst = points[:-1].mean(axis=0), points[-1]
    turned = middle + _TURN * (middle - worst)
    found = loss(turned)
    if found < values[0]:
        farther = middle + _GROW * (middle - worst)
        beyond = loss(farther)
        return (farther, beyond) if beyond < found else (turned, found)
    if found < values[-2]:
        return turned, found
    nearer = middle + _SHRINK * ((turned if found < values[-1] else worst) - middle)
    return nearer, loss(nearer)


def fit_sum(
    parts: npt.ArrayLike, measured: npt.ArrayLike, *, usual: Sequence[float | None] = (), trust: float = 1.0
) -> Fit:
    """Return the factors, none negative, with which parts add up to what was measured.

    Least is the sum of ``log(f / y)²``, which is fair to both sides where measurements scatter, and of
    ``trust · (factor / usual - 1)²`` for every factor that has a usual value: parts that always grow together are told
    apart by nothing else.

    >>> fit_sum([[1.0, 1.0], [1.0, 3.0], [1.0, 5.0]], [3.0, 7.0, 11.0]).values
    (1.0, 2.0)
    >>> fit_sum([[1.0, 1.0], [1.0, 2.0]], [2.0, 1.0]).values[1]  # never below 0
    0.0
    >>> round(fit_sum([[1.0], [1.0]], [0.5, 2.0]).values[0], 6)
    1.0

    Args:
        parts: seconds per row and part, with a factor of 1.
        measured: seconds per row.
        usual: per part, what its factor should be near to; None is nothing in particular.
        trust: how many rows a usual value counts as.
    """
    real, given = np.asarray(measured, dtype=float), np.asarray(parts, dtype=float)
    known = [(place, value) for place, value in enumerate(usual) if value]
    expected = np.zeros((len(known), given.shape[1]))
    for row, (place, value) in enumerate(known):
        expected[row, place] = np.sqrt(trust) / value
    factors, predicted = np.zeros(given.shape[1]), real
    for _ in range(_WEIGHINGS):
        scale = _scale(predicted, real)
        matrix = np.vstack([given / scale[:, None], expected])
        factors = _not_negative(matrix, np.concatenate([real / scale, np.full(len(known), np.sqrt(trust))]))
        predicted = given @ factors
    return Fit(tuple(float(f"{factor:.12g}") for factor in factors), error_pct(predicted, real))


def _scale(predicted: Floats, real: Floats) -> Floats:
    """Return by what differences are divided so that their squares have the slope of squared logarithms.

    ``(f - y) f / log(f / y)``, the square of it; ``y`` where both are equal.
    """
    ratio = np.clip(predicted / real, 1.0 / _FARTHEST, _FARTHEST)
    off = np.where(np.abs(ratio - 1.0) < 1e-6, 1.0, ratio)
    return real * np.sqrt(np.where(off == 1.0, 1.0, (off - 1.0) * off / np.log(np.where(off == 1.0, 2.0, off))))


def _not_negative(matrix: Floats, target: Floats) -> Floats:
    """Return the least squares solution without negative values (Lawson and Hanson, 1974).

    Columns are scaled to length 1, since they are of very different sizes.
    """
    lengths = np.maximum(np.linalg.norm(matrix, axis=0), 1e-300)
    scaled = matrix / lengths
    count = scaled.shape[1]
    solution, is_free = np.zeros(count), np.zeros(count, dtype=bool)
    for _ in range(3 * count):
        gradient = np.where(is_free, -np.inf, scaled.T @ (target - scaled @ solution))
        if is_free.all() or gradient.max() < 1e-10:
            break
        is_free[np.argmax(gradient)] = True
        solution, is_free = _inside(scaled, target, solution, is_free)
    return solution / lengths


def _inside(
    matrix: Floats, target: Floats, solution: Floats, is_free: npt.NDArray[np.bool_]
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return the solution of the free columns, freed of those that would become negative."""
    free = is_free.copy()
    while free.any():
        wanted = np.zeros(len(solution))
        wanted[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
        bad = free & (wanted <= 0)
        if not bad.any():
            return wanted, free
        step = float(np.min(solution[bad] / (solution[bad] - wanted[bad])))
        solution = solution + step * (wanted - solution)
        free = free & (solution > 1e-12)
        solution = np.where(free, solution, 0.0)
    return np.zeros(len(solution)), free


def left_out_pct(
    fit: Callable[[npt.NDArray[np.bool_]], npt.ArrayLike],
    groups: Sequence[Hashable],
    measured: npt.ArrayLike,
) -> float:
    """Return the mean absolute error on every group of rows after a fit on all others, in percent.

    >>> rows = np.array([[1.0], [2.0], [3.0]])
    >>> def fit(kept):
    ...     return fit_sum(rows[kept], 2.0 * rows[kept, 0]).values[0] * rows[:, 0]
    >>> left_out_pct(fit, ["a", "b", "b"], 2.0 * rows[:, 0])
    0.0

    Args:
        fit: fits on the rows that are marked, and returns what it then predicts of all of them.
        groups: of each row.
        measured: seconds per row.
    """
    real, names = np.asarray(measured, dtype=float), list(groups)
    errors = np.zeros(len(real))
    for name in dict.fromkeys(names):
        is_out = np.array([each == name for each in names])
        predicted = np.asarray(fit(~is_out), dtype=float)
        errors[is_out] = np.abs(predicted - real)[is_out] / real[is_out]
    return round(float(errors.mean()) * 100.0, 10)
