"""What a table of layouts costs: seconds and bytes by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

__all__ = ["StagePrices", "free", "merged", "unpriced"]

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class StagePrices:
    """One firing of a stage under every layout of a table."""

    occupancy_s: _Floats
    """Until its devices are free."""
    tail_s: _Floats
    """From then until its last row is out."""
    held_bytes: _Floats
    """On the fullest device, what it keeps of its model: weights, of a trained model the optimizer's state as well."""
    gradient_bytes: _Floats
    """On the fullest device, gradients of one update; 0 where there are none."""
    working_bytes: _Floats
    """On the fullest device, what a firing needs besides."""
    device_flops: _Floats
    """Operations of the model, over all devices: what MFU counts."""
    reasons: Sequence[str]
    """Why a layout is none; empty where it is one."""
    extrapolates: str = ""
    """What lies outside of what the profiles were fitted on."""

    def __len__(self) -> int:
        """Return the number of layouts."""
        return len(self.occupancy_s)

    @property
    def is_feasible(self) -> npt.NDArray[np.bool_]:
        """Per layout, whether it divides what it splits; whether it fits is for whoever knows what else is there."""
        return np.array([not reason for reason in self.reasons], dtype=bool)


_COLUMNS = tuple(field.name for field in fields(StagePrices) if field.name not in ("reasons", "extrapolates"))


def free(count: int, occupancy_s: float = 0.0) -> StagePrices:
    """Return the prices of what takes no memory of devices, and as long under every layout."""
    none = np.zeros(count)
    return StagePrices(np.full(count, occupancy_s), none, none, none, none, none, [""] * count)


def unpriced(reasons: Sequence[str]) -> StagePrices:
    """Return the prices of layouts that are none: endless."""
    endless = np.full(len(reasons), np.inf)
    return StagePrices(endless, endless, endless, endless, endless, endless, reasons)


def merged(count: int, parts: Sequence[tuple[npt.NDArray[np.intp], StagePrices]]) -> StagePrices:
    """Return the prices of parts of a table, each with the rows it is for, as those of the whole."""
    columns: dict[str, _Floats] = {name: np.zeros(count) for name in _COLUMNS}
    reasons = [""] * count
    for rows, prices in parts:
        for name, column in columns.items():
            column[rows] = getattr(prices, name)
        for row, reason in zip(rows, prices.reasons, strict=True):
            reasons[row] = reason
    said = dict.fromkeys(prices.extrapolates for _, prices in parts if prices.extrapolates)
    return StagePrices(*(columns[name] for name in _COLUMNS), reasons=reasons, extrapolates=", ".join(said))
