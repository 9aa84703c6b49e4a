"""Processes that are the ranks of a gloo world: started once, then given one function after the other to call.

Every process group has a thread that wakes a hundred times a second. So functions share theirs, and ranks that have
nothing to do are stopped: eight of them would take a quarter of two cores from all other tests.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import tempfile
import traceback
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from rpeg.environments.reward_process import end_with
from rpeg.numerics.parallel import axes

_LIMIT_S = 120.0
"""How long one function may take; ranks that wait for each other for longer are ended."""


class Ranks:
    """A world of some ranks. A function that hangs or fails on one of them ends them all; the next call starts anew."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._processes: list[tuple[Any, Any]] = []

    def run(self, work: Callable[..., Any], *args: object) -> list[Any]:
        """Call ``work(*args)``, which must be importable, on every rank; return what each returned."""
        if not self._processes:
            self._start()
        self._signal(signal.SIGCONT)
        for _, end in self._processes:
            end.send((work, args))
        answers = []
        for rank, (_, end) in enumerate(self._processes):
            if not end.poll(_LIMIT_S):
                self.close()
                raise TimeoutError(f"rank {rank} of {self.world} has not answered for {_LIMIT_S:.0f} s")
            answers.append(end.recv())
        if failed := [f"rank {rank}: {value}" for rank, (is_result, value) in enumerate(answers) if not is_result]:
            self.close()
            raise AssertionError("\n".join(failed))
        self._signal(signal.SIGSTOP)
        return [value for _, value in answers]

    def _start(self) -> None:
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed.tensor", "transformers", "rpeg.numerics.model"])
        folder = tempfile.mkdtemp(prefix="rpeg-ranks-")
        for rank in range(self.world):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, self.world, folder), daemon=True)
            process.start()
            theirs.close()
            self._processes.append((process, ours))

    def _signal(self, number: signal.Signals) -> None:
        for process, _ in self._processes:
            os.kill(process.pid, number)

    def close(self) -> None:
        for process, end in self._processes:
            end.close()
            process.kill()
            process.join()
        self._processes.clear()


def _serve(end: Connection, rank: int, world: int, folder: str) -> None:
    end_with(os.getppid())  # who is stopped sees no pipe that ends
    torch.set_num_threads(1)
    store = Path(folder) / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    axes.device_mesh = _hashable(cache(axes.device_mesh))
    while True:
        try:
            work, args = end.recv()
        except EOFError:
            return
        try:
            end.send((True, work(*args)))
        except BaseException:
            end.send((False, traceback.format_exc()))


def _hashable(mesh: Callable[..., DeviceMesh]) -> Callable[..., DeviceMesh]:
    """Return the function with its sequences as tuples, which a cache needs."""
    return lambda named, device, ranks=None: mesh(tuple(named), device, ranks and tuple(ranks))
