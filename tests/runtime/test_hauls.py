"""What a plan says of data that comes and goes, as calls of workers; and what cannot be kept is refused by name."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from tests.runtime.conftest import tiny_recipe
from transformers import PreTrainedModel

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.algorithms.reference import Reference
from rpeg.errors import Fault, PlanError
from rpeg.graph.contract import Kl
from rpeg.graph.graph import Graph
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import KnownCosts
from rpeg.plan.events import Event
from rpeg.plan.lower import lower
from rpeg.plan.plan import Home, Plan, Residency, Slot
from rpeg.recipe.graph import build_graph
from rpeg.runtime.group import Groups
from rpeg.runtime.hauls import Hauls
from rpeg.runtime.holders import Holder, holder_of
from rpeg.runtime.residency import Stay
from rpeg.runtime.support import check_plan_runs

GRAPH = grpo(4, 4, kl=Kl.LOSS)
REF = Residency("ref.weights", Home.HOST, (("ref", "ref"),))
MOMENTS = Residency("actor.moments", Home.DISK, (("update", "update"),))
ROLLOUT = Residency("actor.rollout", Home.HOST, (("gen", "gen"), ("pull", "eval")))


class Calls(Groups):
    """Groups that note what is asked of them."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def move(self, mesh: str, data: str, to: Home) -> Future[Any]:
        return self._note(mesh, "move", data, to)

    def let_go(self, mesh: str, data: tuple[str, ...]) -> Future[Any]:
        return self._note(mesh, "let_go", data)

    def _note(self, *heard: object) -> Future[Any]:
        self.heard.append(heard)
        done: Future[Any] = Future()
        done.set_result(None)
        return done


def outline() -> PreTrainedModel:
    raise AssertionError("no model is looked at")


def plan_of(graph: Graph, *residencies: Residency) -> Plan:
    return replace(bind_local(graph), residencies=residencies)


def event(stage: str, firing: int = 0) -> Event:
    return Event(f"{stage}.{firing}", stage, firing, 0.0, ())


def test_events_become_calls_of_the_worker_that_holds_the_data() -> None:
    hauls, groups = Hauls(GRAPH, plan_of(GRAPH, REF, MOMENTS)), Calls()
    assert hauls.move(groups, event("train")) is None
    for name in ("load:ref.weights.0", "load:actor.moments.0", "store:actor.moments.0"):
        assert hauls.move(groups, event(name)) is not None
    assert groups.heard == [
        ("all", "move", "ref.weights", Home.HBM),
        ("all", "move", "actor.moments", Home.HBM),
        ("all", "move", "actor.moments", Home.DISK),
    ]


def test_what_nobody_changes_is_let_go_of_after_its_last_firing() -> None:
    graph = build_graph(tiny_recipe(algorithm={"kl_coefficient": 0.1}))
    hauls, groups = Hauls(graph, plan_of(graph, REF, MOMENTS, ROLLOUT)), Calls()
    assert {stage: hauls.let_go_after(event(stage)) for stage in ("gen", "ref", "train", "update", "pull", "eval")} == {
        "gen": ("actor.rollout",),
        "ref": ("ref.weights",),
        "train": (),
        "update": (),
        "pull": (),
        "eval": (),
    }
    for stage in ("gen", "eval"):
        hauls.let_go(groups, event(stage))
    assert groups.heard == [("all", "let_go", ("actor.rollout",))]


def test_several_firings_let_go_after_the_last() -> None:
    graph = build_graph(tiny_recipe(algorithm={"kl_coefficient": 0.1, "rewrites": ["fire{stage=ref,rows=8}"]}))
    hauls = Hauls(graph, plan_of(graph, REF))
    assert (hauls.let_go_after(event("ref", 0)), hauls.let_go_after(event("ref", 1))) == ((), ("ref.weights",))


def test_a_worker_begins_with_what_its_mesh_has_for_a_time_away() -> None:
    graph = build_graph(tiny_recipe(algorithm={"staleness": 1, "kl_coefficient": 0.1}))
    hauls = Hauls(graph, plan_of(graph, REF, ROLLOUT))
    assert hauls.stays("roll") == (Stay("actor.rollout", Home.HOST),)
    assert hauls.stays("trn") == (Stay("ref.weights", Home.HOST),)


def test_a_time_that_begins_with_one_that_others_run_ahead_of_is_refused() -> None:
    graph = build_graph(tiny_recipe(algorithm={"staleness": 1}))
    base = bind_local(graph)
    orders = dict(base.order)
    gen, *others = orders["roll"]
    assert gen == Slot("gen", shift=1)
    order = tuple((mesh, (*others, gen) if mesh == "roll" else slots) for mesh, slots in base.order)
    plan = replace(base, order=order, residencies=(Residency("actor.rollout", Home.HOST, (("pull", "gen"),)),))
    with pytest.raises(PlanError) as caught:
        check_plan_runs(tiny_recipe(), graph, plan, lower(graph, base, KnownCosts({})), outline)
    text = "is loaded for pull, and gen runs 1 steps ahead of it"
    assert caught.value.faults == (Fault("actor.rollout", text, "let its time begin with gen, or shift that less"),)


def test_what_a_stage_needs_is_there_before_the_first_step() -> None:
    graph = build_graph(tiny_recipe(algorithm={"kl_coefficient": 0.1}))
    hauls, groups = Hauls(graph, plan_of(graph, REF, ROLLOUT)), Calls()
    with hauls.at_hand(groups, "eval", 60.0):
        groups.heard.append(("here",))
    with hauls.at_hand(groups, "update", 60.0):
        pass
    assert groups.heard == [
        ("all", "move", "actor.rollout", Home.HBM),
        ("here",),
        ("all", "let_go", ("actor.rollout",)),
    ]


@pytest.mark.parametrize(
    ("residency", "reason"),
    [
        (
            Residency("actor.staged", Home.HOST, (("push", "pull"),)),
            "actor.staged: lives at host, and no worker has it for itself; these can be moved: "
            "actor.master, actor.moments, actor.rollout, ref.weights",
        ),
        (
            Residency("grads", Home.HOST, (("train", "update"),)),
            "grads: lives at host, and no worker has it for itself",
        ),
        (
            Residency("ref.weights", Home.HOST, (("reward", "reward"),)),
            "ref.weights: lives at host and comes to host, where nobody uses it; it is used on all",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(residency: Residency, reason: str) -> None:
    plan = plan_of(GRAPH, residency)
    with pytest.raises(PlanError) as caught:
        check_plan_runs(tiny_recipe(), GRAPH, plan, lower(GRAPH, bind_local(GRAPH), KnownCosts({})), outline)
    assert reason in str(caught.value)


def test_two_residencies_of_one_data_on_one_mesh_are_refused() -> None:
    plan = plan_of(GRAPH, REF, REF)
    with pytest.raises(PlanError, match=r"ref\.weights: has 2 residencies on all; name all its times in one"):
        check_plan_runs(tiny_recipe(), GRAPH, plan, lower(GRAPH, bind_local(GRAPH), KnownCosts({})), outline)


def test_what_stays_on_the_device_is_nothing_to_do() -> None:
    plan = plan_of(GRAPH, Residency("actor.moments", Home.HBM))
    check_plan_runs(tiny_recipe(), GRAPH, plan, lower(GRAPH, plan, KnownCosts({})), outline)
    assert Hauls(GRAPH, plan).stays("all") == ()


POLICY, CRITIC = Holder("policy", has_moments=True), Holder("critic", has_moments=True)


@pytest.mark.parametrize(
    ("graph", "holders"),
    [
        (
            GRAPH,
            {
                "actor.master": Holder("policy"),
                "actor.moments": Holder("policy", has_weights=False, has_moments=True),
                "actor.staged": None,
                "actor.rollout": Holder("generator"),
                "ref.weights": Holder("reference"),
            },
        ),
        (
            ppo(4, 4),  # published into what is sampled from, without a pull
            {
                "actor.master": POLICY,
                "actor.rollout": None,
                "critic.master": CRITIC,
                "ref.weights": Holder("reference"),
            },
        ),
        (grpo(4, 4, kl=Kl.LOSS, reference=Reference.EMA), {"ref.weights": Holder("average")}),
        (
            grpo(4, 4, kl=Kl.LOSS, reference=Reference.ADAPTER_OFF),  # what is trained lies among what is not
            {
                "actor.base": None,
                "actor.master": None,
                "actor.moments": Holder("policy", has_weights=False, has_moments=True),
            },
        ),
        (
            build_graph(tiny_recipe(reward={"functions": [], "model": "judge"})),
            {"rm.weights": Holder("reward_model")},
        ),
        (
            build_graph(tiny_recipe(algorithm={"name": "ppo_shared"})),
            {"actor+critic.master": POLICY},
        ),
    ],
)
def test_every_data_has_one_holder(graph: Graph, holders: dict[str, Holder | None]) -> None:
    assert {name: holder_of(graph, name) for name in holders} == holders
