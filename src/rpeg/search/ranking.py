"""Plans in order, each with what the whole model expects of it, as text and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rpeg.hardware.topology import System
from rpeg.perf.software import Software
from rpeg.perf.step import Prediction, predict
from rpeg.perf.step_text import as_json as prediction_as_json
from rpeg.perf.workload import Workload
from rpeg.search.find import Found, Outcome
from rpeg.units import bytes_text

__all__ = ["Ranked", "as_json", "as_text", "ranked"]


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """A plan that was found, with its prediction."""

    found: Found
    prediction: Prediction

    @property
    def mean_s(self) -> float:
        """Seconds of a step with lengths drawn anew in every step: what plans are ranked by in the end."""
        return self.prediction.spread.mean_s

    @property
    def busy_share(self) -> float:
        """Of all devices, the share of a step in which they work."""
        groups = [group for group in self.prediction.groups if group.devices]
        total = sum(group.devices for group in groups)
        return sum(group.devices * group.busy_share for group in groups) / max(1, total)

    @property
    def peak_share(self) -> float:
        """Of the memory of the fullest device, what is used at its peak."""
        return max(group.peak_bytes / group.capacity_bytes for group in self.prediction.groups if group.devices)

    @property
    def peak_bytes(self) -> int:
        """The same in bytes."""
        return max(group.peak_bytes for group in self.prediction.groups if group.devices)


def ranked(outcome: Outcome, workload: Workload, system: System, software: Software) -> tuple[Ranked, ...]:
    """Return the plans of a search in the order of their mean step with drawn lengths."""
    found = (
        Ranked(each, predict(each.structure.graph, each.priced.plan, workload, system, software))
        for each in outcome.plans
    )
    return tuple(sorted(found, key=lambda each: (each.mean_s, each.prediction.plan)))


def as_json(outcome: Outcome, plans: Sequence[Ranked]) -> dict[str, Any]:
    """Return the answer of a search as plain data; seconds, bytes and shares as they are."""
    return {
        "bound_s": outcome.bound_s,
        "gap": outcome.gap,
        "structures": outcome.num_structures,
        "combinations": outcome.num_combinations,
        "plans": [
            {
                "rewrites": list(each.found.structure.rewrites),
                "staleness": each.found.structure.staleness,
                "streamed_in": each.found.structure.firings,
                "step_s": each.found.step_s,
                "mean_step_s": each.mean_s,
                "busy_share": each.busy_share,
                "peak_bytes": each.peak_bytes,
                "calls": [_call_json(found) for found in _calls(each)],
                "prediction": prediction_as_json(each.prediction),
            }
            for each in plans
        ],
    }


def as_text(outcome: Outcome, plans: Sequence[Ranked]) -> str:
    """Return the answer of a search as text for a terminal: the table, and how the best plan lies."""
    first = plans[0].prediction
    lines = [
        f"{len(plans)} plans on {first.devices} devices of {first.system}",
        f"chosen among {outcome.num_structures} structures and {outcome.num_combinations:.1e} places and layouts",
        f"no plan of these takes less than {_seconds(outcome.bound_s)}: the gap is {outcome.gap:.1%}",
        "",
        f"{'#':>2}  {'step':>8}  {'drawn':>8}  {'stale':>5}  {'busy':>5}  {'memory':>15}  {'GPU-h/1000':>10}  rewrites",
    ]
    lines += [_line(position, each) for position, each in enumerate(plans, 1)]
    return "\n".join([*lines, "", *_best(plans[0])])


def _line(position: int, each: Ranked) -> str:
    found, hours = each.found, each.prediction.gpu_hours_per_1000_steps
    memory = f"{bytes_text(each.peak_bytes)} ({each.peak_share:.0%})"
    rewrites = "; ".join(found.structure.rewrites) or "-"
    return (
        f"{position:>2}  {_seconds(found.step_s):>8}  {_seconds(each.mean_s):>8}  {found.structure.staleness:>5}  "
        f"{each.busy_share:>5.0%}  {memory:>15}  {hours:>10,.0f}  {rewrites}"
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """A call of a plan as people read it."""

    name: str
    where: str
    layout: str
    seconds: float
    tail_s: float


def _calls(each: Ranked) -> Iterator[_Line]:
    for assigned in each.found.assigned:
        row, choice = assigned.row, assigned.row.choice
        degrees = {name: getattr(choice, name) for name in ("tp", "pp", "dp", "cp", "ep")}
        parts = [f"{name} {value}" for name, value in degrees.items() if value > 1 or name == "dp"]
        if assigned.call.trains:
            parts += [f"zero {choice.zero}", f"micro {choice.micro_rows:g}", f"recompute {choice.recompute}"]
        if row.is_hauled:
            parts.append("weights on the host between steps")
        yield _Line(assigned.call.name, assigned.place.where, ", ".join(parts), row.seconds, row.tail_s)


def _call_json(line: _Line) -> dict[str, Any]:
    return {
        "call": line.name,
        "where": line.where,
        "layout": line.layout,
        "seconds": line.seconds,
        "tail_s": line.tail_s,
    }


def _best(each: Ranked) -> Iterator[str]:
    lines = list(_calls(each))
    width, place = max(len(line.name) for line in lines), max(len(line.where) for line in lines)
    yield f"{'call'.ljust(width)}  {'where'.ljust(place)}  {'busy':>8}  {'tail':>8}  layout"
    for line in lines:
        times = f"{_seconds(line.seconds):>8}  {_seconds(line.tail_s):>8}"
        yield f"{line.name.ljust(width)}  {line.where.ljust(place)}  {times}  {line.layout}"
    used = each.prediction
    yield ""
    yield f"profiles: {', '.join(used.profiles)}"
    if used.extrapolates:
        yield f"outside of what they were fitted on: {used.extrapolates}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
