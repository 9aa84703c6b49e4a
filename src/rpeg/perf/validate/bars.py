"""What the predictions are to reach on measurements that nothing was fitted on, by set."""

from __future__ import annotations

from dataclasses import dataclass

from rpeg.perf.validate.ranking import Ranking
from rpeg.perf.validate.table import SetErrors

__all__ = ["BARS", "ORDER", "Bar", "OrderBar"]


@dataclass(frozen=True, slots=True)
class Bar:
    """Bounds in percent; None where there is none."""

    mape_pct: float | None = None
    median_ape_pct: float | None = None
    lowest_pct: float | None = None
    """No prediction is below the measurement by more than this."""

    def __str__(self) -> str:
        """Return ``mean 12, median 8``."""
        parts = {"mean": self.mape_pct, "median": self.median_ape_pct, "low": self.lowest_pct}
        return ", ".join(f"{name} {value:g}" for name, value in parts.items() if value is not None)

    def reached(self, found: SetErrors) -> bool:
        """Return whether a set keeps every bound; one without a single price does not."""
        if found.errors is None or found.lowest is None:
            return False
        pairs = (
            (found.errors.mape_pct, self.mape_pct),
            (found.errors.median_ape_pct, self.median_ape_pct),
            (-found.lowest.error_pct, self.lowest_pct),
        )
        return all(bound is None or value <= bound for value, bound in pairs)


BARS = {
    "gemm bf16": Bar(mape_pct=8.0),
    "collectives in a node, 64 KB-512 MB": Bar(mape_pct=10.0),
    "collectives over Slingshot": Bar(mape_pct=15.0),
    "dense training": Bar(mape_pct=12.0, median_ape_pct=8.0),
    "static-batch inference": Bar(mape_pct=12.0),
    "online time per output token": Bar(median_ape_pct=20.0),
    "peak memory": Bar(mape_pct=8.0, lowest_pct=5.0),
    "RL steps": Bar(mape_pct=15.0),
    "ReaL-Heuristic steps": Bar(mape_pct=15.0),
}
"""By the name of a set; the others are shown without."""


@dataclass(frozen=True, slots=True)
class OrderBar:
    """Bounds for the order of plans."""

    kendall_tau: float
    top1_regret_pct: float

    def __str__(self) -> str:
        """Return ``tau 0.7, regret 5``."""
        return f"tau {self.kendall_tau:g}, regret {self.top1_regret_pct:g}"

    def reached(self, found: Ranking) -> bool:
        """Return whether an order keeps both bounds."""
        return found.kendall_tau >= self.kendall_tau and found.top1_regret_pct <= self.top1_regret_pct


ORDER = OrderBar(kendall_tau=0.7, top1_regret_pct=5.0)
