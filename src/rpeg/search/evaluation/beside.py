"""Baselines beside measurements, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rpeg.search.baselines.baseline import MODELLED
from rpeg.search.baselines.catalog import BASELINES
from rpeg.search.baselines.measured import Held
from rpeg.search.evaluation.sheet import NONE, Sheet, seconds_text

__all__ = ["beside_sheet"]

_HEAD = ("baseline", "run", "GPUs", "measured s", "plan that was run s", "error", "best plan s", "error")


def beside_sheet(found: Sequence[Held], others: int) -> Sheet:
    """Return the table: what was measured, what the model says of the plan that was run, and of the best one.

    Args:
        found: measured steps.
        others: rows that are of no baseline or no whole step.
    """
    title = "Baselines beside measurements"
    return Sheet(title, tuple(_notes(found, others)), _HEAD, tuple(map(_row, found)))


def _notes(found: Sequence[Held], others: int) -> Iterator[str]:
    yield MODELLED.replace("the same constants", "the constants of that system (profiles rl/real, rl/verl)")
    for name in dict.fromkeys(each.baseline for each in found):
        yield f"{name} may choose: {BASELINES[name].may}."
        known, best = _errors(found, name, is_best=False), _errors(found, name, is_best=True)
        if known and best:
            yield (
                f"{name}: the plans that were run are {_mean([abs(e) for e in known]):.1%} off on average; "
                f"the best plans differ from what was measured by {_mean(best):+.1%} on average."
            )
    yield "The constants were fitted on such rows, so errors of plans that were run are those of the fit."
    yield "Lengths that a row does not state are assumed (rl/mathematics)."
    yield f"{others} other rows are no whole steps of these systems."


def _errors(found: Sequence[Held], name: str, *, is_best: bool) -> list[float]:
    pairs = ((each.best_s if is_best else each.known_s, each.measured_s) for each in found if each.baseline == name)
    return [seconds / measured_s - 1.0 for seconds, measured_s in pairs if seconds is not None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _row(each: Held) -> tuple[str, ...]:
    best = (NONE, "-") if each.best_s is None else (seconds_text(each.best_s), _error(each.best_s, each))
    known = seconds_text(each.known_s), _error(each.known_s, each)
    return (f"{each.baseline} (modelled)", each.what, str(each.gpus), seconds_text(each.measured_s), *known, *best)


def _error(seconds: float, each: Held) -> str:
    return f"{seconds / each.measured_s - 1.0:+.0%}"
