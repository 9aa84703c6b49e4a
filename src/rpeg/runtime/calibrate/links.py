"""Processes of this host among themselves: what gloo takes for messages and collectives, and constants that fit it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from rpeg.errors import RunFault
from rpeg.hardware.topology import Link
from rpeg.perf.collectives import Collective, collective_s
from rpeg.perf.fit import fit
from rpeg.perf.group import Group
from rpeg.perf.links import LinkConstants, LinkProfile

__all__ = ["LinkFits", "Sent", "fit_links", "measure_links", "serve"]

_START = "import sys; sys.path[:] = {path!r}; from rpeg.runtime.calibrate.links import serve; serve{arguments!r}"
_BYTES = (2**6, 2**10, 2**14, 2**17, 2**20, 2**23, 2**25)
_MESSAGE_BYTES = 2**25
_LIMIT_S = 60.0
"""Processes that have not met by then are given up."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What processes measured among themselves."""

    latency_s: float
    """Half of a round trip of four bytes between two."""
    bytes_per_s: float
    """Of a large message between two."""
    collectives_s: Mapping[Collective, Mapping[int, Mapping[int, float]]]
    """Seconds of a collective, by processes, then by bytes: sums in any case, and what splits of a model ask for."""

    @property
    def points(self) -> list[tuple[Collective, int, int, float]]:
        """Everything as kind, processes, bytes and seconds."""
        return [
            (kind, world, size, seconds)
            for kind, worlds in self.collectives_s.items()
            for world, each in worlds.items()
            for size, seconds in each.items()
        ]


@dataclass(frozen=True, slots=True)
class LinkFits:
    """Constants, and how far they are off in percent."""

    profile: LinkProfile
    errors_pct: Mapping[str, float]


def measure_links(worlds: tuple[int, ...], rounds: int) -> Sent:
    """Return what groups of these sizes measure, the first of them two."""
    found = {world: _measured(world, rounds) for world in worlds}
    kinds = {
        kind: {world: {int(size): s for size, s in each[kind].items()} for world, each in found.items()}
        for kind in _COLLECTIVES
    }
    first = found[worlds[0]]
    return Sent(first["latency"]["s"], first["bandwidth"]["bytes_per_s"], kinds)


def fit_links(link: Link, sent: Sent) -> LinkFits:
    """Return the constants with which the model of collectives is nearest to what was measured on ``link``."""
    measured = np.array([seconds for *_, seconds in sent.points])
    has_exchanges = Collective.ALL_TO_ALL in sent.collectives_s

    def constants(values: Mapping[str, float]) -> LinkConstants:
        hop_s = values.get("hop_s", sent.latency_s)
        base = LinkConstants(values["start_s"], hop_s, values["bandwidth_fraction"], values["half_bytes"])
        return replace(
            base,
            exchange_start_s=values.get("exchange_start_s", values["start_s"]),
            exchange_fraction=values.get("exchange_fraction", base.exchange_fraction),
            peer_s=hop_s,
            ports=float(os.cpu_count() or 1),
        )

    def predict(values: Mapping[str, float]) -> np.ndarray:
        links = {link.kind: constants(values)}
        groups = ((kind, Group(((link, world),)), size) for kind, world, size, _ in sent.points)
        return np.array([float(collective_s(kind, float(size), group, links)) for kind, group, size in groups])

    start = {"start_s": 5e-5, "bandwidth_fraction": 0.6, "half_bytes": 1e6}
    if len(sent.collectives_s[Collective.ALL_REDUCE]) > 1:  # of two processes alone nobody can tell a start from hops
        start["hop_s"] = sent.latency_s
    start |= {"exchange_start_s": 5e-5, "exchange_fraction": 1.0} if has_exchanges else {}
    limits = {"bandwidth_fraction": (0.05, 5.0), "half_bytes": (1.0, 1e9), "exchange_fraction": (0.05, 20.0)}
    found = fit(predict, measured, start, {name: each for name, each in limits.items() if name in start})
    copy = LinkConstants(start_s=2e-6, hop_s=0.0, bandwidth_fraction=1.0)
    return LinkFits(LinkProfile(constants(found.values), copy=copy), {"fitted": found.error_pct})


def _measured(world: int, rounds: int) -> dict[str, dict[str, float]]:
    """Start processes that meet in a file, and return what the first one writes."""
    with tempfile.TemporaryDirectory(prefix="rpeg-") as place:
        answer = Path(place, "answer.json")
        workers = [_start(rank, world, rounds, Path(place, "meeting"), answer) for rank in range(world)]
        try:
            for worker in workers:
                _, said = worker.communicate(timeout=_LIMIT_S)
                if worker.returncode:
                    raise RunFault(
                        f"a process that measures links ended with {worker.returncode}: {said.strip()[-500:]}"
                    )
        finally:
            for worker in workers:
                worker.kill()
        return json.loads(answer.read_text())


def _start(rank: int, world: int, rounds: int, meeting: Path, answer: Path) -> subprocess.Popen[str]:
    code = _START.format(path=sys.path, arguments=(rank, world, rounds, str(meeting), str(answer)))
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)


def serve(rank: int, world: int, rounds: int, meeting: str, answer: str) -> None:
    """Measure as one process of a group; the first one writes the answer."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    found: dict[str, dict[str, float]] = {
        kind: {str(size): _shortest(call(size, world), rounds) for size in _BYTES if size >= 4 * world}
        for kind, call in _COLLECTIVES.items()
    }
    small_s = _shortest(_round_trip(rank, 4), 20 * rounds)
    large_s = _shortest(_round_trip(rank, _MESSAGE_BYTES), rounds)
    dist.barrier()
    if rank == 0:
        found |= {"latency": {"s": small_s / 2}, "bandwidth": {"bytes_per_s": 2 * _MESSAGE_BYTES / large_s}}
        Path(answer).write_text(json.dumps(found))
    dist.destroy_process_group()


def _sum(num_bytes: int, world: int) -> Callable[[], object]:
    values = torch.zeros(num_bytes // 4)
    return lambda: dist.all_reduce(values)


def _gather(num_bytes: int, world: int) -> Callable[[], object]:
    parts = list(torch.zeros(num_bytes // 4).chunk(world))
    own = torch.zeros_like(parts[0])
    return lambda: dist.all_gather(parts, own)


def _scatter(num_bytes: int, world: int) -> Callable[[], object]:
    parts = list(torch.zeros(num_bytes // 4).chunk(world))
    own = torch.zeros_like(parts[0])
    return lambda: dist.reduce_scatter(own, parts)


def _exchange(num_bytes: int, world: int) -> Callable[[], object]:
    sent = torch.zeros(num_bytes // 4)
    received = torch.zeros_like(sent)
    return lambda: dist.all_to_all_single(received, sent)


_COLLECTIVES: Mapping[Collective, Callable[[int, int], Callable[[], object]]] = {
    Collective.ALL_REDUCE: _sum,
    Collective.ALL_GATHER: _gather,
    Collective.REDUCE_SCATTER: _scatter,
    Collective.ALL_TO_ALL: _exchange,
}
"""What is measured: the call of a number of bytes, as nccl-tests counts them, among some processes."""


def _round_trip(rank: int, num_bytes: int) -> Callable[[], object]:
    """A message to the second process and back; all others have nothing to do."""
    values = torch.ones(num_bytes // 4)

    def first() -> None:
        dist.send(values, 1)
        dist.recv(values, 1)

    def second() -> None:
        dist.recv(values, 0)
        dist.send(values, 0)

    return (first, second, lambda: None)[min(rank, 2)]


def _shortest(call: Callable[[], object], rounds: int) -> float:
    found = float("inf")
    for _ in range(rounds):
        dist.barrier()
        start_s = time.perf_counter()
        call()
        found = min(found, time.perf_counter() - start_s)
    return found
