"""Fusions, sharing and co-scheduling: what they make, and above all the ones that must not happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo, ppo_shared
from rpeg.graph.access import Access, Mode
from rpeg.graph.contract import Kl, Logprob
from rpeg.graph.data import Column, DataKind
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Effect, Grain, Stage, StageKind
from rpeg.graph.validate import validate
from rpeg.transforms.fuse_forward import FuseForward
from rpeg.transforms.registry import parse

Refusals = Callable[[Graph, str], list[tuple[str, tuple[str, ...], str]]]
SHARE = "share_trunk{actor=actor,critic=critic}"
FUSE = "fuse_forward{a=old_logp,b=train_actor}"


def rewritten(graph: Graph, *texts: str) -> Graph:
    for text in texts:
        graph = parse(text).apply(graph, explore=True)
    return graph


def changed(graph: Graph, stage: str, data: str, **fields: object) -> Graph:
    accesses = (replace(a, **fields) if (a.stage, a.data) == (stage, data) else a for a in graph.accesses)
    return replace(graph, accesses=tuple(accesses))


# fusions that must not happen


def test_different_weights_are_not_fused(refusals: Refusals) -> None:
    assert refusals(ppo(8), "fuse_forward{a=old_logp,b=ref}") == [
        ("", ("old_logp", "ref"), "different weights: actor.master@-1 and ref.weights")
    ]
    assert refusals(ppo(8), "fuse_forward{a=old_logp,b=value}") == [
        ("", ("old_logp", "value"), "different weights: actor.master@-1 and critic.master@-1")
    ]


def test_different_versions_of_the_weights_are_not_fused(refusals: Refusals) -> None:
    graph = ppo_shared(8)
    master = graph.data_of["actor+critic.master"]
    older = replace(graph, data=tuple(replace(d, versions=2) if d == master else d for d in graph.data))
    older = changed(older, "value", "actor+critic.master", delay=2)
    assert validate(older) == []
    assert refusals(older, "fuse_forward{a=old_logp,b=value}") == [
        ("", ("old_logp", "value"), "different weights: actor+critic.master@-1 and actor+critic.master@-2")
    ]


def test_passes_with_a_stage_between_are_not_fused(refusals: Refusals) -> None:
    assert refusals(ppo(8), "fuse_forward{a=value,b=train_critic}") == [
        ("", ("value", "train_critic"), "another stage lies between: value -> gae -> train_critic")
    ]
    assert refusals(ppo_shared(8), "fuse_forward{a=value,b=train}") == [
        ("", ("value", "train"), "another stage lies between: value -> gae -> train")
    ]
    both = rewritten(ppo_shared(8), "fuse_forward{a=old_logp,b=value}")
    assert refusals(both, "fuse_forward{a=old_logp+value,b=train}") == [
        ("", ("old_logp+value", "train"), "another stage lies between: old_logp+value -> gae -> train")
    ]


def test_several_sweeps_or_updates_keep_the_pass_for_the_old_log_probabilities(refusals: Refusals) -> None:
    text = "fuse_forward{a=old_logp,b=train_actor}"
    assert refusals(ppo(8), text) == []
    sweeps = "sweeps over the data of a step 2 times, and only the first sweep has the old weights"
    updates = "a step makes {} updates, and only the first one has the old weights"
    assert refusals(ppo(8, passes=2), text) == [
        ("", ("train_actor",), sweeps),
        ("", ("train_actor",), updates.format(2)),
    ]
    assert refusals(ppo(8, mini_batches=4), text) == [
        ("", ("old_logp", "train_actor"), "1 and 4 firings"),
        ("", ("train_actor",), updates.format(4)),
    ]


def test_different_firings_are_not_fused(refusals: Refusals) -> None:
    graph = rewritten(ppo_shared(8), "fire{stage=value,rows=4}")
    assert refusals(graph, "fuse_forward{a=old_logp,b=value}") == [("", ("old_logp", "value"), "1 and 2 firings")]


def test_different_rows_are_not_fused(refusals: Refusals) -> None:
    graph = changed(ppo_shared(8), "value", "rollouts", delay=1)
    reasons = refusals(graph, "fuse_forward{a=old_logp,b=value}")
    assert ("", ("old_logp", "value"), "different tokens: rollouts and rollouts@-1") in reasons


def test_a_pass_that_needs_the_result_of_the_other_is_not_fused(refusals: Refusals) -> None:
    graph = ppo_shared(8)
    reads = replace(graph, accesses=(*graph.accesses, Access("value", "old_out", Mode.READ)))
    assert validate(reads) == []
    for text in ("fuse_forward{a=old_logp,b=value}", "fuse_forward{a=value,b=old_logp}"):
        assert [text for _, _, text in refusals(reads, text)] == ["one reads the result of the other"]


def test_only_passes_are_fused(refusals: Refusals) -> None:
    assert refusals(ppo(8), "fuse_forward{a=train_actor,b=gae}") == [
        ("", ("train_actor",), "is a stage of kind train"),
        ("", ("gae",), "is a stage of kind advantage"),
    ]
    assert refusals(ppo(8), "fuse_forward{a=nobody,b=value}") == [("", ("nobody",), "is no stage")]
    assert refusals(ppo(8), "fuse_forward{a=value,b=value}") == [("", ("value",), "is one pass already")]


def test_a_stage_with_a_body_is_not_fused(refusals: Refusals) -> None:
    graph = rewritten(ppo_shared(8), "co_schedule{stages=[ref,reward]}")
    reasons = refusals(graph, "fuse_forward{a=ref+reward,b=value}")
    assert ("", ("ref+reward",), "is a loop itself (batch)") in reasons


def test_one_fusion_takes_the_other_away() -> None:
    shared = rewritten(ppo(8), SHARE)
    offered = {str(c) for c in FuseForward.candidates(shared) if not c.check(shared)}
    assert offered == {
        "fuse_forward{a=old_logp,b=value}",
        "fuse_forward{a=old_logp,b=train_actor+train_critic}",
    }
    for text in offered:
        after = rewritten(shared, text)
        assert not [c for c in FuseForward.candidates(after) if not c.check(after)]


# fusions


def test_the_fused_pass_has_the_heads_and_the_results_of_both() -> None:
    graph = rewritten(ppo_shared(8), "fuse_forward{a=value,b=old_logp}")
    fused = graph.stage_of["old_logp+value"]
    assert (fused.kind, fused.model, fused.heads) == (StageKind.FORWARD, "actor+critic", ("logprob", "value"))
    assert [a.data for a in graph.writes(fused.name)] == ["old_out", "values"]
    assert [(a.data, a.columns, a.delay) for a in graph.reads(fused.name)] == [
        ("rollouts", ("tokens", "mask"), 0),
        ("actor+critic.master", ("weights", "value_head"), 1),
    ]
    assert fused.source is not None
    assert fused.source.parents == ("value", "old_logp")
    assert graph.digest() == rewritten(ppo_shared(8), "fuse_forward{a=old_logp,b=value}").digest()


def test_a_train_takes_the_pass_for_the_old_log_probabilities_in() -> None:
    graph = rewritten(ppo(8), "fuse_forward{a=old_logp,b=train_actor}")
    fused = graph.stage_of["old_logp+train_actor"]
    assert (fused.kind, fused.heads) == (StageKind.TRAIN, ("logprob", "entropy"))
    assert "old_out" not in graph.data_of
    assert [a.data for a in graph.writes(fused.name)] == ["actor.grads"]


def test_what_others_read_of_it_stays() -> None:
    graph = ppo(8)
    log = Stage("log", StageKind.VERIFY, effects=frozenset({Effect.HOST_IO}))
    accesses = (*graph.accesses, Access("log", "old_out", Mode.READ))
    fused = rewritten(replace(graph, stages=(*graph.stages, log), accesses=accesses), FUSE)
    assert [a.data for a in fused.writes("old_logp+train_actor")] == ["old_out", "actor.grads"]
    assert {a.stage for a in fused.readers("old_out")} == {"log"}


# share_trunk


def test_sharing_the_trunk_of_ppo_gives_ppo_with_a_shared_trunk() -> None:
    """Up to the names of the graph and of the two joint stages, which tell what they were made of."""
    shared = rewritten(ppo(8), SHARE)
    stages = {"train_actor+train_critic": "train", "update_actor+update_critic": "update"}
    data = {"actor+critic.grads": "grads"}
    renamed = replace(
        shared,
        name="ppo_shared",
        contract=replace(shared.contract, algorithm="ppo_shared"),
        stages=tuple(replace(s, name=stages.get(s.name, s.name)) for s in shared.stages),
        data=tuple(replace(d, name=data.get(d.name, d.name)) for d in shared.data),
        accesses=tuple(
            replace(a, stage=stages.get(a.stage, a.stage), data=data.get(a.data, a.data)) for a in shared.accesses
        ),
    )
    assert renamed.digest() == ppo_shared(8).digest()


def test_fusing_and_sharing_may_come_in_either_order() -> None:
    first = rewritten(ppo(8), "fuse_forward{a=old_logp,b=train_actor}", SHARE)
    last = rewritten(ppo(8), SHARE, "fuse_forward{a=old_logp,b=train_actor+train_critic}")
    assert first.digest() == last.digest()


def test_states_of_both_kinds_are_merged(allow: Callable[..., Graph]) -> None:
    """Weights and moments in states of their own, and a push with a pull, as the other algorithms have them."""
    graph = rewritten(ppo(8), "split_push{data=actor.rollout}", SHARE)
    assert {d.name: [c.name for c in d.columns] for d in graph.data if d.kind is DataKind.STATE} == {
        "actor+critic.master": ["weights", "value_head", "moments"],
        "actor.rollout": ["weights"],
        "actor.staged": ["weights"],
        "kl.coef": ["coefficient"],
    }
    assert {d.model for d in graph.data if d.name.startswith("actor")} == {"actor+critic"}
    assert {model.name for model in graph.models} == {"actor+critic", "rm", "ref"}


def test_whole_weights_of_the_policy_have_no_value_head() -> None:
    """An access without columns means all of them, which is more after the merge than it was before."""
    graph = ppo(8)
    bare = tuple(replace(a, columns=()) if a.data.endswith(".master") else a for a in graph.accesses)
    shared = rewritten(replace(graph, accesses=bare), SHARE)
    reads = {a.stage: a.columns for a in shared.readers("actor+critic.master")}
    assert reads == {
        "publish": ("weights", "moments"),
        "old_logp": ("weights", "moments"),
        "value": (),
        "train_actor+train_critic": (),
    }


def test_what_share_trunk_refuses(refusals: Refusals) -> None:
    graph = ppo(8)
    assert refusals(graph, "share_trunk{actor=actor,critic=actor}") == [("", ("actor",), "is one model already")]
    assert refusals(graph, "share_trunk{actor=actor,critic=ref}") == [
        ("", ("ref",), "has 0 stages of kind train: none")
    ]
    assert refusals(graph, "share_trunk{actor=critic,critic=actor}") == [
        ("", ("critic",), "is not sampled from"),
        ("", ("actor", "gen"), "is sampled from"),
    ]
    assert refusals(graph, "share_trunk{actor=actor,critic=critic,value_coef=0}") == [
        ("", ("critic",), "would be trained with weight 0.0")
    ]
    assert refusals(rewritten(graph, SHARE), SHARE) == [("", ("actor",), "has 0 stages of kind train: none")]
    loop = rewritten(graph, "co_schedule{stages=[ref,value]}")
    assert refusals(loop, SHARE) == [("", ("ref+value",), "has actor, critic, ref in a loop inside")]


def test_passes_at_different_rates_are_not_joined(refusals: Refusals) -> None:
    graph = rewritten(ppo(8), "fire{stage=train_critic,rows=4}")
    assert refusals(graph, SHARE) == [
        ("", ("train_actor", "train_critic"), "1 firings x 1 passes and 2 firings x 1 passes")
    ]


def test_trains_over_different_tokens_or_one_after_the_other_are_not_joined(refusals: Refusals) -> None:
    graph = changed(ppo(8), "train_critic", "rollouts", delay=1)
    assert ("", ("train_actor", "train_critic"), "different tokens: rollouts and rollouts@-1") in refusals(graph, SHARE)
    graph = ppo(8)
    chained = replace(graph, accesses=(*graph.accesses, Access("train_critic", "actor.grads", Mode.READ)))
    assert ("", ("train_actor", "train_critic"), "train_critic comes after train_actor") in refusals(chained, SHARE)


def test_models_kept_in_unlike_data_are_not_joined(refusals: Refusals) -> None:
    graph = ppo(8)
    master = graph.data_of["critic.master"]
    wider = replace(master, columns=(*master.columns, Column("scale", "float32")))
    graph = replace(graph, data=tuple(wider if d == master else d for d in graph.data))
    assert refusals(graph, SHARE) == [
        (
            "",
            ("actor", "critic"),
            "are kept in unlike data: actor.master, actor.grads; critic.master, critic.grads",
        )
    ]


# co_schedule


def test_co_scheduled_passes_read_the_batch_once() -> None:
    graph = rewritten(ppo(8), "co_schedule{stages=[reward,ref]}")
    joint = graph.stage_of["ref+reward"]
    assert (joint.kind, joint.model, joint.heads) == (StageKind.FORWARD, None, ("logprob", "score"))
    assert sorted((a.data, a.columns) for a in graph.reads(joint.name)) == [
        ("ref.weights", ()),
        ("rm.weights", ()),
        ("rollouts", ("tokens", "mask")),
    ]
    assert joint.body is not None
    assert [stage.name for stage in joint.body.graph.stages] == ["ref", "reward"]
    assert {d.name: d.kind for d in joint.body.graph.data} == {
        **dict.fromkeys(("rollouts", "ref.weights", "rm.weights"), DataKind.EXTERNAL),
        **dict.fromkeys(("ref_out", "scores"), DataKind.STREAM),
    }
    assert {a.delay for a in joint.body.graph.accesses} == {0}


def test_co_scheduling_is_flat_and_without_order() -> None:
    texts = ("co_schedule{stages=[ref,reward]}", "co_schedule{stages=[old_logp,ref+reward]}")
    at_once = rewritten(ppo(8), "co_schedule{stages=[reward,old_logp,ref]}")
    assert rewritten(ppo(8), *texts).digest() == at_once.digest()


def test_one_model_at_one_grain_stays_one() -> None:
    graph = rewritten(ppo_shared(8), "co_schedule{stages=[old_logp,value]}")
    assert graph.stage_of["old_logp+value"].model == "actor+critic"
    assert graph.stage_of["old_logp+value"].grain is Grain.SAMPLE


def test_what_co_schedule_refuses(refusals: Refusals) -> None:
    graph = ppo(8)
    assert refusals(graph, "co_schedule{stages=[ref,gae,nobody]}") == [
        ("", ("gae",), "is no pass without gradients"),
        ("", ("nobody",), "is no pass without gradients"),
    ]
    assert refusals(graph, "co_schedule{stages=[ref]}") == [("", ("ref",), "names 1 different passes")]
    assert refusals(graph, "co_schedule{stages=[ref,ref]}") == [("", ("ref", "ref"), "names 1 different passes")]
    apart = rewritten(graph, "fire{stage=ref,rows=4}")
    assert refusals(apart, "co_schedule{stages=[ref,value]}") == [("", ("ref", "value"), "2 and 1 firings")]
    shifted = changed(graph, "ref", "rollouts", delay=1)
    reasons = refusals(shifted, "co_schedule{stages=[ref,value]}")
    assert [text for _, _, text in reasons] == [
        "different rows: rollouts@-1 and rollouts",
        "read different versions of rollouts",
    ]
    chained = replace(graph, accesses=(*graph.accesses, Access("value", "ref_out", Mode.READ)))
    assert refusals(chained, "co_schedule{stages=[ref,value]}") == [
        ("", ("ref", "value"), "value needs the result of ref")
    ]


# recorded or recomputed log-probabilities


@pytest.mark.parametrize("updates", [1, 2])
def test_recomputing_and_using_what_is_recorded_are_inverse(updates: int) -> None:
    recorded = grpo(8, 2, updates_per_step=updates)
    recomputed = grpo(8, 2, updates_per_step=updates, old_logprob=Logprob.RECOMPUTED)
    assert rewritten(recorded, "recompute_logprob{train=train}").digest() == recomputed.digest()
    assert rewritten(recomputed, "use_recorded_logprob{stage=old}").digest() == recorded.digest()


def test_whoever_read_the_recomputed_ones_reads_the_recorded_ones() -> None:
    graph = ppo(8)
    graph = replace(graph, accesses=(*graph.accesses, Access("gae", "old_out", Mode.READ)))
    after = rewritten(graph, "use_recorded_logprob{stage=old_logp}")
    assert {a.stage: a.columns for a in after.readers("rollouts")} == {
        "value": ("tokens", "mask"),
        "reward": ("tokens", "mask"),
        "ref": ("tokens", "mask"),
        "gae": ("mask", "logp"),
        "train_actor": (),
        "train_critic": ("tokens", "mask"),
    }
    assert after.contract.behaviour_logprob is Logprob.RECORDED


def test_frozen_weights_below_an_adapter_are_read_again() -> None:
    from rpeg.algorithms.critic_free import Reference

    options = {"kl": Kl.LOSS, "reference": Reference.ADAPTER_OFF}
    recomputed = rewritten(grpo(8, 2, **options), "recompute_logprob{train=train}")
    assert recomputed.digest() == grpo(8, 2, **options, old_logprob=Logprob.RECOMPUTED).digest()


def test_what_the_two_refuse(refusals: Refusals) -> None:
    recorded, recomputed = grpo(8, 2, kl=Kl.LOSS), grpo(8, 2, old_logprob=Logprob.RECOMPUTED)
    none = "is no pass for log-probabilities alone"
    assert refusals(recorded, "use_recorded_logprob{stage=train}") == [("", ("train",), none)]
    assert refusals(ppo(8), "use_recorded_logprob{stage=value}") == [("", ("value",), none)]
    assert refusals(recorded, "use_recorded_logprob{stage=ref}") == [
        ("", ("ref",), "computes those of ref, which is not the policy that is trained"),
        ("", ("ref",), "reads 0 rollouts that hold what the sampler recorded"),
    ]
    assert refusals(recorded, "recompute_logprob{train=ref}") == [("", ("ref",), "is no gradient pass")]
    assert refusals(recomputed, "recompute_logprob{train=train}") == [
        ("", ("train",), "has log-probabilities recomputed"),
        ("", ("old",), "is taken"),
        ("", ("old_out",), "is taken"),
    ]
    assert refusals(grpo(8, 2, replay=2), "recompute_logprob{train=train}") == [
        ("", ("train",), "reads 2 rollouts that hold what the sampler recorded")
    ]
