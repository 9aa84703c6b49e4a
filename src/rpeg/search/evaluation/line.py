"""What one system makes of one case, as plain values that another process can send."""

from __future__ import annotations

from dataclasses import dataclass

from rpeg.errors import PlanError
from rpeg.perf.step import predict
from rpeg.search.case import Case
from rpeg.search.find import Found
from rpeg.search.ranking import Ranked

__all__ = ["Line", "line_of", "refused"]

_MOST_FAULTS = 2


@dataclass(frozen=True, slots=True)
class Line:
    """A plan, or why there is none."""

    name: str
    is_baseline: bool
    step_s: float | None = None
    """Seconds of a step; None where nothing fits."""
    drawn_s: float | None = None
    """Their mean with lengths drawn anew in every step."""
    busy: float = 0.0
    """Share of a step in which devices work, mean over all of them."""
    mfu: float = 0.0
    """Model operations over what the devices could do."""
    peak: float = 0.0
    """Share of the memory of the fullest device at its peak."""
    staleness: int = 0
    parts: int = 1
    """Firings in which samples flow."""
    tokens_per_s: float = 0.0
    """Of prompts and responses."""
    rewrites: tuple[str, ...] = ()
    layout: tuple[str, ...] = ()
    """By call: where and how."""
    profiles: tuple[str, ...] = ()
    outside: str = ""
    """What of it lies outside of what the profiles were fitted on."""
    reason: str = ""
    """Where nothing fits, why."""


def line_of(name: str, found: Found, case: Case, *, is_baseline: bool, share: float = 1.0) -> Line:
    """Return what the whole model expects of a plan.

    Args:
        name: of the system.
        found: its plan.
        case: what it is for.
        is_baseline: whether it stands for another system.
        share: prompts that were asked for, over those that the plan is for.
    """
    structure = found.structure
    expected = predict(structure.graph, found.priced.plan, case.workload, case.system, case.software)
    ranked = Ranked(found, expected)
    return Line(
        name,
        is_baseline,
        expected.step_s * share,
        ranked.mean_s * share,
        ranked.busy_share,
        expected.mfu,
        ranked.peak_share,
        structure.staleness,
        structure.firings,
        expected.tokens_per_s,
        structure.rewrites,
        tuple(_layouts(found)),
        expected.profiles,
        expected.extrapolates,
    )


def _layouts(found: Found) -> list[str]:
    lines: list[str] = []
    for each in found.assigned:
        choice = each.row.choice
        degrees = {"tp": choice.tp, "pp": choice.pp, "dp": choice.dp}
        split = " ".join(f"{name}{size}" for name, size in degrees.items() if size > 1 or name == "dp")
        lines.append(f"{each.call.name} {each.place.where} {split}")
    return lines


def refused(name: str, error: PlanError, *, is_baseline: bool) -> Line:
    """Return the line of a system that has no plan."""
    texts = [f"{fault.where} {fault.what}" for fault in error.faults[:_MOST_FAULTS]]
    return Line(name, is_baseline, reason="; ".join(texts))
