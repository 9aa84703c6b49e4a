"""The plan: meshes of devices, one binding per stage, and the order of work on every resource."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from rpeg.graph.dim import ONE, Dim
from rpeg.graph.record import encode

__all__ = ["Binding", "Home", "Layout", "Mesh", "Plan", "Recompute", "Residency", "Slot"]


@dataclass(frozen=True, slots=True)
class Mesh:
    """A named set of device slots."""

    name: str
    where: str
    """Region of the hardware tree: ``local.slot[0:1]``."""
    axes: tuple[tuple[str, int], ...] = (("dp", 1),)
    """Axis names and sizes, slowest first: ``(("pp", 2), ("dp", 8), ("tp", 4))``."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How weights lie on a mesh."""

    mesh: str
    shard: tuple[tuple[str, str], ...] = ()
    """Which part of the weights is split over which axis: ``(("heads", "tp"), ("layers", "pp"))``."""
    zero: int = 0
    """ZeRO level: 0 nothing, 1 moments, 2 gradients, 3 weights are split over data parallel ranks."""
    dtype: str = "float32"


class Recompute(StrEnum):
    """Which activations are recomputed in the backward pass."""

    NONE = "none"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Binding:
    """Where and how one stage runs."""

    stage: str
    mesh: str
    layout: Layout
    micro_rows: Dim = ONE
    pipeline: str | None = None
    recompute: Recompute = Recompute.NONE
    engine: str = "torch"


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


@dataclass(frozen=True, slots=True)
class Slot:
    """One firing in the order of a resource; ``shift`` 1 runs for step t + 1 while its neighbours run for step t."""

    stage: str
    firing: int = 0
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A graph bound to devices."""

    graph: str
    """Digest of the graph this plan is for."""
    meshes: tuple[Mesh, ...]
    bindings: tuple[Binding, ...]
    order: tuple[tuple[str, tuple[Slot, ...]], ...]
    """Per resource (mesh name), the firings of one step in their order.

    A firing in the orders of two resources is one event that occupies both.
    """
    residencies: tuple[Residency, ...] = ()
    schema: int = 1

    def mesh_of(self, stage: str) -> str:
        """Return the mesh that ``stage`` is bound to."""
        return next(binding.mesh for binding in self.bindings if binding.stage == stage)

    def shift_of(self, stage: str, firing: int = 0) -> int:
        """Return how many steps ahead a firing of ``stage`` runs."""
        return next(slot.shift for _, slot in self._slots_of(stage, firing))

    def resources_of(self, stage: str, firing: int = 0) -> tuple[str, ...]:
        """Return the resources that a firing of ``stage`` occupies, the mesh it is bound to first."""
        bound = self.mesh_of(stage)
        return tuple(sorted((resource for resource, _ in self._slots_of(stage, firing)), key=lambda r: r != bound))

    def _slots_of(self, stage: str, firing: int) -> Iterator[tuple[str, Slot]]:
        for resource, slots in self.order:
            yield from ((resource, slot) for slot in slots if (slot.stage, slot.firing) == (stage, firing))

    def to_json(self) -> str:
        """Return the plan as JSON text."""
        return json.dumps(encode(self), indent=1, ensure_ascii=False) + "\n"
