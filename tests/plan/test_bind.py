"""Plans for one machine."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from rpeg.algorithms.catalog import ALGORITHMS
from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.graph.access import Mode
from rpeg.graph.contract import Kl, Logprob
from rpeg.graph.data import Per
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.hardware.catalog import load_system
from rpeg.plan.bind import HOST, bind_local
from rpeg.plan.costs import Duration, KnownCosts
from rpeg.plan.events import cycle_ratio
from rpeg.plan.lower import lower
from rpeg.plan.plan import Plan
from rpeg.plan.rules import validate_plan
from rpeg.plan.site import Site

SECONDS = {"gen": 40.0, "ref": 6.0, "reward": 4.0, "train": 20.0, "update": 1.0, "push": 1.0, "pull": 2.0}
COSTS = KnownCosts({stage: Duration(s) for stage, s in SECONDS.items()})


def order(plan: Plan) -> dict[str, str]:
    """Return the orders as text, ``gen.0+1`` for a firing one step ahead."""
    return {
        name: " ".join(f"{s.stage}.{s.firing}" + (f"+{s.shift}" if s.shift else "") for s in slots)
        for name, slots in plan.order
    }


def test_synchronous_is_colocated() -> None:
    graph = grpo(8, 4, kl=Kl.LOSS, old_logprob=Logprob.RECOMPUTED, evaluate_every_steps=5)
    plan = bind_local(graph)
    assert order(plan) == {
        "all": "gen.0 ref.0 old.0 train.0 update.0 push.0 pull.0 eval.0",
        "host": "reward.0 advantage.0",
    }
    assert [(mesh.name, mesh.where) for mesh in plan.meshes] == [("all", "local.slot[0:1]"), ("host", "local.host")]
    assert {binding.stage for binding in plan.bindings if binding.mesh == HOST} == {"reward", "advantage"}
    assert plan.graph == graph.digest()


def test_stale_is_split_and_generates_ahead() -> None:
    plan = bind_local(grpo(8, 4, 2, old_logprob=Logprob.RECOMPUTED, evaluate_every_steps=5))
    assert order(plan) == {
        "roll": "gen.0+2 pull.0 eval.0",
        "trn": "old.0 train.0 update.0 push.0",
        "host": "reward.0 advantage.0",
    }
    assert [(mesh.name, mesh.where) for mesh in plan.meshes] == [
        ("roll", "local.slot[0:1]"),
        ("trn", "local.slot[1:2]"),
        ("host", "local.host"),
    ]


def test_optimizer_mini_batches_alternate() -> None:
    plan = bind_local(grpo(8, 4, updates_per_step=2))
    assert order(plan)["all"] == "gen.0 train.0 update.0 train.1 update.1 push.0 pull.0"


def fire_more_often(graph: Graph, **firings: int) -> Graph:
    return replace(
        graph,
        stages=tuple(replace(s, firings=Dim(str(firings[s.name]))) if s.name in firings else s for s in graph.stages),
    )


def test_parts_of_mini_batches_come_before_their_update() -> None:
    graph = fire_more_often(grpo(8, 4, updates_per_step=2), train=4)
    plan = bind_local(graph)
    assert order(plan)["all"] == "gen.0 train.0 train.1 update.0 train.2 train.3 update.1 push.0 pull.0"
    assert cycle_ratio(lower(graph, plan, COSTS))[0] == 40 + 4 + 4 * 20 + 2 * 1 + 1 + 2


@pytest.mark.parametrize("k", range(5))
@pytest.mark.parametrize("kl", [Kl.NONE, Kl.LOSS])
@pytest.mark.parametrize("old", [Logprob.RECORDED, Logprob.RECOMPUTED])
@pytest.mark.parametrize("updates", [1, 2, 4])
def test_every_variant_is_legal_and_live(k: int, kl: Kl, old: Logprob, updates: int) -> None:
    graph = grpo(8, 4, k, updates_per_step=updates, kl=kl, old_logprob=old, evaluate_every_steps=k)
    plan = bind_local(graph)
    assert validate_plan(graph, plan) == []
    lower(graph, plan, COSTS)


@pytest.mark.parametrize(("k", "expected"), [(0, 40 + 4 + 20 + 1 + 1 + 2), (1, 42), (3, 42)])
def test_period(k: int, expected: int) -> None:
    graph = grpo(8, 4, k)
    assert cycle_ratio(lower(graph, bind_local(graph), COSTS))[0] == expected


def retimed(graph: Graph, steps: int) -> Graph:
    """Move delays from the read of the rollout weights to the reads of the rollouts."""

    def change(access: Any) -> int:
        if (access.stage, access.data) == ("gen", "actor.rollout"):
            return access.delay - steps
        return access.delay + steps * (access.data == "rollouts" and access.mode is Mode.READ)

    return replace(graph, accesses=tuple(replace(access, delay=change(access)) for access in graph.accesses))


@pytest.mark.parametrize(("k", "moved"), [(1, 1), (2, 1), (2, 2), (4, 3)])
def test_retiming_moves_the_shift_with_the_delay_and_keeps_the_period(k: int, moved: int) -> None:
    graph = grpo(8, 4, k)
    moved_graph = retimed(graph, moved)
    before, after = bind_local(graph), bind_local(moved_graph)
    assert (before.shift_of("gen"), after.shift_of("gen")) == (k, k - moved)
    assert cycle_ratio(lower(moved_graph, after, COSTS))[0] == Fraction(42)
    assert cycle_ratio(lower(graph, before, COSTS))[0] == Fraction(42)


def test_ppo_together_and_apart() -> None:
    assert order(bind_local(ppo())) == {
        "all": "gen.0 old_logp.0 value.0 reward.0 ref.0 kl_control.0 train_actor.0 train_critic.0 "
        "update_actor.0 update_critic.0 publish.0",
        "host": "gae.0",
    }
    apart = bind_local(ppo(staleness=1))
    assert order(apart)["roll"] == "gen.0+1 publish.0"
    assert order(apart)["trn"].startswith("old_logp.0 value.0 reward.0 ref.0 kl_control.0 train_actor.0 update_actor.0")
    assert apart.resources_of("publish") == ("trn", "roll")


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_algorithm_has_a_plan_for_one_machine(name: str) -> None:
    graph = ALGORITHMS[name]()
    plan = bind_local(graph)
    site = Site(load_system("local"))
    assert validate_plan(graph, plan, site) == []
    lower(graph, plan, COSTS)


def test_what_is_laid_out_on_one_mesh_and_read_on_another() -> None:
    """The transfer in between has no slot: it follows from the plan, and the stages around it keep their order."""
    graph = grpo(4, 2)
    data = tuple(replace(d, per=Per.RUN) if d.name == "rollouts" else d for d in graph.data)
    plan = bind_local(replace(graph, data=data))
    assert dict(plan.order)["all"][0].stage == "gen"
    events = lower(replace(graph, data=data), plan, COSTS).events
    assert "reshard:rollouts>reward" in {event.stage for event in events}
