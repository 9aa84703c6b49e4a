"""What has to stand above every table: what was asked, on what, with which constants, and who might do what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rpeg.hardware.topology import System
from rpeg.search.baselines.baseline import MODELLED
from rpeg.search.baselines.catalog import BASELINES
from rpeg.search.evaluation.ladder import PARALLELISM, RUNGS
from rpeg.search.evaluation.scenarios import Scenario
from rpeg.search.evaluation.solve import Order, Solved
from rpeg.units import bytes_text

__all__ = ["assumptions", "common"]

_SEARCH = (
    "Search: plans of baselines and of the rows up to scheduling are the best of the settings whose tables are most "
    "promising; the other rows are searched as rpeg plan does. A row keeps the plan of the row above if it finds "
    "no better one."
)
_HOST = (
    "Nobody's trained weights or optimizer states rest on the host, neither here nor in a baseline; frozen weights may."
)


def assumptions(scenario: Scenario, solved: Sequence[Solved], order: Order) -> Iterator[str]:
    """Yield the assumptions of the tables of a scenario, a sentence or two each."""
    yield from _loads(solved)
    yield from common(solved, order)
    if scenario.sweep:
        yield "Each row: the best plan whose samples are at most so old; in flight: weights change while they run."
    yield from _gaps(solved)


def common(solved: Sequence[Solved], order: Order) -> Iterator[str]:
    """Yield what is assumed of all columns: machines, profiles, and what everybody that is shown may choose."""
    yield f"Machine: {_machine(max((each.column.machine for each in solved), key=lambda each: each.gpus).system())}."
    if any(each.column.machine.racks for each in solved):
        yield "Racks: nodes in equal parts; a rack sends over its links 25 GB/s per device, divided by the taper."
    yield from (f"Profiles: {text}; the same for all." for text in _distinct(solved, "profiles"))
    yield from (f"Outside of what the profiles were fitted on: {text}." for text in _distinct(solved, "outside"))
    yield (
        "Steps are those of the schedule in the long run with expected lengths; in brackets how many steps old samples "
        "are. The CSV has them with drawn lengths as well."
    )
    shown = {line.name for each in solved for line in each.lines}
    yield from _rungs(shown, order)
    yield from _baselines(shown)
    yield _HOST


def _rungs(shown: set[str], order: Order) -> Iterator[str]:
    found = [rung for rung in RUNGS if rung.name in shown]
    if found:
        yield f"Where anything is asynchronous, samples are at most {order.staleness} steps old."
        yield from (f"{rung.name}: {rung.may}." for rung in found)
        yield _SEARCH


def _baselines(shown: set[str]) -> Iterator[str]:
    found = [baseline for name, baseline in BASELINES.items() if name in shown]
    if found:
        yield MODELLED
    for each in found:
        yield f"{each.name} may choose: {each.may}. Not modelled: {each.not_modelled}."


def _machine(system: System) -> str:
    device = system.device
    links = "; ".join(
        f"{level.count} {level.name}s by {level.link.name}, {level.link.bytes_per_s / 1e9:g} GB/s per device"
        for level in reversed(system.levels)
        if level.link is not None and level.count > 1
    )
    peak = dict(device.peak_flops)["bfloat16"] / 1e12
    return f"Alps, {device.name} of {bytes_text(device.memory_bytes)}, {peak:g} TFLOP/s bfloat16; {links}"


def _loads(solved: Sequence[Solved]) -> Iterator[str]:
    by_load: dict[str, list[str]] = {}
    for each in solved:
        by_load.setdefault(str(each.column.load), []).append(each.column.label)
    for text, labels in by_load.items():
        yield f"Workload: {text}." if len(by_load) == 1 else f"Workload of {', '.join(labels)}: {text}."


def _distinct(solved: Sequence[Solved], field: str) -> list[str]:
    """Return what the lines say in a field, every part of it once."""
    found: dict[str, None] = {}
    for each in solved:
        for line in each.lines:
            value = line.outside if field == "outside" else "; ".join(line.profiles)
            found |= dict.fromkeys(value.split(", ") if field == "outside" else [value])
    parts = [text for text in found if text]
    return [", ".join(parts)] if field == "outside" and parts else parts


def _gaps(solved: Sequence[Solved]) -> Iterator[str]:
    found: list[str] = []
    for each in solved:
        line = each.line(PARALLELISM)
        if each.bound_s is not None and line is not None and line.step_s is not None:
            gap = max(0.0, 1.0 - each.bound_s / line.step_s)
            found.append(f"{each.column.label} {each.bound_s:.3g} s ({gap:.0%})")
    if found:
        yield f"Gap: no synchronous plan of the space takes less than: {', '.join(found)} below {PARALLELISM}."
