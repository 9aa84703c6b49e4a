"""The performance model behind the protocols of a plan: seconds of firings and transfers, bytes of data and work.

Everything is looked up in tables that are kept between plans (`rpeg.perf.stage.price_choice`), so that a price costs
microseconds once its kind has been seen.
"""

from __future__ import annotations

from functools import cached_property

from rpeg.graph.graph import Graph
from rpeg.graph.lineage import generators, staleness
from rpeg.graph.stage import StageKind
from rpeg.hardware.topology import System
from rpeg.perf.layouts import Choice
from rpeg.perf.network import in_place_s
from rpeg.perf.regions import choice_of, choice_of_layout, region_of
from rpeg.perf.reshard import haul_s, reshard_s
from rpeg.perf.software import Software, software_for
from rpeg.perf.stage_prices import StagePrices
from rpeg.perf.tables import tables_for
from rpeg.perf.workload import Workload
from rpeg.plan.costs import Duration
from rpeg.plan.firings import num_events
from rpeg.plan.layout import ITEM_BYTES
from rpeg.plan.memory import copies, residency_on
from rpeg.plan.mesh import meshes_of, places
from rpeg.plan.plan import Binding, Home, Layout, Plan
from rpeg.plan.shipments import Cause, Shipment, shipments

__all__ = ["Estimate"]

_MOVES = (StageKind.PUSH, StageKind.PULL)
_SAMPLING = (StageKind.GENERATE, StageKind.EVALUATE)
_STEP_BYTES = 1e9
"""In so large steps the memory that a generator has is told apart, so that tables are used again."""
_DISK_BYTES_PER_S = 2e9
"""Of a local disk, shared by nobody."""


class Estimate:
    """Prices one plan: implements `rpeg.plan.costs.Costs` and `rpeg.plan.costs.Sizes`."""

    def __init__(
        self, graph: Graph, plan: Plan, workload: Workload, system: System, software: Software | None = None
    ) -> None:
        """Look at what ``plan`` binds where.

        Args:
            graph: what the plan is for.
            plan: meshes and bindings; its orders do not matter here.
            workload: models and lengths.
            system: the machine that the meshes are regions of.
            software: whose constants count; None is the generic one.

        Raises:
            InvalidInput: when a role has no model; when the machine has no such region.
        """
        self.graph, self.plan, self.workload, self.system = graph, plan, workload, system
        self.software = software or software_for()
        self.tables = tables_for(graph, workload, system, self.software)
        self._durations: dict[tuple[str, Binding], Duration] = {}

    def seconds(self, stage: str, binding: Binding) -> Duration:
        """Return how long one firing of ``stage`` takes under ``binding``."""
        key = stage, binding
        if key not in self._durations:
            self._durations[key] = self._duration(stage, binding)
        return self._durations[key]

    def _duration(self, stage: str, binding: Binding) -> Duration:
        found, stretch = self._alone(stage, binding), self._stretch.get(binding.mesh, 1.0)
        return Duration(found.occupancy_s * stretch, found.tail_s * stretch)

    def _alone(self, stage: str, binding: Binding) -> Duration:
        """Return how long a firing takes while nothing else runs on its host."""
        if self.graph.stage_of[stage].kind in _MOVES:
            return Duration(self._move_s(stage, binding))
        prices = self.prices(stage, binding)
        return Duration(float(prices.occupancy_s[0]), float(prices.tail_s[0]))

    @cached_property
    def _stretch(self) -> dict[str, float]:
        """By mesh, how much longer its firings take because others work beside it, where workers crowd each other.

        Of two that overlap in every step the less busy one, with ``b`` seconds, is never alone and takes ``(1 + c) b``;
        in that time the other one, with ``B`` seconds, loses as much: ``B + c b`` in all.
        """
        crowding = self.software.constants.crowding
        if not crowding or not any(staleness(self.graph, each.name) > 0 for each in generators(self.graph)):
            return {}
        busy: dict[str, float] = {}
        for binding in self.plan.bindings:
            if not self.system.is_host(places(self.plan.mesh_named[binding.mesh], self.system)[0]):
                alone = self._alone(binding.stage, binding)
                firings = num_events(self.graph, binding.stage)
                busy[binding.mesh] = busy.get(binding.mesh, 0.0) + firings * (alone.occupancy_s + alone.tail_s)
        most = max(busy.values(), default=0.0)
        beside = sum(busy.values()) - most
        if len(busy) < 2 or not beside:
            return {}
        return {mesh: 1.0 + crowding * (beside / most if seconds == most else 1.0) for mesh, seconds in busy.items()}

    def prices(self, stage: str, binding: Binding) -> StagePrices:
        """Return the whole price of one firing of ``stage`` under ``binding``."""
        mesh, choice = self.plan.mesh_named[binding.mesh], self._choice(binding)
        room_bytes = self._room_bytes(binding) if self.graph.stage_of[stage].kind in _SAMPLING else None
        return self.tables.prices(stage, choice, mesh.where, binding.servers, room_bytes)

    def _choice(self, binding: Binding) -> Choice:
        return choice_of(binding, self.plan.mesh_named[binding.mesh], self.graph.env)

    def transfer_s(self, shipment: Shipment) -> float:
        """Return how many seconds the links are busy with one firing of ``shipment``."""
        data = self.graph.data_of[shipment.data]
        if shipment.cause is not Cause.RESHARD:
            slow = _DISK_BYTES_PER_S if shipment.home is Home.DISK else None
            region = region_of(self.system, self.plan.mesh_named[shipment.src.mesh].where)
            return haul_s(float(self.held_bytes(shipment.data, shipment.src)), region, slow)
        assert data.model is not None, shipment
        named, sent = self.plan.mesh_named, shipment.how.dtype if shipment.how else None
        dtypes = (shipment.src.dtype, shipment.dst.dtype, sent or shipment.dst.dtype)
        return reshard_s(
            self.workload.shape(data.model),
            (shipment.src, named[shipment.src.mesh]),
            (shipment.dst, named[shipment.dst.mesh]),
            self.system,
            min(float(ITEM_BYTES[dtype]) for dtype in dtypes),
            shipment.how,
            self.software.constants.publish,
        )

    def held_bytes(self, data: str, layout: Layout) -> int:
        """Return the bytes of one version of ``data`` (of a STREAM: of one batch) on its fullest device."""
        choice = choice_of_layout(layout, self.plan.mesh_named[layout.mesh])
        return int(self.tables.held_bytes(data, choice, layout.dtype))

    def working_bytes(self, stage: str, binding: Binding) -> int:
        """Return the bytes that one firing of ``stage`` needs besides its data: activations, logits, caches."""
        if self.graph.stage_of[stage].kind in _MOVES:
            return 0
        return int(self.prices(stage, binding).working_bytes[0])

    @property
    def extrapolates(self) -> str:
        """What of the plan lies outside of what the profiles were fitted on, and what had to be assumed."""
        said = (self.prices(binding.stage, binding).extrapolates for binding in self.plan.bindings)
        parts = (part for text in said for part in text.split(", ") if part)
        mine = self.software.loaded.extrapolates("", devices=float(self.system.num_devices))
        assumed = [f"assumed {each}" for each in self.tables.assumed]
        return ", ".join(dict.fromkeys([*parts, *([mine] if mine else []), *assumed]))

    @cached_property
    def _carried(self) -> dict[str, list[Shipment]]:
        """By PUSH or PULL, the reshards that are its work."""
        found: dict[str, list[Shipment]] = {}
        for shipment in shipments(self.graph, self.plan):
            if shipment.carrier is not None:
                found.setdefault(shipment.carrier, []).append(shipment)
        return found

    def _move_s(self, stage: str, binding: Binding) -> float:
        """Return the seconds of a PUSH or PULL: the reshards it carries, else a copy where it is."""
        total_s = self.software.constants.firing_s
        if stage in self._carried:
            total_s += sum(self.transfer_s(shipment) for shipment in self._carried[stage])
        else:
            written = [write.data for write in self.graph.writes(stage)]
            num_bytes = sum(self.held_bytes(name, binding.layout) for name in written)
            total_s += in_place_s(float(num_bytes), self.system.device.memory_bytes_per_s)
        total_s += self.software.constants.switch_s if self._installs_beside_training(stage) else 0.0
        return total_s + (self._step_s if self.graph.stage_of[stage].kind is StageKind.PUSH else 0.0)

    @property
    def _step_s(self) -> float:
        """What the controller takes once per step."""
        return self.software.constants.step_s + self.software.constants.host_s * self.system.num_hosts

    def _installs_beside_training(self, stage: str) -> bool:
        """Whether a move ends in weights that are sampled from on devices that train as well."""
        readers = {read.stage for write in self.graph.writes(stage) for read in self.graph.readers(write.data)}
        sampling = {self.plan.mesh_of(name) for name in readers if self.graph.stage_of[name].kind in _SAMPLING}
        training = {b.mesh for b in self.plan.bindings if self.graph.stage_of[b.stage].kind is StageKind.TRAIN}
        return any(sampling & {*meshes} and training & {*meshes} for meshes in self._shared)

    @cached_property
    def _shared(self) -> list[tuple[str, ...]]:
        """The meshes of every resource."""
        return [meshes_of(resource) for resource, _ in self.plan.order]

    def _room_bytes(self, binding: Binding) -> float | None:
        """Return what weights and caches of a generator may take: its share of a device, less what else lies there."""
        sampled = {read.data for read in self.graph.reads(binding.stage)}
        found = copies(self.graph, self.plan)
        kept = [copy for copy in found if residency_on(self.plan, copy.data, copy.layout.mesh) is None]
        others = 0.0
        for meshes in self._shared:  # devices of one resource hold what all of its meshes do
            if binding.mesh in meshes:
                versions = (
                    (copy, copy.versions - (copy.data in sampled)) for copy in kept if copy.layout.mesh in meshes
                )
                others = max(others, sum(count * self.held_bytes(copy.data, copy.layout) for copy, count in versions))
        if not others:
            return None
        free_bytes = self.system.device.memory_bytes - others
        return max(_STEP_BYTES, free_bytes // _STEP_BYTES * _STEP_BYTES)
