"""What every algorithm without a critic can be asked for, on GRPO: references, reward model, old and late samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rpeg.algorithms.critic_free import KvPolicy
from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo, ppo_shared
from rpeg.algorithms.reference import Reference
from rpeg.algorithms.reward import RewardSource
from rpeg.graph.access import Access, Bound, Mode, Refresh
from rpeg.graph.contract import Kl, Logprob
from rpeg.graph.data import DataKind, Lifetime, ModelRef, SymbolKind
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import lead, staleness
from rpeg.graph.stage import StageKind


def weights(graph: Graph, stage: str) -> list[tuple[str, int]]:
    """Data of a model that a stage reads, with the delay."""
    return [(a.data, a.delay) for a in graph.reads(stage) if graph.data_of[a.data].kind is not DataKind.STREAM]


def test_a_frozen_reference_is_outside() -> None:
    graph = grpo(64, kl=Kl.LOSS)
    assert weights(graph, "ref") == [("ref.weights", 0)]
    assert graph.data_of["ref.weights"].kind is DataKind.EXTERNAL
    assert graph.writers("ref.weights") == []
    assert ModelRef("ref", frozen=True) in graph.models


def test_a_moving_average_is_a_state_that_follows_the_policy() -> None:
    graph = grpo(64, kl=Kl.LOSS, reference=Reference.EMA)
    assert graph.writers("ref.weights") == [Access("ema", "ref.weights", Mode.UPDATE, merge="ema(0.99)")]
    assert graph.reads("ema") == [Access("ema", "actor.master", Mode.READ)]
    assert weights(graph, "ref") == [("ref.weights", 1)]
    average = graph.data_of["ref.weights"]
    assert (average.kind, average.lifetime, average.model) == (DataKind.STATE, Lifetime.SAVED, "ref")
    assert graph.stage_of["ema"].kind is StageKind.UPDATE
    assert staleness(graph, "gen") == 0


def test_with_its_adapter_off_the_policy_is_its_own_reference() -> None:
    graph = grpo(
        64, kl=Kl.LOSS, reference=Reference.ADAPTER_OFF, old_logprob=Logprob.RECOMPUTED, evaluate_every_steps=5
    )
    assert weights(graph, "ref") == [("actor.base", 0)]
    assert weights(graph, "old") == [("actor.base", 0), ("actor.master", 1)]
    assert weights(graph, "train") == [("actor.base", 0), ("actor.master", 1)]
    assert weights(graph, "gen") == [("prompts", 0), ("actor.rollout", 1), ("actor.base", 0)]
    assert weights(graph, "eval") == [("held_out", 0), ("actor.rollout", 0), ("actor.base", 0)]
    assert [model.name for model in graph.models] == ["actor"]
    assert graph.stage_of["ref"].model == "actor"
    assert [access.data for access in graph.reads("push")] == ["actor.master"]  # the base never travels


def test_a_value_head_may_stand_on_weights_with_an_adapter() -> None:
    graph = ppo_shared(64, 8, reference=Reference.ADAPTER_OFF, evaluate_every_steps=5)
    joint = "actor+critic"
    assert weights(graph, "ref") == [(f"{joint}.base", 0)]
    for name in ("old_logp", "value", "train"):
        assert sorted(weights(graph, name)) == [(f"{joint}.base", 0), (f"{joint}.master", 1)]
    for name, read in (("gen", "prompts"), ("eval", "held_out")):
        assert {data for data, _ in weights(graph, name)} == {read, "actor.rollout", f"{joint}.base"}
    assert [model.name for model in graph.models] == [joint, "rm"]


def test_a_critic_of_its_own_does_not_read_what_lies_below_an_adapter() -> None:
    graph = ppo(64, 8, reference=Reference.ADAPTER_OFF)
    assert weights(graph, "value") == [("critic.master", 1)]
    assert sorted(weights(graph, "old_logp")) == [("actor.base", 0), ("actor.master", 1)]


@pytest.mark.parametrize(("algorithm", "name"), [(grpo, "old"), (ppo, "old_logp"), (ppo_shared, "old_logp")])
def test_only_recomputed_scores_take_a_pass(algorithm: Callable[..., Graph], name: str) -> None:
    for logprob in (Logprob.RECORDED, Logprob.RECOMPUTED, Logprob.INTERPOLATED):
        graph = algorithm(64, 4, 1, old_logprob=logprob)
        assert graph.contract.behaviour_logprob is logprob
        assert (name in graph.stage_of) == (logprob is Logprob.RECOMPUTED)


def test_a_reward_model() -> None:
    graph = grpo(64, reward=RewardSource.MODEL)
    stage = graph.stage_of["reward"]
    assert (stage.kind, stage.model, stage.heads) == (StageKind.FORWARD, "rm", ("score",))
    assert weights(graph, "reward") == [("rm.weights", 0)]
    assert [access.data for access in graph.writes("reward")] == ["scores"]


@pytest.mark.parametrize(("k", "window"), [(0, 2), (0, 3), (1, 2), (2, 4)])
def test_replay_reads_the_same_queue_at_several_delays(k: int, window: int) -> None:
    graph = grpo(64, staleness=k, replay=window)
    for name in ("rollouts", "advantages"):
        assert [a.delay for a in graph.readers(name) if a.stage == "train"] == list(range(window))
    assert graph.data_of["rollouts"].versions == window + k  # with k = 0 the window itself
    assert staleness(graph, "gen") == graph.contract.max_staleness == k + window - 1
    assert lead(graph, "gen") == k  # old samples do not let the generator run ahead
    assert graph.data_of["rollouts"].lifetime is Lifetime.SAVED


@pytest.mark.parametrize(("k", "carry"), [(0, 1), (0, 3), (2, 2)])
def test_samples_that_are_carried_over_get_older(k: int, carry: int) -> None:
    graph = grpo(64, staleness=k, max_carry=carry, budget_tokens=1000)
    assert staleness(graph, "gen") == graph.contract.max_staleness == k + carry
    unfinished = graph.data_of["gen.unfinished"]
    assert (unfinished.kind, unfinished.max_carry, unfinished.lifetime) == (DataKind.STATE, carry, Lifetime.SAVED)
    assert [(a.stage, a.mode, a.delay) for a in graph.accesses if a.data == "gen.unfinished"] == [
        ("gen", Mode.READ, 1),
        ("gen", Mode.UPDATE, 0),
    ]
    longest = next(column.shape[0] for column in unfinished.columns if column.name == "tokens")
    assert longest.evaluate(graph.env) == 1000 * carry
    assert ("budget", "tokens", SymbolKind.CHOICE) in [(s.name, s.unit, s.kind) for s in graph.symbols]


@pytest.mark.parametrize("policy", KvPolicy)
def test_weights_that_change_in_flight(policy: KvPolicy) -> None:
    graph = grpo(64, staleness=2, in_flight=policy)
    read = next(access for access in graph.reads("gen") if access.data == "actor.rollout")
    assert (read.delay, read.bound, read.refresh) == (3, Bound.AT_LEAST, Refresh.TOKEN)
    assert graph.stage_of["gen"].heads == (policy.value,)
    assert {graph.data_of[f"actor.{role}"].versions for role in ("staged", "rollout")} == {1}
    assert staleness(graph, "gen") == 2


@pytest.mark.parametrize("options", [{"replay": 2}, {"max_carry": 1}, {"staleness": 1}, {"in_flight": KvPolicy.KEEP}])
def test_the_trainer_reads_who_wrote_an_old_sample(options: dict[str, Any]) -> None:
    graph = grpo(64, **options)
    columns = [access.columns for access in graph.readers("rollouts") if access.stage == "train"]
    assert set(columns) == {()}  # all of them, the log-probabilities and versions of the sampler too
    assert {"logp", "version"} <= {column.name for column in graph.data_of["rollouts"].columns}
