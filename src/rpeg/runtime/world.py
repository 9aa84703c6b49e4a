"""The world of a plan: all ranks that compute together, as plain values, and how a process joins them.

    controller   holds the rendezvous store, on the address that the home names
    worker       joins one process group with all others, then builds the mesh of every group, its own or not,
                 in the same order as all others

Plans whose meshes all have one rank need no world: nothing listens and nothing is joined.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.device_mesh import DeviceMesh

from rpeg.hardware.region import Region
from rpeg.hardware.topology import HOST
from rpeg.numerics.parallel.axes import device_mesh
from rpeg.numerics.parallel.peers import Peers
from rpeg.numerics.precision import group_backend
from rpeg.plan.mesh import num_ranks
from rpeg.plan.plan import Mesh, Plan
from rpeg.shapes.splits import ROW_AXES

__all__ = [
    "ALONE",
    "Place",
    "Ranks",
    "Rendezvous",
    "World",
    "WorldMesh",
    "join",
    "leave",
    "places_of",
    "slot_of",
    "slots",
]

_JOIN_LIMIT_S = 300.0
"""How long the ranks of a world wait for the last one to come: each starts a process and imports torch."""
_LOOPBACK = "127."


@dataclass(frozen=True, slots=True)
class WorldMesh:
    """One mesh with ranks in the world."""

    name: str
    axes: tuple[tuple[str, int], ...]
    first: int
    """Number in the world of its rank 0; the others follow it."""

    @property
    def ranks(self) -> range:
        """Numbers of its ranks in the world."""
        return range(self.first, self.first + num_ranks(Mesh(self.name, "", self.axes)))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker stands in the world; plain values, so that it can be sent to another process."""

    mesh: str
    rank: int
    """Within its mesh."""
    meshes: tuple[WorldMesh, ...]
    """All of the world, in the order in which every process builds them."""
    store: tuple[str, int]
    """Host and port of the rendezvous store."""
    wait_limit_s: float
    """How long ranks wait for each other at most."""

    @property
    def world_rank(self) -> int:
        """Number of this worker in the world."""
        return next(mesh.first for mesh in self.meshes if mesh.name == self.mesh) + self.rank

    @property
    def world_size(self) -> int:
        """Workers in the world."""
        return self.meshes[-1].ranks.stop


@dataclass(frozen=True)
class Ranks:
    """What a role knows of the ranks that do its work with it."""

    mesh: DeviceMesh | None = None
    """Of this worker's group; None for a worker that is alone."""

    @cached_property
    def rows(self) -> Peers:
        """Ranks with other rows."""
        return Peers(self.mesh, ROW_AXES)

    @cached_property
    def losses(self) -> Peers:
        """Ranks with losses of other rows: of a pipeline the last ones have all of them, the others none."""
        return Peers(self.mesh, (*ROW_AXES, "pp"))

    @cached_property
    def tokens(self) -> Peers:
        """Ranks with losses of other rows or other tokens: all but those with other parts of the same layers."""
        return Peers(self.mesh, (*ROW_AXES, "cp", "pp"))

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Sizes of the axes of the mesh."""
        return {} if self.mesh is None else dict(zip(self.mesh.mesh_dim_names or (), self.mesh.shape, strict=True))

    @cached_property
    def is_first(self) -> bool:
        """Whether this rank speaks for its group: it publishes and saves."""
        return self.mesh is None or not any(self.mesh.get_coordinate() or ())


ALONE = Ranks()
"""A worker that is its whole group."""


def slots(mesh: Mesh) -> tuple[int, ...]:
    """Return the number of each rank's device on its machine; none for a mesh of hosts."""
    step = Region.parse(mesh.where).steps[-1]
    if step.level == HOST:
        return ()
    named = tuple(i for span in step.spans or () for i in span)
    # A region that ends above the level of the devices means all that is below.
    return named if len(named) == num_ranks(mesh) else tuple(range(num_ranks(mesh)))


def slot_of(mesh: Mesh, rank: int) -> int:
    """Return the number of a rank's device on its machine; 0 for a host, which computes on none."""
    found = slots(mesh)
    return found[rank] if found else 0


def places_of(
    plan: Plan, computing: Iterable[str], store: tuple[str, int], wait_limit_s: float
) -> Mapping[str, list[Place]]:
    """Return the places of the workers of every mesh that takes part, by mesh."""
    joined: list[WorldMesh] = []
    for name in computing:
        first = joined[-1].ranks.stop if joined else 0
        joined.append(WorldMesh(name, plan.mesh_named[name].axes, first))
    meshes = tuple(joined)
    return {
        mesh.name: [Place(mesh.name, rank, meshes, store, wait_limit_s) for rank in range(len(mesh.ranks))]
        for mesh in meshes
    }


@dataclass(frozen=True, slots=True)
class World:
    """What a worker has joined."""

    ranks: Ranks
    """Those of its own mesh."""
    number: int
    """Of this worker among all."""
    size: int
    """Workers of all meshes."""
    store: Store
    """Where each can leave plain values for the others."""
    host: dist.ProcessGroup
    """All of them, for tensors in the memory of the host: whatever the devices are, these wait for nothing in it."""


class Rendezvous:
    """The store at which the ranks of a world find each other; it listens while it is open."""

    def __init__(self, host: str) -> None:
        """Listen on a free port of ``host``."""
        listener = socket.create_server((host, 0))
        self.address: tuple[str, int] = (host, listener.getsockname()[1])
        self._store: TCPStore | None = TCPStore(
            *self.address, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=_JOIN_LIMIT_S),
            master_listen_fd=listener.detach(),
        )  # fmt: skip

    def close(self) -> None:
        """Listen no more."""
        self._store = None


def join(place: Place, device: torch.device) -> World:
    """Join the world and build its meshes; collective over all workers of the world."""
    host, port = place.store
    if host.startswith(_LOOPBACK) and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else the ranks listen where the name of the host points to
    store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_JOIN_LIMIT_S))
    dist.init_process_group(
        group_backend(device),
        store=store,
        rank=place.world_rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=place.wait_limit_s),
    )
    built = {mesh.name: device_mesh(mesh.axes, device, mesh.ranks) for mesh in place.meshes}
    host = dist.group.WORLD if device.type == "cpu" else dist.new_group(backend="gloo")
    assert isinstance(host, dist.ProcessGroup), "the group has all workers in it"
    return World(Ranks(built[place.mesh]), place.world_rank, place.world_size, store, host)


def leave() -> None:
    """Leave the world, if this process is in one."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
