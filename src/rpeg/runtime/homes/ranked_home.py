"""Workers in processes that `torchrun`, `srun` or `rpeg launch` has started, on one machine or on several; no Ray.

    rank 0, the controller ──meeting──▶ rank 1, rank 2 ... (`serve_rank`), each of which hosts one worker
             └──▶ its own worker, and those that need no device, in local processes (`ProcessHome`)

Workers follow nodes: neighbours in the plan are neighbours on a machine, whatever order ranks were dealt in.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rpeg import __version__
from rpeg.errors import Fault, PlanError, RunFault, WaitLimit
from rpeg.plan.plan import Plan
from rpeg.runtime.group import worker_names
from rpeg.runtime.homes.home import Seat
from rpeg.runtime.homes.line import GRACE_S, Line, answer_calls
from rpeg.runtime.homes.meeting import Meeting, Stranger, greet, join, open_meeting
from rpeg.runtime.homes.messages import pack, receive_whole, send_whole, unpack
from rpeg.runtime.homes.processes import ProcessHome
from rpeg.runtime.homes.ranks import Rank
from rpeg.runtime.homes.servant import BUILD, Servant, ahead_s
from rpeg.runtime.homes.worker_process import ignore_signals
from rpeg.runtime.worker import WorkerSpec

__all__ = ["RankedHome", "own_device", "serve_rank"]

_ALL_THERE_S = 120.0
"""How long rank 0 waits for the others once it listens."""


@dataclass(frozen=True, slots=True)
class _Hello:
    """What a rank says of itself."""

    version: str
    rank: Rank
    device: str
    clock_s: float
    """What its clock shows when it says so."""


class RankedHome:
    """One worker per rank; all of them end with rank 0, and a rank that ends is named."""

    def __init__(self, rank: Rank, plan: Plan, device: str, say: Callable[[str], None]) -> None:
        """Wait until all ranks are there and give each a worker of ``plan``.

        Raises:
            PlanError: when there are more ranks than workers, or fewer.
            WaitLimit: when ranks are missing, with their numbers and nodes.
            RunFault: when ranks do not fit each other.
        """
        on_host = {mesh.name for mesh in plan.meshes if mesh.where.startswith("local.host")}
        names = [name for mesh in plan.meshes if mesh.name not in on_host for name in worker_names(mesh)]
        if len(names) != rank.size:
            text = f"has {len(names)} workers with a device ({', '.join(names)}), {rank.size} processes were started"
            raise PlanError("plan", [Fault(plan.meshes[0].where, text, f"start {len(names)}, or choose another plan")])
        self._local, self._lines = ProcessHome(), dict[str, Line]()
        self._ends: dict[int, socket.socket] = {}
        self._ahead_s: dict[int, float] = {}
        hellos = {0: _Hello(__version__, rank, own_device(), 0.0)}
        try:
            self.address = host = self._gather(rank, hellos, say)
            """Where the other ranks reach this machine."""
            _check(hellos, device)
        except BaseException:
            self.close()
            raise
        self._seats = dict[str, Seat]()
        for name, number in zip(names, sorted(hellos, key=lambda each: hellos[each].rank.order), strict=True):
            place = self._ends[number].getpeername()[0] if number else host
            kind = "cpu" if device == "cpu" else hellos[number].device
            self._seats[name] = Seat(place, kind, hellos[number].rank.node, number)
        self._seats |= {name: Seat(host, "cpu", rank.node, 0) for name in on_host}

    def _gather(self, rank: Rank, hellos: dict[int, _Hello], say: Callable[[str], None]) -> str:
        """Let every other rank come in; return the address of this machine."""
        meeting, listening, file = open_meeting(os.environ, rank)
        door = _Door(meeting, listening)
        deadline_s = time.monotonic() + _ALL_THERE_S
        try:
            while len(hellos) < rank.size:
                for end, hello, ahead in door.come_in():
                    self._ends[hello.rank.number], self._ahead_s[hello.rank.number] = end, ahead
                    _admit(hello, rank, hellos)
                    hellos[hello.rank.number] = hello
                if time.monotonic() > deadline_s:
                    missing = ", ".join(rank.text_of(each) for each in range(rank.size) if each not in hellos)
                    text = f"{len(hellos)} of {rank.size} ranks have joined after {_ALL_THERE_S:.0f} s"
                    raise WaitLimit(f"{text}; missing: {missing}")
        finally:
            door.close()
            if file is not None:
                file.unlink(missing_ok=True)
        if door.num_strangers:
            say(f"{door.num_strangers} connections of strangers to {meeting.host}:{meeting.port} were refused")
        return meeting.host

    def spawn(self, name: str, spec: WorkerSpec) -> Future[Any]:
        """Let the rank of this worker build it."""
        seat = self._seats[name]
        if not seat.rank:
            return self._local.spawn(name, spec)
        died = f"worker {name} (rank {seat.rank} on {seat.node}) has ended or cannot be reached"
        end, ahead = self._ends[seat.rank], self._ahead_s[seat.rank]
        self._lines[name] = Line(name, end, send_whole, receive_whole, lambda: died, ahead)
        return self._lines[name].call(BUILD, spec)

    def call(self, name: str, method: str, *args: object) -> Future[Any]:
        """Send a call; the future raises what the method raised, `WorkerDied` when its process ended."""
        if name in self._lines:
            return self._lines[name].call(method, *args)
        return self._local.call(name, method, *args)

    def seats(self) -> Mapping[str, Seat]:
        """Return which worker lives where."""
        return self._seats

    def close(self) -> None:
        """Let every worker finish its call and end; whoever takes longer is left to end by itself in seconds."""
        for line in self._lines.values():
            line.ask_to_end()
        self._local.close()
        deadline_s = time.monotonic() + GRACE_S
        for line in self._lines.values():
            line.close(max(0.0, deadline_s - time.monotonic()))
        for end in self._ends.values():
            end.close()


_Guest = tuple[socket.socket, _Hello, float]
"""Its end, what it said, and how far its clock is ahead."""


class _Door:
    """Lets in who knows the token; each connection is greeted on a thread, so that none holds up the others."""

    def __init__(self, meeting: Meeting, listening: socket.socket) -> None:
        self._meeting, self._listening = meeting, listening
        self._guests: list[_Guest] = []
        self._lock = threading.Lock()
        self.num_strangers = 0

    def come_in(self) -> list[_Guest]:
        """Wait a moment for connections; return those that were let in since the last time."""
        self._listening.settimeout(0.1)
        with suppress(TimeoutError):
            end, _ = self._listening.accept()
            threading.Thread(target=self._greet, args=(end,), daemon=True).start()
        with self._lock:
            found, self._guests = self._guests, []
        return found

    def _greet(self, end: socket.socket) -> None:
        try:
            asked_s = time.monotonic()
            greet(end, self._meeting.token)
            hello = unpack(receive_whole(end))
            guest = (end, hello, ahead_s(asked_s, hello.clock_s, time.monotonic()))
        except (Stranger, EOFError, OSError):
            end.close()
            with self._lock:
                self.num_strangers += 1
            return
        with self._lock:
            self._guests.append(guest)

    def close(self) -> None:
        """Let nobody in any more."""
        self._listening.close()
        with self._lock:
            for end, *_ in self._guests:
                end.close()


def _admit(hello: _Hello, own: Rank, hellos: Mapping[int, _Hello]) -> None:
    """Refuse a rank that belongs to another run or another version."""
    rank = hello.rank
    if hello.version != __version__:
        raise RunFault(f"rank {rank.number} on {rank.node} runs rpeg {hello.version}, rank 0 runs {__version__}")
    if rank.size != own.size:
        raise RunFault(f"rank {rank.number} on {rank.node} is one of {rank.size} ranks, rank 0 one of {own.size}")
    if rank.number in hellos:
        raise RunFault(f"there are two ranks {rank.number}: on {hellos[rank.number].rank.node} and on {rank.node}")


def _check(hellos: Mapping[int, _Hello], device: str) -> None:
    """Find ranks that would compute on the same device, or on another kind than rank 0."""
    if device == "cpu":
        return
    texts = {number: f"rank {number} on {each.rank.node}: {each.device}" for number, each in hellos.items()}
    if len({each.device == "cpu" for each in hellos.values()}) > 1:
        raise RunFault("ranks have different kinds of devices (CUDA_VISIBLE_DEVICES): " + "; ".join(texts.values()))
    counts = Counter((each.rank.node, each.device) for each in hellos.values() if each.device != "cpu")
    twice = [texts[n] for n, each in hellos.items() if counts[each.rank.node, each.device] > 1]
    if twice:
        raise RunFault("ranks share a device (CUDA_VISIBLE_DEVICES): " + "; ".join(twice))


def own_device() -> str:
    """Return what this process computes on, by the name that is the same for every process of the machine."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda {torch.cuda.get_device_properties(0).uuid}"


def serve_rank(rank: Rank) -> None:
    """Be a rank other than 0: host the worker that it is given until rank 0 ends.

    Raises:
        WaitLimit: when rank 0 is not there in time.
        RunFault: when who is there is not rank 0.
    """
    device = own_device()
    end = join(os.environ, rank)
    ignore_signals()  # until now they end this process: nobody else would
    send_whole(end, pack(_Hello(__version__, rank, device, time.monotonic())))
    answer_calls(end, Servant(f"of rank {rank.number}"), send_whole, receive_whole)
