"""Values from the sampler: what the graph loses and gains, who reads what, and where it is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rpeg.algorithms.ppo import Trunk, ppo, ppo_shared
from rpeg.graph.contract import Kl
from rpeg.graph.data import Column, Data, DataKind, Lifetime, Per
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import staleness
from rpeg.graph.stage import StageKind
from rpeg.graph.validate import validate
from rpeg.transforms.registry import parse

Refusals = Callable[[Graph, str], list[tuple[str, tuple[str, ...], str]]]
VALUE, LOGPROB = "use_recorded_value{stage=value}", "use_recorded_logprob{stage=old_logp}"


def rewritten(graph: Graph, *texts: str) -> Graph:
    for text in texts:
        graph = parse(text).apply(graph, explore=True)
    return graph


def changed(graph: Graph, at: tuple[str, str], **fields: object) -> Graph:
    accesses = (replace(a, **fields) if (a.stage, a.data) == at else a for a in graph.accesses)
    return replace(graph, accesses=tuple(accesses))


def reads(graph: Graph, data: str) -> dict[str, tuple[str, ...]]:
    return {read.stage: read.columns for read in graph.readers(data)}


def columns(graph: Graph, data: str) -> list[str]:
    return [column.name for column in graph.data_of[data].columns]


def test_the_sampler_makes_the_values_and_the_advantages_read_them() -> None:
    graph = rewritten(ppo_shared(8), VALUE)
    assert "value" not in graph.stage_of
    assert "values" not in graph.data_of
    assert graph.stage_of["gen"].heads == ("value",)
    assert columns(graph, "rollouts") == ["tokens", "mask", "logp", "version", "finished", "value"]
    assert reads(graph, "rollouts") == {
        "old_logp": ("tokens", "mask"),
        "reward": ("tokens", "mask"),
        "ref": ("tokens", "mask"),
        "gae": ("mask", "logp", "value"),
        "train": ("tokens", "mask", "logp", "version", "finished"),
    }
    assert graph.contract == ppo_shared(8).contract


@pytest.mark.parametrize(
    ("trunk", "published"),
    [
        (Trunk.FULL, ("weights", "value_head")),
        (Trunk.DETACHED, ("weights", "value_head")),
        (Trunk.LOWER, ("lower", "actor_upper", "critic_upper")),
    ],
)
def test_the_head_is_published_with_the_policy_and_nobody_else_reads_it(
    trunk: Trunk, published: tuple[str, ...]
) -> None:
    graph = rewritten(ppo_shared(8, trunk=trunk, evaluate_every_steps=2), VALUE)
    assert columns(graph, "actor.rollout") == list(published)
    assert reads(graph, "actor+critic.master")["publish"] == published
    policy = tuple(name for name in published if name not in ("value_head", "critic_upper"))
    assert reads(graph, "actor.rollout") == {"gen": (), "eval": policy}


def test_no_pass_is_left_where_both_are_recorded() -> None:
    graph = rewritten(ppo_shared(8, kl=Kl.NONE), VALUE, LOGPROB)
    passes = [stage.name for stage in graph.stages if stage.kind is StageKind.FORWARD]
    assert passes == ["reward"]
    assert graph.digest() == rewritten(ppo_shared(8, kl=Kl.NONE), LOGPROB, VALUE).digest()


def test_staged_weights_bring_the_head_along() -> None:
    graph = rewritten(ppo_shared(8), "split_push{data=actor.rollout}", VALUE)
    assert columns(graph, "actor+critic.staged") == columns(graph, "actor.rollout") == ["weights", "value_head"]
    assert reads(graph, "actor+critic.staged") == {"pull": ()}
    assert graph.digest() == rewritten(ppo_shared(8), VALUE, "split_push{data=actor.rollout}").digest()


def test_values_are_as_old_as_their_samples() -> None:
    graph = rewritten(ppo_shared(8, staleness=1), VALUE)
    assert staleness(graph, "gen") == 1
    assert graph.data_of["rollouts"].lifetime is Lifetime.SAVED
    assert validate(graph) == []


def test_carried_samples_carry_their_values() -> None:
    shared = ppo_shared(8)
    contract = replace(shared.contract, max_staleness=1)
    graph = rewritten(replace(shared, contract=contract), VALUE, "partial_rollout{stage=gen,budget=64,max_carry=1}")
    assert columns(graph, "gen.unfinished") == ["row", "seed", "tokens", "logp", "version", "value"]


def test_the_trunk_may_be_shared_by_a_rewrite_before() -> None:
    graph = rewritten(ppo(8), "share_trunk{actor=actor,critic=critic}", VALUE)
    assert graph.stage_of["gen"].heads == ("value",)
    assert columns(graph, "actor.rollout") == ["weights", "value_head"]


def test_what_is_refused(refusals: Refusals) -> None:
    shared = ppo_shared(8)
    none = "is no pass for values alone"
    assert refusals(shared, "use_recorded_value{stage=old_logp}") == [("", ("old_logp",), none)]
    assert refusals(shared, "use_recorded_value{stage=nobody}") == [("", ("nobody",), none)]
    fused = rewritten(shared, "fuse_forward{a=old_logp,b=value}")
    assert refusals(fused, "use_recorded_value{stage=old_logp+value}") == [("", ("old_logp+value",), none)]
    assert refusals(ppo(8), VALUE) == [("", ("value",), "reads 0 rows that critic has sampled")]


def test_late_rows_are_refused(refusals: Refusals) -> None:
    late = changed(ppo_shared(8), ("value", "rollouts"), delay=1)
    text = "reads rollouts 1 steps late, with weights that were trained since"
    assert refusals(late, VALUE) == [("", ("value",), text)]


def test_weights_that_nobody_publishes_are_refused(refusals: Refusals) -> None:
    shared = ppo_shared(8)
    average = Data("average", DataKind.STATE, (Column("weights", "float32"),), Per.RUN, "actor+critic")
    other = replace(shared, data=(*shared.data, average))
    other = changed(other, ("value", "actor+critic.master"), data="average", columns=())
    assert refusals(other, VALUE) == [("", ("value",), "runs average, which is not what is sampled from")]


def test_samples_in_parts_are_refused(refusals: Refusals) -> None:
    contract = replace(ppo_shared(8).contract, max_staleness=1)
    carried = rewritten(replace(ppo_shared(8), contract=contract), "partial_rollout{stage=gen,budget=64,max_carry=1}")
    assert refusals(carried, VALUE) == [("", ("gen",), "carries samples over, but not their values")]
    loop = rewritten(ppo_shared(8), "expand{stage=gen,implementation=prefill_decode,trips=1024}")
    assert loop.stage_of["gen"].body is not None
    assert [text for _, _, text in refusals(loop, VALUE)] == ["makes its samples in a loop (token)"]
