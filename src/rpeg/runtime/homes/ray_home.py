"""Workers as actors of Ray, on this machine or on a cluster: the way to several machines that Ray already joins.

    call ──▶ message (`messages.pack`) ──▶ Ray's object store ──▶ actor (`Hosted`) ──▶ `Servant`
    future ◀── thread of Ray ◀── Ray's object store ◀──┘

Every mesh of the plan has a placement group with one bundle per rank, packed on one node where it fits. Large tensors
lie in the object store as they are: whoever receives them sees them without a copy.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rpeg import __version__
from rpeg.errors import RunFault, WaitLimit, WorkerDied
from rpeg.plan.mesh import num_ranks
from rpeg.plan.plan import Mesh, Plan
from rpeg.recipe.schema import Recipe
from rpeg.runtime.homes.home import Seat
from rpeg.runtime.homes.line import GRACE_S
from rpeg.runtime.homes.messages import Packed, Received, as_bytes, pack
from rpeg.runtime.homes.ray_cluster import LocalCluster
from rpeg.runtime.homes.servant import BUILD, Servant, ahead_s, doing, settle
from rpeg.runtime.homes.worker_process import SIGNALS
from rpeg.runtime.worker import WorkerSpec

__all__ = ["Hosted", "RayHome"]

_ROOM_S = 60.0
"""How long to wait for room on the cluster that others may be about to leave."""
_REACH_S = 10.0
"""How long a machine may take to accept a connection."""
_Wire = tuple[bytes, list[tuple[int, "np.ndarray[Any, Any]"]]]
"""A message for Ray: the pickle, and offset and bytes of each large tensor, which Ray does not pickle."""


class Hosted:
    """What the actor of a worker is: a servant, and what is to be known of where it lives."""

    def __init__(self, name: str, version: str, path: Sequence[str], folder: str) -> None:
        """Find modules and files where the controller finds them."""
        if version != __version__:
            raise RuntimeError(f"rpeg {__version__} is installed there, the run is one of rpeg {version}")
        sys.path += [entry for entry in path if entry not in sys.path]
        with suppress(OSError):  # of another machine; what is named by a whole path may still be there
            os.chdir(folder)
        self._servant = Servant(name)

    def answer(self, wire: _Wire) -> _Wire:
        """Answer one message."""
        return _wire(self._servant.answer(_received(wire)))

    def clock_s(self) -> float:
        """Return what the clock of this machine shows."""
        return time.monotonic()

    def seat(self) -> Seat:
        """Return where this is."""
        gpus = ray.get_gpu_ids()
        return Seat(ray.util.get_node_ip_address(), f"cuda {gpus[0]}" if gpus else "cpu", process=os.getpid())

    def close(self) -> None:
        """End what the worker started to help."""
        self._servant.close()


class RayHome:
    """One actor per worker. A cluster that it started ends with it; one that it joined stays as it was."""

    def __init__(self, recipe: Recipe, plan: Plan, cluster: LocalCluster | None) -> None:
        """Join the cluster of ``run.address``, or the one that was started for this run, and take the room it needs.

        Raises:
            RunFault: when the cluster cannot be joined or has not what the plan needs, with the numbers.
            WaitLimit: when others do not leave the room that is needed.
        """
        self._actors: dict[str, Any] = {}
        self._groups: dict[str, PlacementGroup] = {}
        self._ahead_s: dict[str, float] = {}
        self._cluster = cluster
        self._is_member = ray.is_initialized()  # a program that joined by itself also leaves by itself
        try:
            if not self._is_member:
                _join(recipe.run.address if cluster is None else cluster.address)
            self._take_room(plan, recipe.run.device)
        except BaseException:
            self.close()
            raise

    def _take_room(self, plan: Plan, device: str) -> None:
        """Reserve a bundle for every rank of every mesh."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = [int(node.get("GPU", 0)) for node in nodes]
        takes_gpus = device == "cuda" or (device == "auto" and sum(gpus) > 0)
        needs = {mesh.name: _bundles(mesh, takes_gpus) for mesh in plan.meshes}
        for unit in ("CPU", "GPU"):
            needed = sum(bundle.get(unit, 0) for bundles in needs.values() for bundle in bundles)
            there = sum(node.get(unit, 0) for node in nodes)
            if needed > there:
                raise RunFault(f"the plan needs {needed:g} {unit}s, the Ray cluster has {there:g}")
        for name, bundles in needs.items():
            fits_a_node = len(bundles) <= max(gpus)
            self._groups[name] = placement_group(bundles, "STRICT_PACK" if fits_a_node else "PACK")
        ready = {group.ready(): name for name, group in self._groups.items()}
        _, late = ray.wait(list(ready), num_returns=len(ready), timeout=_ROOM_S)
        if late:
            text = f"others leave no room on the Ray cluster; after {_ROOM_S:.0f} s these meshes still wait for it: "
            raise WaitLimit(text + ", ".join(ready[each] for each in late))

    def spawn(self, name: str, spec: WorkerSpec) -> Future[Any]:
        """Start an actor in the bundle of its rank and let it build the worker."""
        mesh, _, rank = name.partition("/")
        group, index = self._groups[mesh], int(rank or 0)
        needs = group.bundle_specs[index]
        options = {
            "num_cpus": needs["CPU"],
            "num_gpus": needs.get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, index),
        }
        actor = ray.remote(Hosted).options(**options)
        self._actors[name] = actor.remote(name, __version__, sys.path, os.getcwd())
        ready: Future[Any] = Future()
        built = self.call(name, BUILD, spec)
        built.add_done_callback(lambda done: self._compare_clocks(name, done, ready))
        return ready

    def _compare_clocks(self, name: str, built: Future[Any], ready: Future[Any]) -> None:
        """Say that a worker is ready once its times can be read."""
        error = built.exception()
        if error is not None:
            ready.set_exception(error)
            return
        asked_s = time.monotonic()

        def compare(done: Future[float]) -> None:
            if done.exception() is None:  # an actor that has just died says so when it is called
                self._ahead_s[name] = ahead_s(asked_s, done.result(), time.monotonic())
            ready.set_result(None)

        self._actors[name].clock_s.remote().future().add_done_callback(compare)

    def call(self, name: str, method: str, *args: object) -> Future[Any]:
        """Send a call; the future raises what the method raised, `WorkerDied` when its actor ended."""
        future: Future[Any] = Future()
        work = doing(method, args)
        answer = self._actors[name].answer.remote(_wire(pack((method, args))))

        def receive(done: Future[_Wire]) -> None:
            error = done.exception()
            if error is None:
                settle(future, name, _received(done.result()), self._ahead_s.get(name, 0.0))
            else:
                future.set_exception(WorkerDied(f"worker {name} died when it was to {work}: {_reason(str(error))}"))

        answer.future().add_done_callback(receive)
        return future

    @property
    def address(self) -> str:
        """The address of this machine in the cluster."""
        return ray.util.get_node_ip_address()

    def seats(self) -> Mapping[str, Seat]:
        """Return where the workers live, once they do."""
        found = ray.get([actor.seat.remote() for actor in self._actors.values()], timeout=_ROOM_S)
        return dict(zip(self._actors, found, strict=True))

    def close(self) -> None:
        """Let every worker finish its call and end, leave the cluster, and end it if it was started here."""
        try:
            self._end_actors()
        finally:
            if not self._is_member:
                ray.shutdown()
            if self._cluster is not None:
                self._cluster.stop()

    def _end_actors(self) -> None:
        ending = [actor.close.remote() for actor in self._actors.values()]
        if ending:
            ray.wait(ending, num_returns=len(ending), timeout=GRACE_S)
        for actor in self._actors.values():
            ray.kill(actor)
        if self._cluster is None:
            for group in self._groups.values():
                remove_placement_group(group)
        self._actors.clear()
        self._groups.clear()


def _join(address: str | None) -> None:
    """Become a member of the cluster at ``address``, quietly."""
    with _own_signals():
        try:
            if address not in (None, "auto"):
                _reach(str(address))
            ray.init(address, logging_level=logging.CRITICAL, log_to_driver=True)
        except Exception as error:
            text = str(error).partition("\n")[0]
            raise RunFault(f"the Ray cluster at {address} (run.address) cannot be joined: {text}") from error


def _reach(address: str) -> None:
    """Find out at once, as Ray does after minutes, that nothing answers there."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), _REACH_S).close()


def _bundles(mesh: Mesh, takes_gpus: bool) -> list[dict[str, float]]:
    """Return what every rank of a mesh needs."""
    gpu = {"GPU": 1.0} if takes_gpus and not mesh.where.startswith("local.host") else {}
    return [{"CPU": 1.0, **gpu} for _ in range(num_ranks(mesh))]


def _wire(packed: Packed) -> _Wire:
    return packed.pickled, [(offset, as_bytes(values).numpy()) for offset, values in packed.large]


def _received(wire: _Wire) -> Received:
    pickled, pieces = wire
    return Received(pickled, {offset: _buffer(piece) for offset, piece in pieces})


def _buffer(piece: np.ndarray[Any, Any]) -> Any:
    """Return memory that tensors can lie in: Ray hands out arrays as read-only, but a message has one reader only."""
    buffer = (ctypes.c_char * piece.nbytes).from_address(piece.ctypes.data)
    buffer.piece = piece  # pyright: ignore[reportAttributeAccessIssue] - keeps it in the object store
    return buffer


def _reason(text: str) -> str:
    """Return in one line why an actor ended, of the many in which Ray says so."""
    if "raised in its creation task" in text:
        return text.strip().rpartition("\n")[2]
    told = re.search(r"The actor is dead because (.+?)\.(?:\s|$)", text)
    where = re.search(r"pid: (\d+)\s.*?ip: (\S+)", text, re.DOTALL)
    place = f" (process {where[1]} on {where[2]})" if where else ""
    hint = "; the system does that when memory runs out" if "worker process has died" in text else ""
    return f"{told[1] if told else text.strip().partition(chr(10))[0]}{place}{hint}"


@contextmanager
def _own_signals() -> Iterator[None]:
    """Undo that Ray takes over signals, which are for the run to hear."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in SIGNALS} if is_main else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
