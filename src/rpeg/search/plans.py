"""From an allocation to a plan that can run: meshes, bindings, residencies, an order; priced by the whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from rpeg.errors import PlanError
from rpeg.graph.data import DataKind
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import generators, lead
from rpeg.graph.stage import StageKind
from rpeg.perf.estimate import Estimate
from rpeg.perf.layouts import Choice
from rpeg.plan.bind import sampled_by
from rpeg.plan.events import Arc, Event, cycle_ratio
from rpeg.plan.fixed import DeviceGroup, draw_groups
from rpeg.plan.lower import lower
from rpeg.plan.orders import alone, dealt, depths, in_sequence, rendezvous
from rpeg.plan.plan import Balance, Binding, Home, Method, Plan, Residency, Transfer
from rpeg.plan.rules import check_plan, validate_plan
from rpeg.plan.shipments import reshards
from rpeg.plan.site import Site
from rpeg.search.calls import StageCall, calls_of
from rpeg.search.crew import group_layout, learning_with
from rpeg.search.prices import Row
from rpeg.search.problem import Market
from rpeg.search.space import Place
from rpeg.shapes.parameters import tensors
from rpeg.shapes.tensor import Tensor

__all__ = ["Assigned", "Priced", "draw_plan", "price_plan", "tensors_of"]

_BUCKET_BYTES = 1 << 30
"""Of weights on their way at a time, per device."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """A call with the place and the row it got."""

    call: StageCall
    place: Place
    row: Row


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """A legal plan with its step."""

    graph: Graph
    plan: Plan
    step_s: float
    cycle: tuple[Arc, ...]
    """What limits it."""


def tensors_of(graph: Graph, market: Market) -> dict[str, tuple[Tensor, ...]]:
    """Return the weights of every model of a graph."""
    models = dict.fromkeys(model.name for model in graph.models)
    return {name: tensors(market.workload.shape(name)) for name in models}


def draw_plan(graph: Graph, market: Market, assigned: Sequence[Assigned]) -> Plan:
    """Return the plan of an allocation, whether it keeps the rules or not.

    Calls that lie alike on one place share a mesh, so that none keeps a copy of what the other one has.
    """
    groups: dict[tuple[str, int, int, int, int], list[Assigned]] = {}
    for each in assigned:
        choice = each.row.choice
        groups.setdefault((each.place.where, choice.tp, choice.pp, choice.cp, choice.ep), []).append(each)
    meshes = [
        DeviceGroup(
            _mesh_name(members), where, tuple(m.call.name for m in members), group_layout(members[0].row.choice)
        )
        for (where, *_), members in groups.items()
    ]
    residencies = [found for each in assigned for found in _residencies(graph, each)]
    weights = tensors_of(graph, market)
    plan = draw_groups(graph, market.system, meshes, weights, dtype=market.workload.dtype, residencies=residencies)
    choices = {name: each.row.choice for each in assigned for name in each.call.stages}
    if market.workers is not None:  # what works on the very weights of a trained model lies as these do
        for name, train in learning_with(graph, list(choices)).items():
            choices[name] = replace(choices[name], zero=choices[train].zero)
    plan = replace(plan, bindings=tuple(_bound(graph, binding, choices) for binding in plan.bindings))
    if market.workers is not None:
        plan = replace(plan, bindings=tuple(_as_workers_do(binding) for binding in plan.bindings))
        return sampled_by(graph, plan, market.workers.sampling_engine)
    return replace(plan, transfers=tuple(_in_buckets(graph, plan)))


def _in_buckets(graph: Graph, plan: Plan) -> Iterator[Transfer]:
    """Yield every reshard in pieces: whole weights on their way at once would need as much room as they have."""
    for shipment in reshards(graph, plan):
        for reader in shipment.readers:
            yield Transfer(shipment.data, reader, Method.BUCKETED, _BUCKET_BYTES)


def _as_workers_do(binding: Binding) -> Binding:
    """Return a binding as workers carry it out: padded rows, in their order, in the number formats of the recipe."""
    return replace(binding, layout=replace(binding.layout, dtype="float32"), pack=False, balance=Balance.ROWS)


def _mesh_name(members: Sequence[Assigned]) -> str:
    return "_".join(each.call.name.replace("+", "_") for each in members)


def _bound(graph: Graph, binding: Binding, choices: Mapping[str, Choice]) -> Binding:
    """Return the binding of a stage with what its own call says about it, and not what its mesh was drawn with."""
    choice = choices.get(binding.stage)
    if choice is None:
        return binding
    layout = replace(binding.layout, zero=choice.zero)
    kind = graph.stage_of[binding.stage].kind
    if kind not in (StageKind.FORWARD, StageKind.TRAIN):
        return replace(binding, layout=layout)
    trains = kind is StageKind.TRAIN
    # Of a streamed firing a rank has fewer rows than when its layout was priced.
    rows = int(graph.batch_rows / graph.firings(binding.stage) / choice.dp)
    return replace(
        binding,
        layout=layout,
        micro_rows=Dim(str(gcd(int(choice.micro_rows), max(1, rows)))),
        pipeline=choice.pipeline if trains and choice.pp > 1 else None,
        recompute=choice.recompute if trains else binding.recompute,
        pack=choice.is_packed,
        balance=choice.balance,
    )


def _residencies(graph: Graph, each: Assigned) -> list[Residency]:
    """Return that frozen weights rest on the host but for their stage."""
    if not each.row.is_hauled:
        return []
    read = (graph.data_of[access.data] for access in graph.reads(each.call.name))
    frozen = [data.name for data in read if data.kind is DataKind.EXTERNAL and data.model is not None]
    return [Residency(name, Home.HOST, ((each.call.name, each.call.name),)) for name in dict.fromkeys(frozen)]


def price_plan(graph: Graph, plan: Plan, market: Market) -> Priced:
    """Return the step of a plan that keeps all rules, with the best of the orders that its calls may have.

    Raises:
        PlanError: with every rule that it breaks, that of memory (P4) among them.
    """
    check_plan(graph, plan)  # what does not divide has no price
    estimate = Estimate(graph, plan, market.workload, market.system, market.software)
    best, (step_s, cycle) = plan, cycle_ratio(lower(graph, plan, estimate))
    for other in _reordered(graph, plan, market):
        found_s, limiting = cycle_ratio(lower(graph, other, estimate))
        if found_s < step_s:
            best, step_s, cycle = other, found_s, limiting
    site = Site(market.system, tensors_of(graph, market), estimate, estimate, market.workers)
    if faults := validate_plan(graph, best, site):
        raise PlanError(f"plan of {graph.name}", faults)
    return Priced(graph, best, float(step_s), tuple(cycle))


def _reordered(graph: Graph, plan: Plan, market: Market) -> Iterator[Plan]:
    """Yield the plan with every order worth trying: how far generators are ahead, and who goes first on a device."""
    leads = {stage.name: lead(graph, stage.name) for stage in generators(graph)}
    also = rendezvous(graph, plan.bindings)
    for ahead in range(max(leads.values(), default=0) + 1):
        events = alone(graph, plan.bindings, {name: min(ahead, most) for name, most in leads.items()})
        for key in _keys(graph):
            slots = in_sequence(events, key)
            yield replace(plan, order=dealt(slots, plan.meshes, plan.bindings, also, market.system))


def _keys(graph: Graph) -> Iterator[Callable[[Event], tuple[int, ...]]]:
    """Yield what decides who comes first of those that may: generators or the others, whole calls or parts in turn."""
    place = {name: i for i, call in enumerate(calls_of(graph)) for name in call.stages}
    depth = depths(graph)
    generates = {stage.name for stage in generators(graph)}
    for first in (True, False):
        for is_whole in (True, False):

            def key(event: Event, first: bool = first, is_whole: bool = is_whole) -> tuple[int, ...]:
                name = event.stage
                side = (name in generates) != first
                position = place.get(name, depth.get(name, -1))
                return (side, position, event.firing) if is_whole else (side, event.firing, position)

            yield key
