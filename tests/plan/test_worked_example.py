"""The worked example of the design: GRPO with 64 samples in groups of 8, in whole seconds.

    gen 40, ref 6, reward 4 (on the host), advantage 0, train 20, update 1, publish 2

``publish`` moves the weights from the trainer to the generator and occupies both: a rendezvous.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import ceil

import pytest

from rpeg.algorithms.grpo import grpo
from rpeg.graph.access import Access, Bound, Mode, Refresh
from rpeg.graph.contract import Contract, Kl
from rpeg.graph.data import Column, Data, DataKind, Lifetime, ModelRef, Per, Symbol, SymbolKind
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import lead, staleness
from rpeg.graph.stage import Effect, Grain, Stage, StageKind
from rpeg.graph.validate import check
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import Duration, KnownCosts, KnownSizes
from rpeg.plan.events import EventGraph, cycle_ratio
from rpeg.plan.lower import lower
from rpeg.plan.memory import residents
from rpeg.plan.plan import Binding, Layout, Mesh, Plan, Slot
from rpeg.plan.play import Firing
from rpeg.plan.rules import check_plan
from rpeg.plan.simulate import simulate
from rpeg.plan.timeline import Schedule, most_alive, peak

SECONDS = {"gen": 40.0, "ref": 6.0, "reward": 4.0, "train": 20.0, "update": 1.0, "publish": 2.0}
PER_ROW = ("gen", "ref", "reward", "advantage", "train")
HOST, ROLL, TRN = "host", "roll", "trn"


def columns(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "float32") for name in names)


def stages(firings: int, *, in_flight: bool) -> tuple[Stage, ...]:
    m, group = Dim(str(firings)), Dim("G")
    heads, rng = ("kv_keep",) if in_flight else (), frozenset({Effect.RNG})
    return (
        Stage("gen", StageKind.GENERATE, "actor", heads, firings=m, yields=group, effects=rng),
        Stage("ref", StageKind.FORWARD, "ref", firings=m),
        Stage("reward", StageKind.VERIFY, firings=m),
        Stage("advantage", StageKind.ADVANTAGE, grain=Grain.GROUP, firings=m),
        Stage("train", StageKind.TRAIN, "actor", firings=m),
        Stage("update", StageKind.UPDATE, "actor"),
        Stage("publish", StageKind.PUSH, "actor"),
    )


def accesses(k: int, moved: int, *, in_flight: bool) -> tuple[Access, ...]:
    """``moved`` of the k delays are on the reads of the rollouts instead of the read of the weights."""
    weights = Access("gen", "actor.rollout", Mode.READ, delay=k + 1 - moved)
    if in_flight:
        weights = replace(weights, bound=Bound.AT_LEAST, refresh=Refresh.TOKEN)
    reads = {
        "gen": ("prompts",),
        "ref": ("rollouts", "ref.weights"),
        "reward": ("rollouts",),
        "advantage": ("scores",),
        "train": ("rollouts", "ref_out", "advantages"),
        "update": ("grads",),
        "publish": ("actor.master",),
    }
    writes = {
        **{"gen": "rollouts", "ref": "ref_out", "reward": "scores", "advantage": "advantages", "train": "grads"},
        "publish": "actor.rollout",
    }
    return (
        *(
            Access(stage, name, Mode.READ, delay=moved if name == "rollouts" else 0)
            for stage, names in reads.items()
            for name in names
        ),
        weights,
        Access("train", "actor.master", Mode.READ, delay=1),
        *(Access(stage, name, Mode.WRITE) for stage, name in writes.items()),
        Access("update", "actor.master", Mode.UPDATE),
    )


def grpo_by_hand(k: int = 0, firings: int = 1, moved: int = 0, *, in_flight: bool = False) -> Graph:
    kept = Lifetime.SAVED if k else Lifetime.STEP
    sample, run = Per.SAMPLE, Per.RUN
    return check(
        Graph(
            name="grpo",
            contract=Contract("grpo", Dim("B"), Dim("G"), max_staleness=k, kl=Kl.LOSS),
            symbols=tuple(Symbol(name, "samples", SymbolKind.CONST, "", 8) for name in "BG"),
            models=(ModelRef("actor"), ModelRef("ref", frozen=True)),
            data=(
                Data("prompts", DataKind.EXTERNAL, columns("tokens", "seed"), Per.GROUP),
                Data("ref.weights", DataKind.EXTERNAL, columns("weights"), run, "ref"),
                Data("rollouts", DataKind.STREAM, columns("tokens", "logp", "version"), sample, "actor", 0, 0, kept),
                Data("ref_out", DataKind.STREAM, columns("ref_logp"), sample, versions=0),
                Data("scores", DataKind.STREAM, columns("reward"), sample, versions=0),
                Data("advantages", DataKind.STREAM, columns("advantage"), sample, versions=0),
                Data("grads", DataKind.STREAM, columns("grads"), Per.STEP, "actor", 0),
                Data("actor.master", DataKind.STATE, columns("weights"), run, "actor", 1, 0, Lifetime.SAVED),
                Data("actor.rollout", DataKind.STATE, columns("weights"), run, "actor", k + 1 - moved, 0, Lifetime.RUN),
            ),
            stages=stages(firings, in_flight=in_flight),
            accesses=accesses(k, moved, in_flight=in_flight),
        )
    )


def bind(graph: Graph, meshes: Mapping[str, str], **order: list[Slot]) -> Plan:
    return check_plan(
        graph,
        Plan(
            graph.digest(),
            tuple(Mesh(name, "rack") for name in order),
            tuple(Binding(stage.name, meshes[stage.name], Layout(meshes[stage.name])) for stage in graph.stages),
            tuple((name, tuple(slots)) for name, slots in order.items()),
        ),
    )


def colocated(graph: Graph) -> Plan:
    """Everything on one group of devices, one stage after the other."""
    order = [Slot(stage.name, j) for stage in graph.stages for j in range(int(graph.firings(stage.name)))]
    return bind(graph, dict.fromkeys(graph.stage_of, "all"), all=order)


def disaggregated(graph: Graph, shift: int | None = None) -> Plan:
    """The generator on its own devices, as many steps ahead as its weights allow; ``publish`` stands in both orders."""
    m, ahead = int(graph.firings("gen")), lead(graph, "gen") if shift is None else shift
    meshes = {"gen": ROLL, "reward": HOST, "advantage": HOST}
    return bind(
        graph,
        {stage: meshes.get(stage, TRN) for stage in graph.stage_of},
        roll=[*(Slot("gen", j, ahead) for j in range(m)), Slot("publish")],
        trn=[*(Slot(stage, j) for j in range(m) for stage in ("ref", "train")), Slot("update"), Slot("publish")],
        host=[Slot(stage, j) for j in range(m) for stage in ("reward", "advantage")],
    )


def priced(graph: Graph, plan: Plan, seconds: Mapping[str, float] = SECONDS, tail_s: float = 0.0) -> EventGraph:
    """Lower with ``seconds`` per stage and step, shared by its firings; ``tail_s`` of the generator's are a tail."""
    share = {stage: int(graph.firings(stage)) if stage in PER_ROW else 1 for stage in seconds}
    durations = {stage: Duration(total_s / share[stage]) for stage, total_s in seconds.items()}
    durations["gen"] = Duration(durations["gen"].occupancy_s - tail_s, tail_s)
    return lower(graph, plan, KnownCosts(durations))


def period_s(events: EventGraph) -> Fraction:
    """Return the period, having checked that playing the graph takes just as long per step."""
    period, _ = cycle_ratio(events)
    steps = 24
    ends_s = [f.end_s for f in simulate(events, steps) if f.event == "publish.0"]
    assert Fraction(ends_s[-1]) - Fraction(ends_s[-13]) == 12 * period
    return period


def busy(events: EventGraph, resource: str) -> int:
    """Return how much of a period a resource works, in percent."""
    work_s = sum(Fraction(event.occupancy_s) for event in events.events if resource in event.resources)
    return round(100 * work_s / cycle_ratio(events)[0])


def stages_on_critical_cycle(events: EventGraph) -> set[str]:
    return {events.event_of[arc.src].stage for arc in cycle_ratio(events)[1]}


def test_colocated_and_synchronous() -> None:
    graph = grpo_by_hand()
    events = priced(graph, colocated(graph))
    assert period_s(events) == 73
    assert busy(events, "all") == 100
    assert stages_on_critical_cycle(events) >= set(SECONDS)


def test_disaggregated_and_synchronous() -> None:
    graph = grpo_by_hand()
    events = priced(graph, disaggregated(graph))
    assert period_s(events) == 69
    assert stages_on_critical_cycle(events) == {"gen", "ref", "train", "update", "publish"}
    assert sum(arc.tokens for arc in cycle_ratio(events)[1]) == 1
    assert (busy(events, ROLL), busy(events, TRN)) == (61, 42)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_one_step_of_staleness_is_worth_all_that_more_would_be(k: int) -> None:
    graph = grpo_by_hand(k)
    events = priced(graph, disaggregated(graph))
    assert period_s(events) == 42
    assert stages_on_critical_cycle(events) == {"gen", "publish"}
    assert (busy(events, ROLL), busy(events, TRN)) == (100, 69)


def test_staleness_without_running_ahead_is_worth_nothing() -> None:
    graph = grpo_by_hand(k=1)
    events = priced(graph, disaggregated(graph, shift=0))
    assert period_s(events) == 69
    assert stages_on_critical_cycle(events) == {"gen", "ref", "train", "update", "publish"}


@pytest.mark.parametrize(("k", "expected"), [(0, 63), (1, 38), (2, 38)])
def test_devices_rebalanced(k: int, expected: int) -> None:
    graph = grpo_by_hand(k)
    events = priced(graph, disaggregated(graph), {**SECONDS, "gen": 25.0, "ref": 8.0, "train": 27.0})
    assert period_s(events) == expected
    if k:
        assert (busy(events, ROLL), busy(events, TRN)) == (71, 100)


@pytest.mark.parametrize(("firings", "expected"), [(2, "56"), (4, "49.5"), (8, "46.25")])
def test_streamed_in_micro_batches(firings: int, expected: str) -> None:
    graph = grpo_by_hand(firings=firings)
    events = priced(graph, disaggregated(graph))
    assert period_s(events) == Fraction(expected)
    assert {arc.src for arc in cycle_ratio(events)[1]} >= {f"gen.{firings - 1}", f"train.{firings - 1}", "publish.0"}
    if firings == 8:
        assert (busy(events, ROLL), busy(events, TRN)) == (91, 63)


def test_streamed_and_stale() -> None:
    graph = grpo_by_hand(k=1, firings=4)
    events = priced(graph, disaggregated(graph))
    assert period_s(events) == 42
    assert (busy(events, ROLL), busy(events, TRN)) == (100, 69)


@pytest.mark.parametrize(
    ("stage", "worth"), [("gen", 4), ("ref", 1), ("train", 1), ("update", 1), ("publish", 1), ("reward", 0)]
)
def test_what_a_second_more_per_firing_costs(stage: str, worth: int) -> None:
    graph = grpo_by_hand(firings=4)
    longer = {**SECONDS, stage: SECONDS[stage] + (4 if stage in PER_ROW else 1) / 64}
    before, after = (period_s(priced(graph, disaggregated(graph), seconds)) for seconds in (SECONDS, longer))
    assert (after - before) * 64 == worth


@pytest.mark.parametrize(
    ("k", "drained", "in_flight"), [(0, "69", "69"), (1, "42", "34.5"), (2, "42", "29"), (3, "42", "29")]
)
def test_a_long_tail(k: int, drained: str, in_flight: str) -> None:
    """Slots are free after 26 s on average, the last sample is out after 40 s."""
    periods = []
    for at_once in (False, True):
        graph = grpo_by_hand(k, in_flight=at_once)
        periods.append(period_s(priced(graph, disaggregated(graph), tail_s=14.0)))
    assert periods == [Fraction(drained), Fraction(in_flight)]


@pytest.mark.parametrize(("k", "moved"), [(1, 1), (2, 1), (2, 2), (3, 2)])
def test_retiming_is_a_choice_of_memory_only(k: int, moved: int) -> None:
    graphs = [grpo_by_hand(k), grpo_by_hand(k, moved=moved)]
    assert [staleness(graph, "gen") for graph in graphs] == [k, k]
    assert [period_s(priced(graph, disaggregated(graph))) for graph in graphs] == [42, 42]
    assert [graph.data_of["actor.rollout"].versions for graph in graphs] == [k + 1, k + 1 - moved]


@pytest.mark.parametrize(("k", "recurrence_s", "resource_s"), [(0, 69, 42), (1, 40, 42), (2, 40, 42), (3, 40, 42)])
def test_two_bounds_meet_in_a_good_order(k: int, recurrence_s: int, resource_s: int) -> None:
    """What waits for what bounds the period from below, and so does the busiest resource."""
    graph = grpo_by_hand(k)
    events = priced(graph, disaggregated(graph))
    without_devices = tuple(arc for arc in events.arcs if not arc.reason.startswith("device:"))
    assert cycle_ratio(EventGraph(events.events, without_devices))[0] == recurrence_s
    loads_s = [sum(e.occupancy_s for e in events.events if name in e.resources) for name in (ROLL, TRN, HOST)]
    assert max(loads_s) == resource_s
    assert period_s(events) == max(recurrence_s, resource_s)


def test_the_smallest_staleness_that_helps() -> None:
    """The lineage of a sample takes 69 s and the busiest resource works 42 s: one step ahead hides the rest."""
    assert ceil(69 / 42) - 1 == 1


@pytest.mark.parametrize(
    ("k", "lifetime_s", "batches", "average"),
    [(0, 66, 1, "0.96"), (1, 68, 2, "1.62"), (2, 110, 3, "2.62"), (3, 152, 4, "3.62")],
)
def test_batches_of_rollouts_alive(k: int, lifetime_s: int, batches: int, average: str) -> None:
    graph = grpo_by_hand(k)
    events = priced(graph, disaggregated(graph))
    found = Schedule(events, simulate(events, 30)).lifetimes(graph, "rollouts")[15:25]
    assert {each.end_s - each.start_s for each in found} == {lifetime_s}
    assert most_alive(found) == batches
    assert f"{lifetime_s / float(cycle_ratio(events)[0]):.2f}" == average


@pytest.mark.parametrize(("k", "waiting"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_memory_for_the_batches_that_wait(k: int, waiting: int) -> None:
    """With the trainer, a batch lies from the end of its generation to the end of its training: 26, 28, 70, 112 s."""
    graph = grpo_by_hand(k)
    events = priced(graph, disaggregated(graph))
    played = Schedule(events, simulate(events, 30))
    found = residents(graph, disaggregated(graph), KnownSizes({"rollouts": 10}), played)
    assert {each.end_s - each.start_s for each in found[TRN][12:20]} == {[26, 28, 70, 112][k]}
    assert peak(found[TRN][:25]).num_bytes == 10 * waiting
    assert peak(found[ROLL][:25]).num_bytes == 10


def loss_to_variance(events: EventGraph, paced_by: str) -> float:
    """Return by how much random lengths of generation stretch the period; lognormal with sigma 0.35."""
    rng, sigma = random.Random(0), 0.35

    def draw(firing: Firing, expected_s: float) -> float:
        return expected_s * rng.lognormvariate(-(sigma**2) / 2, sigma) if firing.event == "gen.0" else expected_s

    ends_s = [firing.end_s for firing in simulate(events, 600, draw) if firing.event == paced_by]
    return (ends_s[-1] - ends_s[99]) / (len(ends_s) - 100) / float(cycle_ratio(events)[0]) - 1


def test_a_rendezvous_makes_staleness_useless_against_variance() -> None:
    """Both devices work 36 s per step. Meeting at every publish waits for the longer of the two, however large k is."""
    seconds = {**SECONDS, "gen": 34.0, "train": 27.0}
    push_pull = {"gen": 36.0, "ref": 6.0, "reward": 4.0, "train": 28.0, "update": 1.0, "push": 1.0}
    costs = KnownCosts({stage: Duration(s) for stage, s in push_pull.items()})
    met, staged = [], []
    for k in (1, 2, 4, 8):
        by_hand, built = grpo_by_hand(k), grpo(8, 8, k, kl=Kl.LOSS)
        met.append(loss_to_variance(priced(by_hand, disaggregated(by_hand), seconds), "publish.0"))
        staged.append(loss_to_variance(lower(built, bind_local(built), costs), "push.0"))
    assert met == pytest.approx([0.13] * 4, abs=0.01)
    assert staged == pytest.approx([0.14, 0.05, 0.02, 0.015], abs=0.01)


def staged(k: int, versions: int) -> tuple[Graph, Plan]:
    """The same with a push into one of ``versions`` staged copies, and a pull that installs it."""
    by_hand = grpo_by_hand(k)
    copy = Data("actor.staged", DataKind.STATE, columns("weights"), Per.RUN, "actor", versions, 0, Lifetime.RUN)
    ends = {"push": ("actor.master", "actor.staged"), "pull": ("actor.staged", "actor.rollout")}
    moves = [
        Access(stage, data, mode)
        for stage, names in ends.items()
        for data, mode in zip(names, (Mode.READ, Mode.WRITE), strict=True)
    ]
    graph = replace(
        by_hand,
        data=(*by_hand.data, copy),
        stages=(*by_hand.stages[:-1], Stage("push", StageKind.PUSH, "actor"), Stage("pull", StageKind.PULL, "actor")),
        accesses=(*(access for access in by_hand.accesses if access.stage != "publish"), *moves),
    )
    meshes = {"gen": ROLL, "pull": ROLL, "reward": HOST, "advantage": HOST}
    return graph, bind(
        check(graph),
        {stage: meshes.get(stage, TRN) for stage in graph.stage_of},
        roll=[Slot("gen", 0, k), Slot("pull")],
        trn=[Slot(stage) for stage in ("ref", "train", "update", "push")],
        host=[Slot("reward"), Slot("advantage")],
    )


@pytest.mark.parametrize(("versions", "expected"), [(2, [12.7, 4.0, 1.9, 1.9]), (4, [12.7, 4.0, 1.2, 0.9])])
def test_staged_copies_turn_staleness_into_slack(versions: int, expected: list[float]) -> None:
    """Percent lost to variance with k = 1, 2, 4, 8: k counts until the copies run out. Drawn, so good to a percent."""
    seconds = {"gen": 34.0, "ref": 6.0, "reward": 4.0, "train": 27.0, "update": 1.0, "push": 2.0, "pull": 2.0}
    costs = KnownCosts({stage: Duration(each) for stage, each in seconds.items()})
    found = [100 * loss_to_variance(lower(*staged(k, versions), costs), "push.0") for k in (1, 2, 4, 8)]
    assert found == pytest.approx(expected, abs=1.1)
    assert found[0] > found[1] + 5 > found[2] + 5
    if versions == 2:
        assert found[3] == pytest.approx(found[2], abs=0.01)
