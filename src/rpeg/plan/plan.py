"""The plan: meshes of devices, one binding per stage, where data rests, and the order of work on every resource."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from rpeg.graph.dim import ONE, Dim
from rpeg.graph.graph import Applied
from rpeg.graph.record import encode

__all__ = [
    "Balance",
    "Binding",
    "Home",
    "Layout",
    "Mesh",
    "Method",
    "Pipeline",
    "Plan",
    "Recompute",
    "Residency",
    "Slot",
    "Transfer",
]

_NOT_DIGESTED = frozenset({"history"})


@dataclass(frozen=True, slots=True)
class Mesh:
    """A named set of device slots."""

    name: str
    where: str
    """Region of the hardware tree: ``local.slot[0:1]``, ``rack[0:2].node[*].gpu[0:4]``."""
    axes: tuple[tuple[str, int], ...] = (("dp", 1),)
    """Axis names and sizes, slowest first: ``(("pp", 2), ("dp", 8), ("tp", 4))``. The last one runs over neighbours."""

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes by axis."""
        return dict(self.axes)


@dataclass(frozen=True, slots=True)
class Layout:
    """How weights lie on a mesh."""

    mesh: str
    shard: tuple[tuple[str, str], ...] = ()
    """Which part of the weights is split over which axis: ``(("heads", "tp"), ("layers", "pp"))``."""
    zero: int = 0
    """ZeRO level: 0 nothing, 1 moments, 2 gradients, 3 weights are split over data parallel ranks."""
    dtype: str = "float32"

    def holds_like(self, other: Layout) -> bool:
        """Whether weights in this layout already lie as ``other`` wants them."""
        return self._weights == other._weights

    @property
    def _weights(self) -> tuple[str, frozenset[tuple[str, str]], bool, str]:
        return self.mesh, frozenset(self.shard), self.zero == 3, self.dtype


class Recompute(StrEnum):
    """Which activations are recomputed in the backward pass."""

    NONE = "none"
    SELECTIVE = "selective"
    """Those of attention, which are large and quick to have again."""
    FULL = "full"


class Pipeline(StrEnum):
    """In which order the micro-batches pass the stages of a pipeline."""

    GPIPE = "gpipe"
    """All forward, then all backward."""
    ONE_F_ONE_B = "1f1b"
    """One forward, one backward."""
    INTERLEAVED = "interleaved_1f1b"
    """The same with two parts of the layers per device."""
    ZERO_BUBBLE = "zero_bubble"
    """Gradients of weights fill the gaps."""


class Balance(StrEnum):
    """How the rows of a firing are dealt to data parallel ranks."""

    ROWS = "rows"
    """Equally many, in their order."""
    TOKENS = "tokens"
    """As many tokens for each as can be had."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Where and how one stage runs."""

    stage: str
    mesh: str
    layout: Layout
    micro_rows: Dim = ONE
    """Rows of one micro-batch on one data parallel rank."""
    pipeline: Pipeline | None = None
    recompute: Recompute = Recompute.NONE
    engine: str = "torch"
    """What computes; where a stage samples it may be another one, such as ``vllm``."""
    pack: bool = False
    """Whether rows of a micro-batch are laid end to end instead of being padded."""
    balance: Balance = Balance.ROWS
    servers: int = 1
    """Copies of the engine side by side, each on an equal share of the mesh: that many steps may be under way."""


class Home(StrEnum):
    """Where data lives while nobody works on it."""

    HBM = "hbm"
    HOST = "host"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Residency:
    """Data lives at ``home``, and on the device only from one stage to another."""

    data: str
    home: Home
    between: tuple[tuple[str, str], ...] = ()
    """Pairs of stages on one mesh: loaded before the first, given back after the second."""
    lead: int = 0
    """How many firings earlier than necessary loading may begin; 0 loads when nothing else is left to wait for."""


class Method(StrEnum):
    """How weights get from one layout to another."""

    P2P = "p2p"
    """Every device sends what others lack, one message per pair."""
    BUCKETED = "bucketed"
    """The same in pieces, for which little memory is needed at a time."""
    GATHER = "gather"
    """One device gathers everything and broadcasts it."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """How data gets to the layout of a reader; what is not listed goes point to point.

    That there is a transfer follows from the layouts: see `rpeg.plan.shipments`.
    """

    data: str
    reader: str
    method: Method = Method.P2P
    bucket_bytes: int | None = None
    """BUCKETED: bytes on their way at a time, per device."""
    dtype: str | None = None
    """What is sent, if it is smaller than what both ends keep: ``float8``."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One firing in the order of a resource; ``shift`` 1 runs for step t + 1 while its neighbours run for step t."""

    stage: str
    firing: int = 0
    shift: int = 0


@dataclass(frozen=True)
class Plan:
    """A graph bound to devices."""

    graph: str
    """Digest of the graph this plan is for."""
    meshes: tuple[Mesh, ...]
    bindings: tuple[Binding, ...]
    order: tuple[tuple[str, tuple[Slot, ...]], ...]
    """Per resource, the firings of one step in their order.

    A resource is what the same meshes share: it is called like its mesh, or ``gen&train`` where two overlap. A firing
    stands in the order of every resource of its mesh; one that stands in others too is one event that occupies both.
    """
    residencies: tuple[Residency, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    history: tuple[Applied, ...] = ()
    """The moves that led here, not part of the digest."""
    schema: int = 1

    @cached_property
    def binding_of(self) -> dict[str, Binding]:
        """Bindings by stage."""
        return {binding.stage: binding for binding in self.bindings}

    @cached_property
    def mesh_named(self) -> dict[str, Mesh]:
        """Meshes by name."""
        return {mesh.name: mesh for mesh in self.meshes}

    def mesh_of(self, stage: str) -> str:
        """Return the mesh that ``stage`` is bound to."""
        return self.binding_of[stage].mesh

    @cached_property
    def standing(self) -> dict[tuple[str, int], tuple[tuple[str, ...], int]]:
        """By stage and firing, the resources in whose orders it stands, those of its own mesh first, and its shift."""
        found: dict[tuple[str, int], list[str]] = {}
        shifts: dict[tuple[str, int], int] = {}
        for resource, slots in self.order:
            for slot in slots:
                key = slot.stage, slot.firing
                shifts.setdefault(key, slot.shift)
                found.setdefault(key, []).append(resource)
        return {key: (self._own_first(key[0], names), shifts[key]) for key, names in found.items()}

    def _own_first(self, stage: str, resources: list[str]) -> tuple[str, ...]:
        if len(resources) > 1 and (binding := self.binding_of.get(stage)) is not None:
            resources.sort(key=lambda resource: binding.mesh not in resource.split("&"))
        return tuple(resources)

    def shift_of(self, stage: str, firing: int = 0) -> int:
        """Return how many steps ahead a firing of ``stage`` runs."""
        return self.standing[stage, firing][1]

    def resources_of(self, stage: str, firing: int = 0) -> tuple[str, ...]:
        """Return the resources that a firing of ``stage`` occupies, those of the mesh it is bound to first."""
        return self.standing[stage, firing][0]

    def slots_of(self, mesh: str) -> Iterator[tuple[str, tuple[Slot, ...]]]:
        """Yield the resources of ``mesh`` with their orders."""
        yield from ((resource, slots) for resource, slots in self.order if mesh in resource.split("&"))

    def digest(self) -> str:
        """Return the sha256 of the canonical JSON; a trace names it, so that it is never laid beside another plan."""
        return hashlib.sha256(json.dumps(encode(self, _NOT_DIGESTED), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        """Return the plan as JSON text; `rpeg.plan.json.from_json` reads it."""
        return json.dumps(encode(self), indent=1, ensure_ascii=False) + "\n"
