"""This host, measured: what it is, what its kernels, links and the engine's firings take, as a folder of profiles.

peaks ─▶ kernels ─▶ links ─▶ firings of small models, in turns ─▶ whole runs ─▶ fits ─▶ systems/ devices/ links/
                                                                                    serving/ training/ memory/ rl/
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from statistics import median

import torch

from rpeg.hardware.catalog import load_device
from rpeg.hardware.topology import Device, Level, Link, System
from rpeg.observe.trace import Span
from rpeg.perf.software import RlConstants
from rpeg.runtime.calibrate.engine import EngineFits, fit_engine
from rpeg.runtime.calibrate.kernels import KernelFits, Peaks, fit_kernels, kernels_of, measure_peaks
from rpeg.runtime.calibrate.links import LinkFits, Sent, fit_links, measure_links
from rpeg.runtime.calibrate.memory_fit import MemoryFits, fit_memory
from rpeg.runtime.calibrate.profile_folder import ProfileFile, check_writable, toml_text, write_profiles
from rpeg.runtime.calibrate.trials import Fired, Trial, fire, run

__all__ = ["Calibration", "Effort", "calibrate", "system_text"]

_Say = Callable[[str], None]

_TRIALS = (
    Trial(),
    Trial(layers=1, hidden=32, heads=2, intermediate=64),
    Trial(layers=3, hidden=64, heads=2, intermediate=160, prompts=16, group=4, response_tokens=16),
    Trial(hidden=256, heads=8, intermediate=640, prompts=4),
    Trial(layers=4, hidden=256, intermediate=640, prompts=4, group=4, response_tokens=32),
    Trial(prompts=32),
    Trial(response_tokens=48),
    Trial(prompts=2, group=4, response_tokens=32),
    Trial(hidden=64, intermediate=160, prompts=16, response_tokens=32, micro_batch_tokens=1024),
    Trial(layers=4, group=4, response_tokens=16, micro_batch_tokens=256),
    Trial(layers=1, hidden=64, heads=2, intermediate=160, prompts=16, group=16, response_tokens=16),
    Trial(hidden=64, heads=2, intermediate=160, vocabulary=2048, prompt_tokens=32),
    Trial(layers=3, hidden=192, heads=6, intermediate=480, response_tokens=32, updates=2),
    Trial(layers=6, hidden=96, heads=3, intermediate=240, prompts=4, group=4, response_tokens=64),
)
"""Between a hundred thousand and three million weights; each also scores its rows without gradients."""
_WHOLE = Trial(prompts=16)
"""Of whole runs, which show what the controller adds and what workers lose side by side."""
_MOST_CROWDING = 1.5


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured; the usual amounts take about a minute on an idle machine, two on a busy one."""

    kernel_rounds: int = 12
    link_rounds: int = 15
    trials: Sequence[Trial] = _TRIALS
    steps: int = 3
    """Of a trial; the first one does not count."""
    rounds: int = 2
    """Of all trials, in turns."""
    trials_s: float = 55.0
    """No trial is repeated once all of them took so long."""
    run_steps: int = 8


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured and fitted."""

    folder: Path
    files: tuple[str, ...]
    """Written in it."""
    facts: Mapping[str, str]
    """Of the host, for people."""
    errors_pct: Mapping[str, float]
    """Of every part, on what was left out of its fit where something was."""


def calibrate(folder: Path, say: _Say, effort: Effort | None = None) -> Calibration:
    """Measure this host and write its profiles into ``folder``.

    Args:
        folder: of profiles; others in it are left alone.
        say: hears what is measured.
        effort: how much is measured.

    Raises:
        ProfileError: before anything is measured, when the folder cannot be written.
    """
    check_writable(folder)
    used, threads = effort or Effort(), torch.get_num_threads()
    try:
        found = _measured(used, say)
    finally:
        torch.set_num_threads(threads)
    files = dict(found.files(date.today().isoformat()))
    write_profiles(folder, files)
    return Calibration(folder, tuple(files), found.facts, found.errors_pct)


@dataclass(frozen=True, slots=True)
class _Found:
    """Everything that was fitted."""

    system: System
    peaks: Peaks
    sent: Sent
    kernels: KernelFits
    links: LinkFits
    engine: EngineFits
    memory: MemoryFits
    processes: RlConstants
    """Of workers in processes of their own."""
    fired: Sequence[Fired]

    @property
    def facts(self) -> dict[str, str]:
        device = self.system.device
        return {
            "host": _host(),
            "products": ", ".join(f"{flops / 1e9:.0f} GFLOP/s in {name}" for name, flops in device.peak_flops),
            "copies": f"{device.memory_bytes_per_s / 1e9:.1f} GB/s",
            "processes": f"{self.sent.latency_s * 1e6:.0f} us, {self.sent.bytes_per_s / 1e9:.2f} GB/s over gloo",
            "operation": f"{self.peaks.launch_s * 1e6:.1f} us",
            "side by side": f"threads lose {self.engine.rl.crowding:.2f} s, processes {self.processes.crowding:.2f} s "
            "of each second that they share",
        }

    @property
    def errors_pct(self) -> dict[str, float]:
        engine = {f"engine {stage}": each["left_out"] for stage, each in self.engine.errors_pct.items()}
        gemm = {f"products {dtype}": error for dtype, error in self.kernels.errors_pct["gemm"].items()}
        return {**gemm, **engine, "memory": self.memory.error_pct, "links": self.links.errors_pct["fitted"]}

    def files(self, today: str) -> Iterator[tuple[str, str]]:
        """Yield the profiles with their names in the folder."""
        yield "systems/local.toml", system_text(self.system, today)
        errors, trials = self.engine.errors_pct, [each.trial for each in self.fired]
        where = f"rpeg calibrate --host on {_host()}"
        tried = f"{len(trials)} small models, {where}"
        alone = {"device": ["cpu"], "gpus": [1, 1]}
        lengths = _range(trial.prompt_tokens + trial.response_tokens for trial in trials)
        passes = {**alone, "dtype": ["float32"], "hidden": _range(trial.hidden for trial in trials)}
        prompts = {"device": ["cpu"], "tp": [1, 1], "prompt_tokens": _range(trial.prompt_tokens for trial in trials)}
        worlds = {"kind": ["loopback"], "gpus": _range({world for _, world, _, _ in self.sent.points})}
        rows = {"rows": errors["rows"]}
        by_pass = {name: errors[name] for name in ("train", "forward", "update")}
        peaks, links = {"fitted": self.memory.error_pct}, {"nccl": self.links.errors_pct}
        for each in (
            ProfileFile("devices", "local", self.kernels.constants, where, ("cpu",), self.kernels.errors_pct, alone),
            ProfileFile("links", "loopback", self.links.profile, where, ("memory",), links, {"nccl": worlds}),
            ProfileFile("serving", "rpeg", self.engine.serving, tried, (), {"generate": errors["generate"]}, prompts),
            ProfileFile("training", "rpeg", self.engine.training, tried, (), by_pass, passes),
            ProfileFile("memory", "rpeg", self.memory.constants, tried, (), peaks, {"length_tokens": lengths}),
            ProfileFile("rl", "rpeg", self.engine.rl, tried, (), rows, {"devices": [1, 2]}),
            ProfileFile("rl", "rpeg-processes", self.processes, tried, (), rows, {"devices": [1, 2]}),
        ):
            yield f"{each.kind}/{each.name}.toml", each.text(today)


def _range(values: Iterable[int]) -> list[int]:
    found = list(values)
    return [min(found), max(found)]


def _measured(effort: Effort, say: _Say) -> _Found:
    say(f"firings of {len(effort.trials)} small models")
    fired = _fired(effort)  # first: what large products leave behind would hide what a small model takes
    say("products, copies, attention")
    peaks = measure_peaks(effort.kernel_rounds)
    kernels = fit_kernels(_device(peaks), peaks, effort.kernel_rounds)
    say("processes")
    cores = os.cpu_count() or 1
    sent = measure_links((2, 4) if cores >= 4 else (2,), effort.link_rounds)
    system = _system(_device(peaks), sent)
    say("whole runs")
    engine = fit_engine(system, kernels_of(system.device, kernels.constants), fired)
    rl, processes = _whole(engine.rl, effort)
    memory = fit_memory(fired)
    links = fit_links(system.levels[-1].link or system.device.host, sent)
    return _Found(system, peaks, sent, kernels, links, replace(engine, rl=rl), memory, processes, fired)


def _fired(effort: Effort) -> list[Fired]:
    """Return the shortest firings of every trial, which take turns as long as there is time."""
    trials = [replace(trial, is_recomputed=True) for trial in effort.trials]
    fire(trials[0], 2)  # what the first model of a process builds is there for all later ones
    start_s, found = time.monotonic(), dict[Trial, Fired]()
    for _ in range(effort.rounds):
        for trial in trials:
            if trial not in found:
                found[trial] = fire(trial, effort.steps)
            elif time.monotonic() - start_s < effort.trials_s:
                found[trial] = found[trial].shorter(fire(trial, effort.steps))
    return list(found.values())


def _whole(rl: RlConstants, effort: Effort) -> tuple[RlConstants, RlConstants]:
    """Return the constants with what whole runs add: in threads of one process, and in processes.

    Runs have only the clock on the wall. How much slower than its firings one worker alone is says how much of the
    machine others take, and is taken off those of several.
    """
    trial = replace(_WHOLE, is_recomputed=True)
    alone = fire(trial, effort.steps).seconds
    steps_s, spans = run(trial, effort.run_steps)
    told = replace(rl, step_s=_between_s(steps_s, spans))
    taken = max(1.0, median(steps_s) / (sum(alone.values()) + told.step_s))
    crowded: dict[str, RlConstants] = {}
    for home in ("inline", "processes"):
        steps_s, _ = run(replace(_WHOLE, staleness=1, home=home), effort.run_steps)
        crowded[home] = replace(told, crowding=_crowding(median(steps_s) / taken - told.step_s, alone))
    return crowded["inline"], crowded["processes"]


def _between_s(steps_s: Sequence[float], spans: Sequence[Span]) -> float:
    """Return what of a step is in no firing: events that are heard of, metrics and spans that are written."""
    busy = [sum(span.duration_s for span in spans if span.step == step) for step in range(2, len(steps_s) + 2)]
    return max(1e-6, min(whole - inside for whole, inside in zip(steps_s, busy, strict=True)))


def _crowding(step_s: float, alone: Mapping[str, float]) -> float:
    """Return ``c`` of a step of ``B + c b`` seconds: the longer side, and what the shorter one takes of it."""
    sides = alone["gen"], sum(alone[name] for name in ("old", "train", "update", "push"))
    return round(min(_MOST_CROWDING, max(0.0, (step_s - max(sides)) / min(sides))), 3)


def _device(peaks: Peaks) -> Device:
    """Return one process with one thread."""
    base, memory = load_device("cpu"), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return replace(
        base,
        memory_bytes=memory // (os.cpu_count() or 1),
        memory_bytes_per_s=peaks.copy_bytes_per_s,
        peak_flops=tuple(peaks.flops.items()),
        host=Link("memory", peaks.copy_bytes_per_s, peaks.launch_s),
        host_memory_bytes=memory,
    )


def _system(device: Device, sent: Sent) -> System:
    levels = (Level("local", 1, None), Level("slot", 64, Link("loopback", sent.bytes_per_s, sent.latency_s)))
    return System("local", levels, device, {})


def system_text(system: System, today: str) -> str:
    """Return a machine of slots, measured on that day, in the form of the catalogue."""
    device, link = system.device, system.levels[-1].link
    assert link is not None, "slots are joined"

    def figure(value: float, what: str, *, is_measured: bool = True) -> dict[str, object]:
        return {"value": float(f"{value:.5g}"), "source": f"rpeg calibrate {today}: {what}", "measured": is_measured}

    copied, joined = "large copy, one thread", "gloo between two processes"
    table = {
        "name": system.name,
        "device": {
            "name": device.name,
            "memory_bytes": figure(device.memory_bytes, "the host's memory over its cores"),
            "memory_bytes_per_s": figure(device.memory_bytes_per_s, copied),
            "host_memory_bytes": figure(device.host_memory_bytes, "the host's memory"),
            "peak_flops": {name: figure(flops, "product of 1024, one thread") for name, flops in device.peak_flops},
            "host": {
                "link": "memory",
                "bytes_per_s": figure(device.host.bytes_per_s, copied),
                "latency_s": figure(device.host.latency_s, "one operation"),
            },
        },
    }
    slots = {
        "count": figure(64, "processes are free to have; the cores they share are not", is_measured=False),
        "bytes_per_s": figure(link.bytes_per_s, joined),
        "latency_s": figure(link.latency_s, joined),
    }
    one = figure(1, "it is this machine", is_measured=False)
    outer = toml_text({"name": "local"}) + toml_text({"count": one}, "levels.")
    inner = toml_text({"name": "slot", "link": "loopback"}) + toml_text(slots, "levels.")
    return f"{toml_text(table)}\n[[levels]]\n{outer}\n[[levels]]\n{inner}"


def _host() -> str:
    cores = os.cpu_count() or 1
    return f"{platform.machine()} with {cores} cores, {platform.system()}, torch {torch.__version__}"
