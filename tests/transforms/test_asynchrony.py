"""Relax, retime, in-flight weights, staged weights, partial rollouts and over-sampling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from rpeg.algorithms.catalog import ALGORITHMS
from rpeg.algorithms.critic_free import KvPolicy
from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.algorithms.reinforce import remax
from rpeg.graph.access import Access, Bound, Mode, Refresh
from rpeg.graph.contract import Kl, Logprob
from rpeg.graph.data import Data, DataKind, Lifetime, Per
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import lead, staleness
from rpeg.graph.stage import Effect, Grain, Stage, StageKind
from rpeg.graph.text import to_text
from rpeg.graph.validate import validate
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import Duration, KnownCosts
from rpeg.plan.events import cycle_ratio
from rpeg.plan.lower import lower
from rpeg.transforms.registry import parse

Allow = Callable[..., Graph]
Refusals = Callable[[Graph, str], list[tuple[str, tuple[str, ...], str]]]


def rewritten(graph: Graph, *texts: str) -> Graph:
    for text in texts:
        graph = parse(text).apply(graph, explore=True)
    return graph


def with_contract_of(graph: Graph, other: Graph) -> Graph:
    return replace(graph, contract=other.contract)


# relax


@pytest.mark.parametrize("k", range(1, 5))
@pytest.mark.parametrize("old", [Logprob.RECORDED, Logprob.RECOMPUTED])
def test_relaxing_the_synchronous_graph_gives_the_asynchronous_one(k: int, old: Logprob) -> None:
    """Delays, versions of the rollout and of the staged weights, and what a checkpoint holds: all as if built so."""
    wanted = grpo(8, 2, k, old_logprob=old)
    graph = with_contract_of(grpo(8, 2, old_logprob=old), wanted)
    assert rewritten(graph, f"relax{{stage=gen,steps={k}}}").digest() == wanted.digest()
    assert rewritten(graph, *["relax{stage=gen,steps=1}"] * k).digest() == wanted.digest()


def test_a_bounded_reader_needs_no_more_versions(allow: Allow) -> None:
    graph = allow(grpo(8, 2, in_flight=KvPolicy.KEEP), max_staleness=3)
    relaxed = rewritten(graph, "relax{stage=gen,steps=3}")
    assert relaxed.data_of["actor.rollout"].versions == 1
    assert staleness(relaxed, "gen") == 3


def test_what_relax_refuses(allow: Allow, refusals: Refusals) -> None:
    graph = allow(grpo(8, 2), max_staleness=1)
    assert refusals(graph, "relax{stage=gen,steps=2}") == [
        ("V7", ("gen",), "samples are up to 2 versions old, the contract allows 1")
    ]
    assert refusals(graph, "relax{stage=oven,steps=1}") == [("", ("oven",), "is no generator")]
    assert refusals(graph, "relax{stage=train,steps=1}") == [("", ("train",), "is no generator")]
    assert refusals(graph, "relax{stage=gen,steps=1,data=rollouts}") == [("", ("gen",), "reads no weights rollouts")]
    assert refusals(graph, "relax{stage=gen,steps=-1}") == [("", ("gen",), "would read -1 steps further back")]


def test_stale_samples_need_what_the_sampler_recorded(allow: Allow, refusals: Refusals) -> None:
    graph = allow(grpo(8, 2), max_staleness=1)
    tokens = tuple(
        replace(a, columns=("tokens", "mask")) if (a.stage, a.data) == ("train", "rollouts") else a
        for a in graph.accesses
    )
    assert [reason[:2] for reason in refusals(replace(graph, accesses=tokens), "relax{stage=gen,steps=1}")] == [
        ("V11", ("rollouts",)),
        ("V11", ("rollouts",)),
    ]


def test_two_generators_are_relaxed_one_by_one(allow: Allow) -> None:
    graph = rewritten(allow(remax(8), max_staleness=2), "relax{stage=gen,steps=2}", "relax{stage=greedy,steps=1}")
    reads = {a.stage: a.delay for a in graph.readers("actor.rollout")}
    assert reads == {"gen": 3, "greedy": 2}
    assert graph.data_of["actor.rollout"].versions == 3
    assert {graph.data_of[name].lifetime for name in ("rollouts", "greedy_rollouts")} == {Lifetime.SAVED}


# retime


def period_s(graph: Graph) -> Fraction:
    seconds = {"gen": 40.0, "ref": 6.0, "reward": 4.0, "train": 20.0, "update": 1.0, "push": 1.0, "pull": 1.0}
    costs = KnownCosts({stage: Duration(each) for stage, each in seconds.items()})
    return cycle_ratio(lower(graph, bind_local(graph), costs))[0]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_retiming_the_generator_trades_versions_of_weights_for_batches(k: int) -> None:
    graph = grpo(8, 8, k, kl=Kl.LOSS)
    moved = rewritten(graph, f"retime{{stage=gen,r=-{k}}}")
    assert moved.data_of["actor.rollout"].versions == 1
    assert {a.delay for a in moved.readers("rollouts")} == {k}
    assert (staleness(graph, "gen"), staleness(moved, "gen")) == (k, k)
    assert (lead(graph, "gen"), lead(moved, "gen")) == (k, 0)
    assert period_s(graph) == period_s(moved) == 41  # gen and pull share a slot
    assert moved.data_of["rollouts"].lifetime is Lifetime.SAVED
    back = rewritten(moved, f"retime{{stage=gen,r={k}}}")
    assert back.digest() == graph.digest()


def test_rows_of_a_data_set_stay_with_their_samples() -> None:
    """The verifier of step t looks at the samples of the step before, so it needs the answers of that step."""
    moved = rewritten(grpo(8, 2, 1), "retime{stage=gen,r=-1}")
    assert {(a.stage, a.delay) for a in moved.readers("prompts")} == {("gen", 0), ("reward", 1)}


def test_retiming_a_synchronous_step_moves_where_it_begins() -> None:
    graph = grpo(8, 2)
    moved = rewritten(graph, "retime{stage=gen,r=-1}")
    assert (staleness(moved, "gen"), validate(moved)) == (0, [])
    assert [a.delay for a in moved.readers("actor.rollout")] == [0]
    assert moved.data_of["rollouts"].lifetime is Lifetime.SAVED, "a batch now waits from one step to the next"
    assert rewritten(moved, "retime{stage=gen,r=1}").digest() == graph.digest()


def test_a_bounded_queue_grows_with_the_delay() -> None:
    graph = rewritten(grpo(8, 2, 1, replay=2), "retime{stage=gen,r=-1}")
    assert graph.data_of["rollouts"].versions == grpo(8, 2, 1, replay=2).data_of["rollouts"].versions + 1


def test_frozen_weights_and_own_states_do_not_move() -> None:
    graph = grpo(8, 2, 2, kl=Kl.LOSS, max_carry=1)
    moved = rewritten(graph, "retime{stage=gen,r=-1}")
    assert [a.delay for a in moved.readers("gen.unfinished")] == [1]
    moved = rewritten(moved, "retime{stage=ref,r=-1}")
    assert [a.delay for a in moved.readers("ref.weights")] == [0]
    assert {a.stage: a.delay for a in moved.readers("ref_out")} == {"train": 1}


def test_what_retime_refuses(refusals: Refusals) -> None:
    graph = grpo(8, 2, 1)
    assert refusals(graph, "retime{stage=gen,r=1}") == [
        ("", ("rollouts", "reward"), "would be read -1 steps back instead of 0"),
        ("", ("rollouts", "train"), "would be read -1 steps back instead of 0"),
    ]
    assert refusals(graph, "retime{stage=gen,r=-3}") == [
        ("", ("actor.rollout", "gen"), "would be read -1 steps back instead of 2")
    ]
    assert refusals(graph, "retime{stage=oven,r=1}") == [("", ("oven",), "is no stage")]
    assert refusals(graph, "retime{stage=gen,r=0}") == [("", ("gen",), "has nothing to move by 0 steps")]
    assert refusals(graph, "retime{stage=update,r=1}") == [
        ("", ("actor.master", "push"), "would be read -1 steps back instead of 0")
    ]
    assert [reason[0] for reason in refusals(ppo(8), "retime{stage=update_critic,r=1}")] == ["V10"]


def test_retime_does_not_tear_an_access_in_two(refusals: Refusals) -> None:
    """Two verifiers write one column each and a reader takes both at once: only one of them cannot move."""
    graph = grpo(8, 2)
    data = graph.data_of["scores"]
    both = replace(data, columns=(*data.columns, replace(data.columns[0], name="length")))
    judge = replace(graph.stage_of["reward"], name="judge")
    graph = replace(
        graph,
        data=tuple(both if each.name == "scores" else each for each in graph.data),
        stages=(*graph.stages, judge),
        accesses=(
            *(replace(a, columns=("reward",)) if a.data == "scores" and a.writes else a for a in graph.accesses),
            Access("judge", "rollouts", Mode.READ, ("tokens",)),
            Access("judge", "scores", Mode.WRITE, ("length",)),
        ),
    )
    assert validate(graph) == []
    reasons = refusals(graph, "retime{stage=judge,r=-1}")
    assert ("", ("advantage", "scores"), "reads what judge and reward write through one access") in reasons


# split_push


def test_splitting_a_rendezvous() -> None:
    graph = ppo(8)
    split = rewritten(graph, "split_push{data=actor.rollout,versions=2}")
    assert [stage.name for stage in split.stages][-2:] == ["publish", "pull"]
    assert split.stage_of["pull"].kind is StageKind.PULL
    assert split.reads("pull") == [Access("pull", "actor.staged", Mode.READ)]
    assert split.writes("pull") == [Access("pull", "actor.rollout", Mode.WRITE)]
    assert [a.data for a in split.writes("publish")] == ["actor.staged"]
    staged, rollout = split.data_of["actor.staged"], graph.data_of["actor.rollout"]
    assert staged == replace(rollout, name="actor.staged", versions=2)
    assert staleness(split, "gen") == 0


def test_push_and_pull_of_the_builder_are_the_split_rendezvous() -> None:
    split = grpo(8, 2)
    published = tuple(
        replace(a, data="actor.rollout") if (a.stage, a.data) == ("push", "actor.staged") else a
        for a in split.accesses
        if a.stage != "pull"
    )
    rendezvous = replace(
        split,
        data=tuple(data for data in split.data if data.name != "actor.staged"),
        stages=tuple(stage for stage in split.stages if stage.name != "pull"),
        accesses=published,
    )
    assert validate(rendezvous) == []
    assert rewritten(rendezvous, "split_push{data=actor.rollout}").digest() == split.digest()


def test_new_names_are_free() -> None:
    graph = ppo(8)
    taken = Data("pull", DataKind.EXTERNAL, graph.data_of["prompts"].columns, Per.GROUP)
    graph = replace(graph, data=(*graph.data, taken), accesses=(*graph.accesses, Access("gae", "pull", Mode.READ)))
    assert "pull_" in rewritten(graph, "split_push{data=actor.rollout}").stage_of


def test_what_split_push_refuses(refusals: Refusals) -> None:
    none = "is no state that one PUSH stage publishes"
    for graph, name in ((ppo(8), "actor.master"), (ppo(8), "prompts"), (ppo(8), "x"), (grpo(8, 2), "actor.rollout")):
        assert refusals(graph, f"split_push{{data={name}}}") == [("", (name,), none)]
    assert refusals(grpo(8, 2), "split_push{data=actor.staged}") == [
        ("", ("actor.staged",), "is staged already: pull takes it from here")
    ]
    assert refusals(ppo(8), "split_push{data=actor.rollout,versions=0}") == [
        ("", ("actor.rollout",), "would be staged in 0 versions")
    ]


# in_flight


@pytest.mark.parametrize("k", range(4))
@pytest.mark.parametrize("kv", list(KvPolicy))
def test_in_flight_weights_are_those_of_the_algorithms(k: int, kv: KvPolicy) -> None:
    text = f"in_flight{{stage=gen,kv={kv.removeprefix('kv_')}}}"
    assert rewritten(grpo(8, 2, k), text).digest() == grpo(8, 2, k, in_flight=kv).digest()


def test_versions_that_another_reader_needs_are_kept(allow: Allow) -> None:
    graph = rewritten(allow(remax(8), max_staleness=1), "relax{stage=gen,steps=1}", "relax{stage=greedy,steps=1}")
    graph = rewritten(graph, "in_flight{stage=gen,kv=keep}")
    assert graph.data_of["actor.rollout"].versions == 2
    read = next(a for a in graph.reads("gen") if a.data == "actor.rollout")
    assert (read.bound, read.refresh, read.delay) == (Bound.AT_LEAST, Refresh.TOKEN, 2)
    assert graph.stage_of["gen"].heads == ("kv_keep",)


def test_what_in_flight_refuses(refusals: Refusals) -> None:
    assert refusals(grpo(8, 2), "in_flight{stage=train,kv=keep}") == [("", ("train",), "is no generator")]
    assert refusals(grpo(8, 2, in_flight=KvPolicy.KEEP), "in_flight{stage=gen,kv=recompute}") == [
        ("", ("gen",), "switches its weights within a sample already")
    ]
    graph = grpo(8, 2)
    columns = tuple(c for c in graph.data_of["rollouts"].columns if c.name != "version")
    bare = replace(graph.data_of["rollouts"], columns=columns)
    graph = replace(
        graph,
        data=tuple(bare if d.name == "rollouts" else d for d in graph.data),
        accesses=tuple(
            replace(a, columns=("tokens", "mask")) if a.stage == "reward" and a.data == "rollouts" else a
            for a in graph.accesses
        ),
    )
    assert refusals(graph, "in_flight{stage=gen,kv=keep}") == [
        ("V11", ("rollouts",), "samples are stale but gen does not record version")
    ]


# partial_rollout


def test_partial_rollouts_are_those_of_the_algorithms() -> None:
    for k in (0, 2):
        wanted = grpo(8, 2, k, max_carry=2, budget_tokens=100)
        graph = with_contract_of(grpo(8, 2, k), wanted)
        assert rewritten(graph, "partial_rollout{stage=gen,budget=100,max_carry=2}").digest() == wanted.digest()


def test_what_partial_rollout_refuses(allow: Allow, refusals: Refusals) -> None:
    graph = allow(grpo(8, 2), max_staleness=1)
    text = "partial_rollout{{stage={},budget={},max_carry={}}}"
    assert refusals(graph, text.format("gen", 64, 2)) == [
        ("V7", ("gen",), "samples are up to 2 versions old, the contract allows 1")
    ]
    assert refusals(graph, text.format("train", 64, 1)) == [("", ("train",), "is no generator")]
    assert refusals(graph, text.format("gen", 0, 0)) == [
        ("", ("gen",), "budget would be 0"),
        ("", ("gen",), "max_carry would be 0"),
    ]
    assert refusals(grpo(8, 2, max_carry=1), text.format("gen", 64, 1)) == [
        ("", ("gen",), "carries samples over already"),
        ("", ("gen",), "there is a token budget already"),
    ]
    assert refusals(ALGORITHMS["multi_turn"](8), text.format("gen", 64, 1)) == [
        ("", ("gen",), "makes its samples in a loop (turn), which cannot be cut")
    ]
    greedy = refusals(allow(remax(8), max_staleness=1), text.format("greedy", 64, 1))
    assert greedy == [("", ("greedy",), "has no seed, logp of its samples")] or greedy == [
        ("", ("greedy",), "has no logp of its samples")
    ]


# over_sample


@pytest.mark.parametrize(("stop", "grain"), [("drop_groups", Grain.GROUP), ("fewer_samples", Grain.SAMPLE)])
def test_over_sampling(stop: str, grain: Grain) -> None:
    graph = rewritten(grpo(8, 2, 1), f"over_sample{{stage=gen,factor=3/2,stop={stop}}}")
    assert str(graph.stage_of["gen"].yields) == "G * 3 / 2"
    first = graph.stage_of["gen.first"]
    assert (first.kind, first.grain, str(first.yields)) == (StageKind.FILTER, grain, "2 / 3")
    assert first.effects == {Effect.UNORDERED}
    assert [stage.name for stage in graph.stages][:3] == ["gen", "gen.first", "reward"]
    assert [(a.data, a.stage) for a in graph.accesses if a.data == "gen.drafts"] == [
        ("gen.drafts", "gen"),
        ("gen.drafts", "gen.first"),
    ]
    assert graph.data_of["gen.drafts"].lifetime is Lifetime.SAVED
    assert graph.data_of["rollouts"].lifetime is Lifetime.STEP
    assert staleness(graph, "gen") == 1
    assert validate(graph) == []


def test_what_over_sample_refuses(refusals: Refusals) -> None:
    text = "over_sample{{stage={},factor={},stop=drop_groups}}"
    assert refusals(grpo(8, 2), text.format("train", 2)) == [("", ("train",), "is no generator")]
    assert refusals(grpo(8, 2), text.format("gen", "4/3")) == [("", ("gen",), "4/3 times 8 prompts are 32/3")]
    assert refusals(grpo(8, 2), text.format("gen", 1)) == [("", ("gen",), "1 times 8 prompts are 8")]
    once = rewritten(grpo(8, 2), text.format("gen", 2))
    assert refusals(once, text.format("gen", 2)) == [("", ("gen", "gen.first"), "its samples are filtered already")]
    assert refusals(ALGORITHMS["dapo"](8), text.format("gen", 2)) == [
        ("", ("gen",), "makes its samples in a loop (round)"),
        ("", ("gen",), "writes 2 streams of samples"),
    ]


def test_rewrites_of_one_generator_go_together(allow: Allow) -> None:
    graph = rewritten(
        allow(grpo(8, 2), max_staleness=3),
        "over_sample{stage=gen,factor=2,stop=drop_groups}",
        "relax{stage=gen,steps=1}",
        "in_flight{stage=gen,kv=recompute}",
        "partial_rollout{stage=gen,budget=512,max_carry=2}",
        "stream{producer=gen,firings=4}",
    )
    assert validate(graph) == []
    assert staleness(graph, "gen") == 3
    assert "gen.first  filter" in to_text(graph)
    stages = [stage for stage in graph.stages if isinstance(stage, Stage) and str(stage.firings) == "4"]
    assert [stage.name for stage in stages] == ["gen", "gen.first", "reward", "advantage", "train"]
