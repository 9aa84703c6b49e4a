"""PPO: twelve stages, what flows between them, and what one trunk for policy and critic changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from rpeg.algorithms.ppo import Trunk, ppo, ppo_shared
from rpeg.algorithms.reward import RewardSource
from rpeg.errors import GraphError
from rpeg.graph.access import Access, Edge, Mode
from rpeg.graph.contract import Baseline, Kl, Logprob, Normalise
from rpeg.graph.data import DataKind, Lifetime
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import staleness
from rpeg.graph.stage import Grain, StageKind
from rpeg.transforms.share_trunk import ShareTrunk


def sizes(graph: Graph) -> tuple[int, int, int]:
    return len(graph.stages), len(graph.data), len(graph.accesses)


def test_twelve_stages_fifteen_data_thirty_eight_accesses() -> None:
    graph = ppo()
    assert sizes(graph) == (12, 15, 38)
    assert Counter(stage.kind for stage in graph.stages) == {
        StageKind.GENERATE: 1,
        StageKind.FORWARD: 4,
        StageKind.ADVANTAGE: 1,
        StageKind.TRAIN: 2,
        StageKind.UPDATE: 3,
        StageKind.PUSH: 1,
    }
    assert Counter(data.kind for data in graph.data) == {
        DataKind.STREAM: 8,  # rollouts, old log-probs, values, scores, reference, advantages, gradients of two models
        DataKind.STATE: 4,  # weights of actor and critic, the rollout copy, the coefficient
        DataKind.EXTERNAL: 3,  # prompts, reward model, reference
    }
    assert Counter(access.mode for access in graph.accesses) == {Mode.READ: 26, Mode.WRITE: 9, Mode.UPDATE: 3}


def test_the_contract() -> None:
    contract = ppo().contract
    assert (contract.baseline, contract.kl, contract.normalise) == (Baseline.VALUE, Kl.REWARD, Normalise.TOKEN)
    assert (contract.behaviour_logprob, contract.advantage_scope) == (Logprob.RECOMPUTED, Grain.SAMPLE)
    assert (contract.max_staleness, contract.updates_per_step, contract.passes) == (0, 1, 1)
    assert contract.allowed == frozenset()


def test_which_weights_each_pass_reads() -> None:
    graph = ppo()
    heads = {s.name: (s.model, s.heads) for s in graph.stages if s.kind in (StageKind.FORWARD, StageKind.TRAIN)}
    assert heads == {
        "old_logp": ("actor", ("logprob",)),
        "value": ("critic", ("value",)),
        "reward": ("rm", ("score",)),
        "ref": ("ref", ("logprob",)),
        "train_actor": ("actor", ("logprob", "entropy")),
        "train_critic": ("critic", ("value",)),
    }
    weights = {a.stage: (a.data, a.delay) for a in graph.accesses if a.columns == ("weights",) and not a.writes}
    assert weights == {
        "old_logp": ("actor.master", 1),
        "train_actor": ("actor.master", 1),
        "value": ("critic.master", 1),
        "train_critic": ("critic.master", 1),
        "publish": ("actor.master", 0),
    }


def test_advantages_stand_between_values_and_the_critic_but_not_before_the_actor_alone() -> None:
    """So the pass for values cannot join the critic's training; that for old log-probabilities can join the actor's."""
    edges = list(ppo().edges())
    assert [e.reader for e in edges if e.writer == "value"] == ["gae"]
    assert [e.reader for e in edges if e.writer == "old_logp"] == ["train_actor"]
    assert {e.reader for e in edges if e.writer == "gae"} == {"kl_control", "train_actor", "train_critic"}


def test_the_controller_delays_by_a_step_and_makes_nothing_stale() -> None:
    graph = ppo()
    assert [(e.writer, e.reader, e.delay) for e in graph.edges() if e.data == "kl.coef"] == [("kl_control", "gae", 1)]
    assert graph.writes("kl_control") == [Access("kl_control", "kl.coef", Mode.UPDATE)]
    assert graph.stage_of["kl_control"].model is None
    assert staleness(graph, "gen") == 0
    watching = replace(graph, accesses=(*graph.accesses, Access("kl_control", "rollouts", Mode.READ)))
    cycle = ["gen", "kl_control", "gae", "train_actor", "update_actor", "publish", "gen"]
    delays = {(edge.writer, edge.reader): edge.delay for edge in watching.edges()}
    assert sum(delays[pair] for pair in pairwise(cycle)) == 2  # every cycle minus one would say 1
    assert staleness(watching, "gen") == 0


def test_the_weights_are_published_by_a_rendezvous() -> None:
    graph = ppo()
    assert [str(edge) for edge in graph.edges() if "publish" in (edge.writer, edge.reader)] == [
        str(Edge("update_actor", "publish", "actor.master", 0)),
        str(Edge("publish", "gen", "actor.rollout", 1)),
    ]


def test_what_a_checkpoint_holds() -> None:
    saved = {data.name for data in ppo().data if data.lifetime is Lifetime.SAVED}
    assert saved == {"actor.master", "critic.master", "kl.coef"}
    assert {d.name for d in ppo(64, 1, 1).data if d.lifetime is Lifetime.SAVED} - saved == {"rollouts"}
    assert [c.name for c in ppo().data_of["actor.master"].columns] == ["weights", "moments"]


@pytest.mark.parametrize("k", range(4))
def test_staleness(k: int) -> None:
    graph = ppo(64, 1, k)
    assert staleness(graph, "gen") == graph.contract.max_staleness == k
    assert graph.data_of["actor.rollout"].versions == k + 1
    assert graph.contract.allowed == (frozenset({"relax"}) if k else frozenset())


def test_mini_batches_and_passes() -> None:
    graph = ppo(64, 2, mini_batches=4, passes=3)
    assert (graph.contract.updates_per_step, graph.contract.passes) == (12, 3)
    often = {stage.name: (graph.firings(stage.name), stage.passes) for stage in graph.stages}
    assert {name: each for name, each in often.items() if each != (1, 1)} == {
        "train_actor": (4, 3),
        "update_actor": (4, 1),
        "train_critic": (4, 3),
        "update_critic": (4, 1),
    }


def test_whitening_needs_the_whole_batch() -> None:
    assert {ppo(whiten=w).stage_of["gae"].grain for w in (False, True)} == {Grain.SAMPLE, Grain.BATCH}
    assert ppo(whiten=True).contract.advantage_scope is Grain.BATCH


def test_a_verifier_in_place_of_the_reward_model() -> None:
    graph = ppo(reward=RewardSource.VERIFIER)
    assert sizes(graph) == (12, 14, 38)  # the prompts' rows are read instead of weights
    assert graph.stage_of["reward"].kind is StageKind.VERIFY


@pytest.mark.parametrize(
    ("options", "faults"),
    [
        ({"mini_batches": 3}, ["mini_batches: 3 mini-batches do not divide 8 samples; every update trains on"]),
        ({"mini_batches": 0, "passes": 0}, ["mini_batches: 0 mini-batches do not divide", "passes: is 0; at least 1"]),
        ({"staleness": -1}, ["staleness: is -1; at least 0"]),
    ],
)
@pytest.mark.parametrize("build", [ppo, ppo_shared])
def test_what_does_not_fit_together_is_refused(build: Any, options: dict[str, int], faults: list[str]) -> None:
    with pytest.raises(GraphError) as caught:
        build(4, 2, **options)
    found = [str(fault) for fault in caught.value.faults]
    assert [text.startswith(start) for text, start in zip(found, faults, strict=True)] == [True] * len(faults), found


def test_a_shared_trunk_has_one_training_and_one_update() -> None:
    graph = ppo_shared()
    assert sizes(graph) == (10, 13, 32)
    assert [s.name for s in graph.stages if s.kind is StageKind.TRAIN] == ["train"]
    assert graph.stage_of["train"].heads == ("logprob", "entropy", "value")
    assert {s.model for s in graph.stages} == {"actor+critic", "rm", "ref", None}
    assert staleness(graph, "gen") == 0


def test_a_shared_trunk_makes_two_passes_over_the_same_weights() -> None:
    graph = ppo_shared()
    reads = {s: [a for a in graph.reads(s) if a.data == "actor+critic.master"] for s in ("old_logp", "value")}
    assert reads == {
        "old_logp": [Access("old_logp", "actor+critic.master", Mode.READ, ("weights",), 1)],
        "value": [Access("value", "actor+critic.master", Mode.READ, ("weights", "value_head"), 1)],
    }


@pytest.mark.parametrize(
    ("trunk", "columns", "published", "head"),
    [
        (Trunk.FULL, ["weights", "value_head"], ["weights"], "value"),
        (Trunk.DETACHED, ["weights", "value_head"], ["weights"], "value_detached"),
        (Trunk.LOWER, ["lower", "actor_upper", "critic_upper"], ["lower", "actor_upper"], "value"),
    ],
)
def test_how_much_is_shared(trunk: Trunk, columns: list[str], published: list[str], head: str) -> None:
    graph = ppo_shared(trunk=trunk)
    assert [c.name for c in graph.data_of["actor+critic.master"].columns] == [*columns, "moments"]
    assert [c.name for c in graph.data_of["actor.rollout"].columns] == published
    assert graph.stage_of["train"].heads[-1] == head


def test_sharing_the_trunk_of_ppo_gives_the_same_graph_but_for_names() -> None:
    rewritten, written = ShareTrunk("actor", "critic").apply(ppo(), explore=True), ppo_shared()
    names = {"train_actor+train_critic": "train", "update_actor+update_critic": "update", "actor+critic.grads": "grads"}
    stages = tuple(replace(stage, name=names.get(stage.name, stage.name)) for stage in rewritten.stages)
    data = tuple(replace(each, name=names.get(each.name, each.name)) for each in rewritten.data)
    accesses = tuple(
        replace(a, stage=names.get(a.stage, a.stage), data=names.get(a.data, a.data)) for a in rewritten.accesses
    )
    renamed = replace(rewritten, name=written.name, stages=stages, data=data, accesses=accesses)
    assert replace(renamed, contract=written.contract).digest() == written.digest()
    assert replace(rewritten.contract, algorithm="ppo_shared") == written.contract
