"""REINFORCE++ waits for the whole batch, ReMax answers once more."""

from __future__ import annotations

import pytest

from rpeg.algorithms.reinforce import reinforce_pp, remax
from rpeg.algorithms.reward import RewardSource
from rpeg.graph.contract import Baseline, Kl, Normalise
from rpeg.graph.data import DataKind, Lifetime, Per
from rpeg.graph.dim import ONE
from rpeg.graph.lineage import generators, staleness
from rpeg.graph.stage import Effect, Grain, StageKind
from rpeg.graph.validate import validate


def test_whitening_needs_the_whole_batch() -> None:
    graph = reinforce_pp(64, 4)
    assert graph.stage_of["advantage"].grain is graph.contract.advantage_scope is Grain.BATCH
    assert (graph.contract.baseline, graph.contract.normalise) == (Baseline.NONE, Normalise.TOKEN)
    assert [stage.grain for stage in graph.stages if stage.name != "advantage"] == [Grain.SAMPLE] * 7


def test_the_distance_is_in_the_reward_unless_told_otherwise() -> None:
    for build in (reinforce_pp, remax):
        assert build().contract.kl is Kl.REWARD
        assert {a.data for a in build().reads("advantage")} >= {"scores", "rollouts", "ref_out"}
        assert "ref" not in build(kl=Kl.NONE).stage_of
        assert "ref_out" in {a.data for a in build(kl=Kl.LOSS).reads("train")}


def test_remax_answers_every_prompt_once_more_greedily() -> None:
    graph = remax(64, 4)
    assert [stage.name for stage in generators(graph)] == ["gen", "greedy"]
    greedy = graph.stage_of["greedy"]
    assert (greedy.yields, greedy.heads, greedy.effects) == (ONE, ("greedy",), frozenset())
    assert graph.stage_of["gen"].effects == {Effect.RNG}
    assert {data.name: data.per for data in graph.data if data.name.startswith("greedy")} == {
        "greedy_rollouts": Per.GROUP,
        "greedy_scores": Per.GROUP,
    }
    assert [e.reader for e in graph.edges() if e.writer == "greedy"] == ["greedy_reward"]
    assert [e.reader for e in graph.edges() if e.writer == "greedy_reward"] == ["advantage"]
    assert graph.contract.baseline is Baseline.GREEDY


def test_remax_has_no_barrier() -> None:
    assert {stage.grain for stage in remax().stages} == {Grain.SAMPLE, Grain.GROUP}


@pytest.mark.parametrize("k", range(3))
def test_both_answers_come_from_the_same_weights(k: int) -> None:
    graph = remax(64, 1, k)
    assert [staleness(graph, name) for name in ("gen", "greedy")] == [k, k]
    reads = {a.stage: (a.delay, a.bound, a.refresh) for a in graph.readers("actor.rollout")}
    assert reads["gen"] == reads["greedy"]
    lifetime = Lifetime.SAVED if k else Lifetime.STEP
    assert {d.lifetime for d in graph.data if d.kind is DataKind.STREAM and "rollouts" in d.name} == {lifetime}


def test_what_nobody_trains_on_needs_no_record_of_its_log_probabilities() -> None:
    graph = remax(64, 1, 2)
    assert "logp" not in {column.name for column in graph.data_of["greedy_rollouts"].columns}
    assert validate(graph) == []


def test_one_reward_model_judges_both_answers() -> None:
    graph = remax(64, reward=RewardSource.MODEL)
    judges = [stage for stage in graph.stages if stage.model == "rm"]
    assert [(stage.name, stage.kind) for stage in judges] == [
        ("reward", StageKind.FORWARD),
        ("greedy_reward", StageKind.FORWARD),
    ]
    assert [model.name for model in graph.models].count("rm") == 1


def test_sizes() -> None:
    sizes = [(len(g.stages), len(g.data), len(g.accesses)) for g in (reinforce_pp(), remax())]
    assert sizes == [(8, 11, 24), (10, 13, 31)]
