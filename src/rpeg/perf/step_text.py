"""A prediction as text and as plain data for JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rpeg.perf.step import GroupLine, Prediction
from rpeg.units import bytes_text

__all__ = ["as_json", "as_text"]

_SHOWN = 6
_NOTHING_S = 5e-4


def as_json(found: Prediction) -> dict[str, Any]:
    """Return a prediction as plain data, with what follows from it; seconds, bytes and shares as they are."""
    return {
        **asdict(found),
        "tokens_per_s": found.tokens_per_s,
        "tokens_per_s_per_device": found.tokens_per_s_per_device,
        "gpu_hours_per_1000_steps": found.gpu_hours_per_1000_steps,
    }


def as_text(found: Prediction) -> str:
    """Return a prediction as text for a terminal."""
    return "\n".join([*_head(found), "", *_stage_lines(found), "", *_group_lines(found), "", *_foot(found)])


def _head(found: Prediction) -> Iterator[str]:
    devices, spread = found.devices, found.spread
    yield f"step time  {_seconds(found.step_s)} on {devices} devices of {found.system}"
    if found.cycle:
        steps = f"{found.cycle_steps} step{'s' if found.cycle_steps != 1 else ''}"
        stages = dict.fromkeys(event.rpartition(".")[0] for event in found.cycle)
        yield f"limited by {' -> '.join([*stages, next(iter(stages))])}, in {steps}"
    yield (
        f"spread     with drawn lengths p10 {_seconds(spread.p10_s)}, p50 {_seconds(spread.p50_s)}, "
        f"p90 {_seconds(spread.p90_s)}, mean {_seconds(spread.mean_s)}"
    )
    yield (
        f"throughput {found.tokens_per_s:,.0f} tokens/s, {found.tokens_per_s_per_device:,.0f} per device "
        f"({found.rows} samples, {found.tokens / 1e6:.2f} million tokens a step)"
    )
    yield f"cost       {found.gpu_hours_per_1000_steps:,.1f} GPU-hours per 1,000 steps; MFU {found.mfu:.1%}"
    for line in found.staleness:
        yield f"staleness  {line.generator}: mean {line.mean:.2g}, at most {line.max} versions"


def _stage_lines(found: Prediction) -> Iterator[str]:
    width = max(len(line.name) for line in found.stages)
    yield f"{'stage'.ljust(width)}  {'kind':10}  {'firings':>7}  {'busy':>8}  {'tail':>8}  {'share':>6}  where"
    for line in found.stages:
        if line.occupancy_s + line.tail_s < _NOTHING_S:
            continue
        mark = "*" if line.is_limiting else " "
        yield (
            f"{line.name.ljust(width)}  {line.kind:10}  {line.firings:7}  {_seconds(line.occupancy_s):>8}  "
            f"{_seconds(line.tail_s) if line.tail_s else '-':>8}  {line.share:6.1%}  {', '.join(line.where)} {mark}"
        )
    yield "* on the cycle that limits the step"


def _group_lines(found: Prediction) -> Iterator[str]:
    for group in found.groups:
        if not group.devices:
            continue
        yield (
            f"{group.name}: {group.devices} devices, busy {group.busy_share:.1%}, MFU {group.mfu:.1%}, memory "
            f"{bytes_text(group.peak_bytes)} of {bytes_text(group.capacity_bytes)} during {group.peak_during or 'rest'}"
        )
        yield f"  at the peak: {_residents(group)}"
        phases = ", ".join(f"{name} {bytes_text(size)}" for name, size in group.phases)
        yield f"  most during: {phases}"


def _residents(group: GroupLine) -> str:
    shown = [f"{name} {bytes_text(size)}" for name, size in group.residents[:_SHOWN]]
    rest = sum(size for _, size in group.residents[_SHOWN:])
    return ", ".join([*shown, *([f"{bytes_text(rest)} more"] if rest else [])])


def _foot(found: Prediction) -> Iterator[str]:
    yield f"profiles: {'; '.join(found.profiles)}"
    yield f"beyond what was fitted: {found.extrapolates}" if found.extrapolates else "within what was fitted"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"
