"""Plans by hand: groups of devices with the stages that run there, and how a model lies on each.

A group is one mesh. Groups on one region share its devices in time and take turns; groups apart run side by side, and a
generator that is apart from what trains its weights runs as far ahead as the graph lets it. Stages that nobody names go
where they belong: rows to the hosts, an optimizer's step to its gradients, a push to the trained weights, a pull and an
evaluation to the generator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from rpeg.errors import Fault, PlanError
from rpeg.graph.data import DataKind
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import generators, lead
from rpeg.graph.stage import Stage, StageKind
from rpeg.hardware.region import Region
from rpeg.hardware.topology import HOST, System
from rpeg.plan.events import Event
from rpeg.plan.groups import DeviceGroup, GroupLayout
from rpeg.plan.orders import alone, dealt, depths, in_sequence, rendezvous
from rpeg.plan.plan import Binding, Layout, Mesh, Plan, Recompute, Residency, Transfer
from rpeg.plan.rules import check_plan
from rpeg.plan.site import Site
from rpeg.shapes.tensor import LAYERS, Tensor, extents

__all__ = ["bind_groups", "draw_groups", "hosts_mesh"]

_ON_HOSTS = (StageKind.VERIFY, StageKind.ADVANTAGE, StageKind.FILTER, StageKind.SOURCE, StageKind.ENVIRONMENT)
_SPLIT_BY_TP = ("heads", "kv_heads", "ffn", "shared_ffn", "vocabulary")
_PADDED = frozenset({"vocabulary", "shared_ffn"})
"""Parts that stay whole where they do not divide; of the others the rules of a plan say so."""
_EXPERT_FFN, _EXPERTS = "expert_ffn", "experts"


def bind_groups(
    graph: Graph,
    system: System,
    groups: Sequence[DeviceGroup],
    tensors: Mapping[str, tuple[Tensor, ...]] | None = None,
    *,
    dtype: str = "bfloat16",
    residencies: Sequence[Residency] = (),
    transfers: Sequence[Transfer] = (),
) -> Plan:
    """Return the plan in which every group does its stages.

    Args:
        graph: what is planned.
        system: the machine.
        groups: at least one for every stage with a model, but for those that follow others.
        tensors: weights by model, which say what can be split; without them it is what ordinary decoders have.
        dtype: of weights; those that are trained lie in float32 beside.
        residencies: what rests elsewhere for a time.
        transfers: how weights get from one layout to another.

    Raises:
        PlanError: when a stage is in no group or in several, or when the plan breaks a rule (P1-P6, but for memory).
        HardwareError: when the machine has no such region.
    """
    plan = draw_groups(graph, system, groups, tensors, dtype=dtype, residencies=residencies, transfers=transfers)
    return check_plan(graph, plan, Site(system, tensors or {}))


def draw_groups(
    graph: Graph,
    system: System,
    groups: Sequence[DeviceGroup],
    tensors: Mapping[str, tuple[Tensor, ...]] | None = None,
    *,
    dtype: str = "bfloat16",
    residencies: Sequence[Residency] = (),
    transfers: Sequence[Transfer] = (),
) -> Plan:
    """Return the plan that `bind_groups` would check, whether it keeps the rules or not.

    Raises:
        PlanError: when a stage is in no group or in several.
        HardwareError: when the machine has no such region.
    """
    home = _homes(graph, groups)
    meshes = [_mesh(group, system) for group in groups if group.name in home.values()]
    if HOST in home.values():
        meshes.append(hosts_mesh(system, graph.batch_rows))
    layouts = _Layouts(graph, {group.name: group for group in groups}, home, tensors or {}, dtype)
    bindings = [layouts.binding(stage) for stage in graph.stages]
    shifts = _shifts(graph, home, meshes, system)
    slots = in_sequence(alone(graph, bindings, shifts), _Order(graph, bool(shifts)))
    order = dealt(slots, meshes, bindings, rendezvous(graph, bindings), system)
    return Plan(graph.digest(), tuple(meshes), tuple(bindings), order, tuple(residencies), tuple(transfers))


def hosts_mesh(system: System, rows: int) -> Mesh:
    """Return the mesh of all hosts, or of the first one where they do not divide the rows of a step."""
    names = [level.name for level in system.levels[:-1]]
    if rows % system.num_hosts == 0:
        return Mesh(HOST, ".".join([*names, HOST]), (("dp", system.num_hosts),))
    return Mesh(HOST, ".".join([*(f"{name}[0]" for name in names), HOST]))


def _mesh(group: DeviceGroup, system: System) -> Mesh:
    count = len(Region.parse(group.where).places(system))
    axes = group.layout.axes(count)
    if prod(size for _, size in axes) != count:
        text = f"has {count} devices for {' '.join(f'{name} {size}' for name, size in axes if name != 'dp')}"
        raise PlanError("groups", [Fault(group.name, text, "choose degrees whose product divides the devices")])
    return Mesh(group.name, group.where, axes)


def _homes(graph: Graph, groups: Sequence[DeviceGroup]) -> dict[str, str]:
    """Return the group of every stage."""
    faults: list[Fault] = []
    home: dict[str, str] = {}
    for group in groups:
        for stage in group.stages:
            if stage not in graph.stage_of:
                faults.append(Fault(group.name, f"has {stage}, which the graph has not", _known(graph)))
            elif stage in home:
                faults.append(Fault(stage, f"is in {home[stage]} and in {group.name}", "name it once"))
            home.setdefault(stage, group.name)
    for stage in sorted(graph.stages, key=lambda each: each.kind is StageKind.PUSH):
        if stage.name not in home and (found := next(_followed(graph, stage, home), None)) is not None:
            home[stage.name] = found
        elif stage.name not in home:
            faults.append(Fault(stage.name, "is in no group", "name it in one"))
    if faults:
        raise PlanError(f"groups of {graph.name}", faults)
    return home


def _known(graph: Graph) -> str:
    return f"its stages are {', '.join(graph.stage_of)}"


def _followed(graph: Graph, stage: Stage, home: Mapping[str, str]) -> Iterator[str]:
    """Yield the groups that a stage nobody names may belong to."""
    if stage.kind in _ON_HOSTS or (stage.kind is StageKind.UPDATE and stage.model is None):
        yield HOST
    elif stage.kind in (StageKind.UPDATE, StageKind.PUSH, StageKind.SAVE):
        read = (write.stage for access in graph.reads(stage.name) for write in graph.writers(access.data))
        yield from (home[name] for name in read if name in home)
    elif stage.kind in (StageKind.PULL, StageKind.EVALUATE):
        model = [each.name for each in generators(graph) if each.model == stage.model]
        yield from (home[name] for name in model if name in home)


@dataclass(frozen=True)
class _Layouts:
    """Makes the binding of every stage."""

    graph: Graph
    groups: Mapping[str, DeviceGroup]
    home: Mapping[str, str]
    tensors: Mapping[str, tuple[Tensor, ...]]
    dtype: str

    def binding(self, stage: Stage) -> Binding:
        mesh = self.home[stage.name]
        if mesh == HOST:
            return Binding(stage.name, mesh, Layout(mesh))
        how = self.groups[mesh].layout
        layout = Layout(mesh, self._shard(stage.model, how), how.zero, self._dtype(stage, mesh))
        if stage.kind not in (StageKind.TRAIN, StageKind.FORWARD, StageKind.GENERATE):
            return Binding(stage.name, mesh, layout)
        is_trained = stage.kind is StageKind.TRAIN
        return Binding(
            stage.name,
            mesh,
            layout,
            Dim(str(how.micro_rows)),
            how.pipeline if is_trained and how.pp > 1 else None,
            how.recompute if is_trained else Recompute.NONE,
            pack=how.is_packed,
            balance=how.balance,
            servers=how.servers if stage.kind is StageKind.GENERATE else 1,
        )

    def _dtype(self, stage: Stage, mesh: str) -> str:
        """Return float32 where trained weights lie: their update, and what reads them on the same devices."""
        if stage.kind in (StageKind.TRAIN, StageKind.UPDATE):
            return "float32"
        is_reader = stage.kind is StageKind.FORWARD
        made_here = (
            each.kind is StageKind.UPDATE and each.model == stage.model and self.home[each.name] == mesh
            for each in self.graph.stages
        )
        return "float32" if is_reader and stage.model is not None and any(made_here) else self.dtype

    def _shard(self, model: str | None, how: GroupLayout) -> tuple[tuple[str, str], ...]:
        known = extents(self.tensors[model]) if model is not None and model in self.tensors else None
        parts = [part for part in _SPLIT_BY_TP if how.tp > 1 and _divides(part, how.tp, known)]
        shard = [(part, "tp") for part in parts]
        shard += [(_EXPERTS, axis) for axis in how.expert_axes]
        if how.ep == 1 and how.tp > 1 and known is not None and _EXPERT_FFN in known:
            shard.append((_EXPERT_FFN, "tp"))
        return tuple(shard) + (((LAYERS, "pp"),) if how.pp > 1 else ())


def _divides(part: str, tp: int, known: Mapping[str, int] | None) -> bool:
    if known is None:
        return part != "shared_ffn"
    return part in known and not (part in _PADDED and known[part] % tp)


def _apart(graph: Graph, home: Mapping[str, str], meshes: Iterable[Mesh], system: System, stage: Stage) -> bool:
    """Whether a generator has no device in common with the updates of its weights."""
    where = {mesh.name: {*Region.parse(mesh.where).places(system)} for mesh in meshes}
    makers = [s.name for s in graph.stages if s.kind is StageKind.UPDATE and s.model == stage.model]
    return not any(where[home[stage.name]] & where[home[name]] for name in makers)


def _shifts(graph: Graph, home: Mapping[str, str], meshes: Sequence[Mesh], system: System) -> dict[str, int]:
    """Return how far ahead stages run: generators apart from training, and passes over their rows beside them."""
    shifts = {
        stage.name: lead(graph, stage.name) for stage in generators(graph) if _apart(graph, home, meshes, system, stage)
    }
    shifts = {name: ahead for name, ahead in shifts.items() if ahead}
    beside = {home[name] for name in shifts}
    for stage in sorted(graph.stages, key=lambda each: depths(graph)[each.name]):
        if home[stage.name] in beside and stage.name not in shifts and stage.kind is StageKind.FORWARD:
            ahead = {shifts.get(writer, 0) for writer in _writers(graph, stage.name)}
            if len(ahead) == 1 and (common := ahead.pop()):
                shifts[stage.name] = common
    return shifts


def _writers(graph: Graph, stage: str) -> Iterator[str]:
    """Yield who makes what a stage reads, rows and states alike."""
    for read in graph.reads(stage):
        if graph.data_of[read.data].kind is not DataKind.EXTERNAL:
            yield from (write.stage for write in graph.writers(read.data))


class _Order:
    """The key of a sequence: one kind of work after the other.

    Beside a generator that runs ahead, whatever its rows allow is taken as far as it goes.
    """

    def __init__(self, graph: Graph, is_ahead: bool) -> None:
        self._depth, self._kind = depths(graph), {stage.name: stage.kind for stage in graph.stages}
        self._is_ahead = is_ahead

    def __call__(self, event: Event) -> tuple[int, ...]:
        depth = self._depth
        if event.stage not in depth:  # a transfer, which has no slot of its own: as soon as it can
            return -2 * len(depth), event.firing
        is_downstream = self._is_ahead and self._kind[event.stage] is not StageKind.GENERATE
        ahead = self._is_ahead * len(depth)
        return -depth[event.stage] if is_downstream else depth[event.stage] - ahead, event.firing
