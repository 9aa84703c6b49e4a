"""What became of every row of a file: prices, or the reason why there are none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rpeg.errors import InvalidInput
from rpeg.perf.validate.kinds import Kind, kind_of
from rpeg.perf.validate.measurements import Measurements, Record
from rpeg.perf.validate.row import Priced, Skip

__all__ = ["Outcome", "outcomes"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row and what it was priced at."""

    place: str
    kind: str
    priced: tuple[Priced, ...]
    """One per measurement in the row; empty for a row that is skipped."""
    reason: str = ""
    """Why it is skipped."""
    set: str = ""
    """Where it is counted as skipped: the kind's name if its set is not known."""


def outcomes(measurements: Measurements) -> list[Outcome]:
    """Price every row of a file of a known kind, each by itself: what is wrong with one does not stop the others."""
    with np.errstate(all="ignore"):  # what is not finite is found below, with the row's name
        return [_outcome(record, kind_of(measurements.columns, record.values)) for record in measurements.records]


def _outcome(record: Record, kind: Kind | None) -> Outcome:
    assert kind is not None
    priced, skip = ([], Skip(record.fault)) if record.fault else _prices(kind, record.values)
    if skip is None:
        return Outcome(record.place, kind.name, tuple(priced))
    return Outcome(record.place, kind.name, (), skip.reason, skip.set or kind.name)


def _prices(kind: Kind, values: Mapping[str, str]) -> tuple[list[Priced], Skip | None]:
    """Return the prices of a row, or why there are none."""
    try:
        priced = kind.price(values)
    except Skip as skip:
        return [], skip
    except InvalidInput as error:
        return [], Skip("; ".join(f"{fault.where} {fault.what}" for fault in error.faults))
    except Exception as error:  # thousands of rows are not lost for one: it is counted, and its class says whose fault
        return [], Skip(f"{type(error).__name__}: {error}")
    return priced, _fault(priced)


def _fault(priced: Sequence[Priced]) -> Skip | None:
    """Return what makes prices useless: there are none, or one is no positive number."""
    for each in priced:
        for name, value in (("measured", each.measured), ("predicted", each.predicted)):
            if not 0 < value < math.inf:
                return Skip(f"{name} is {value:g}", set=each.set)
    return None if priced else Skip("nothing of it is priced")
