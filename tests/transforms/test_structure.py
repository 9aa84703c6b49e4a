"""Streaming, firing, normalisation, dead and equal stages, copies, bodies, unfolding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from rpeg.algorithms.catalog import ALGORITHMS
from rpeg.algorithms.dapo import dapo
from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.algorithms.reinforce import reinforce_pp
from rpeg.graph.access import Access, Mode
from rpeg.graph.contract import Kl, Normalise
from rpeg.graph.data import Data, DataKind, Per
from rpeg.graph.graph import Graph
from rpeg.graph.lineage import staleness
from rpeg.graph.stage import Effect, Grain, Stage, StageKind
from rpeg.graph.validate import validate
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import Duration, KnownCosts
from rpeg.plan.events import cycle_ratio
from rpeg.plan.lower import lower
from rpeg.plan.plan import Plan, Slot
from rpeg.plan.rules import check_plan
from rpeg.transforms.drop_dead import DropDead
from rpeg.transforms.merge_equal import MergeEqual
from rpeg.transforms.registry import parse
from rpeg.transforms.replicate import dependent
from rpeg.transforms.unfold import Unfold

Refusals = Callable[[Graph, str], list[tuple[str, tuple[str, ...], str]]]


def rewritten(graph: Graph, *texts: str) -> Graph:
    for text in texts:
        graph = parse(text).apply(graph, explore=True)
    return graph


def firings(graph: Graph) -> dict[str, int]:
    return {stage.name: int(graph.firings(stage.name)) for stage in graph.stages}


# stream


def test_the_whole_row_is_streamed_and_updates_are_not() -> None:
    graph = rewritten(grpo(8, 2, kl=Kl.LOSS), "stream{producer=gen,firings=4}")
    assert firings(graph) == {
        **dict.fromkeys(("gen", "reward", "advantage", "ref", "train"), 4),
        **dict.fromkeys(("update", "push", "pull"), 1),
    }
    assert rewritten(graph, "stream{producer=gen,firings=1}").digest() == grpo(8, 2, kl=Kl.LOSS).digest()


def test_a_kl_controller_is_an_update_too() -> None:
    graph = rewritten(ppo(8), "stream{producer=gen,firings=8}")
    assert {name for name, count in firings(graph).items() if count == 1} == {
        *("kl_control", "update_actor", "update_critic", "publish")
    }


def test_mini_batches_are_streamed_in_multiples(refusals: Refusals) -> None:
    graph = grpo(8, 2, updates_per_step=4)
    assert refusals(graph, "stream{producer=gen,firings=2}") == [("", ("train",), "would fire 2 times for 4 updates")]
    assert firings(rewritten(graph, "stream{producer=gen,firings=8}"))["update"] == 4


def test_what_stream_refuses(refusals: Refusals) -> None:
    graph = grpo(8, 4)
    assert refusals(graph, "stream{producer=gen,firings=3}") == [
        *(
            ("V3", (name,), "3 firings do not divide the batch of 32 rows")
            for name in ("gen", "reward", "advantage", "train")
        ),
        ("V8", ("advantage",), "3 firings of 32/3 rows split groups of 4"),
    ]
    assert refusals(graph, "stream{producer=gen,firings=16}") == [
        ("V8", ("advantage",), "16 firings of 2 rows split groups of 4")
    ]
    assert refusals(graph, "stream{producer=gen,firings=0}") == [("", ("gen",), "would fire 0 times")]
    for name in ("update", "nobody"):
        assert refusals(graph, f"stream{{producer={name},firings=2}}") == [
            ("", (name,), "makes no rows that anything works on")
        ]
    assert refusals(graph, "stream{producer=gen,firings=2,until=[push]}") == [
        ("", ("push",), "does not work on the rows of gen")
    ]


def test_a_barrier_before_the_update_is_not_streamed_through(refusals: Refusals) -> None:
    assert refusals(reinforce_pp(8), "stream{producer=gen,firings=2}") == [
        ("V8", ("advantage",), "needs the whole batch")
    ]
    graph = rewritten(reinforce_pp(8), "stream{producer=gen,firings=2,until=[advantage]}")
    assert {name for name, count in firings(graph).items() if count == 2} == {"gen", "reward", "ref"}


def test_a_second_sweep_needs_all_of_the_data(refusals: Refusals) -> None:
    text = "sweeps over the data of a step 2 times, and the second sweep needs all of it"
    assert refusals(ppo(8, passes=2), "stream{producer=gen,firings=2}") == [
        ("", ("train_actor",), text),
        ("", ("train_critic",), text),
    ]
    graph = rewritten(ppo(8, passes=2), "stream{producer=gen,firings=2,until=[train_actor,train_critic]}")
    assert firings(graph)["gae"] == 2
    assert firings(graph)["train_actor"] == 1


# fire


def test_one_stage_fires_more_often() -> None:
    graph = rewritten(grpo(8, 2, kl=Kl.LOSS), "fire{stage=ref,rows=4}")
    assert {name: count for name, count in firings(graph).items() if count != 1} == {"ref": 4}


def test_what_fire_refuses(refusals: Refusals) -> None:
    graph = grpo(8, 2)
    assert refusals(graph, "fire{stage=update,rows=4}") == [("", ("update",), "works on no rows of samples")]
    assert refusals(graph, "fire{stage=nobody,rows=4}") == [("", ("nobody",), "works on no rows of samples")]
    assert refusals(graph, "fire{stage=train,rows=3}") == [("", ("train",), "3 rows do not divide the batch of 16")]
    assert refusals(graph, "fire{stage=train,rows=0}") == [("", ("train",), "0 rows do not divide the batch of 16")]
    assert refusals(graph, "fire{stage=advantage,rows=1}") == [
        ("V8", ("advantage",), "16 firings of 1 rows split groups of 2")
    ]
    assert refusals(grpo(8, 2, updates_per_step=4), "fire{stage=train,rows=8}") == [
        ("", ("train",), "would fire 2 times for 4 updates")
    ]
    assert refusals(dapo(8), "fire{stage=train,rows=8}") == [
        ("V8", ("train",), "needs the whole batch but fires 8 times")
    ]


# defer_normalise


def test_deferring_the_division_lifts_the_barrier(refusals: Refusals) -> None:
    stream = "stream{producer=gen,firings=4}"
    assert refusals(dapo(8), stream) == [("V8", ("train",), "needs the whole batch")]
    graph = rewritten(dapo(8), "defer_normalise{train=train,update=update}")
    assert graph.stage_of["train"].grain is Grain.SAMPLE
    assert [column.name for column in graph.data_of["grads"].columns] == ["grads", "num_tokens"]
    assert firings(rewritten(graph, stream))["train"] == 4


def test_what_defer_normalise_refuses(refusals: Refusals) -> None:
    text = "defer_normalise{{train={},update={}}}"
    assert refusals(dapo(8), text.format("gen", "update")) == [("", ("gen",), "is no gradient pass")]
    assert refusals(dapo(8), text.format("train", "push")) == [
        ("", ("push", "train"), "is no update by these gradients")
    ]
    assert refusals(grpo(8, 2, normalise=Normalise.SAMPLE), text.format("train", "update")) == [
        ("", ("train",), "is of sample grain: its gradients are divided at the update already"),
        ("", ("train",), "the loss is divided by sample, which is no count of the whole step"),
    ]


# drop_dead


def test_a_reference_that_no_loss_uses_is_dead() -> None:
    with_reference = grpo(8, 2, kl=Kl.LOSS)
    assert list(DropDead.candidates(with_reference)) == []
    without_loss = replace(with_reference, contract=replace(with_reference.contract, kl=Kl.NONE))
    assert list(DropDead.candidates(without_loss)) == [DropDead("ref")]
    assert DropDead("ref").apply(without_loss).digest() == grpo(8, 2).digest()


def test_what_drop_dead_refuses(refusals: Refusals) -> None:
    graph = grpo(8, 2, kl=Kl.LOSS, evaluate_every_steps=2)
    found = {name: [text for _, _, text in refusals(graph, f"drop_dead{{stage={name}}}")] for name in graph.stage_of}
    assert found == {
        "gen": ["its results are read by ref, reward, train"],
        "reward": ["acts on what is outside of the graph: host_io", "its results are read by advantage"],
        "advantage": ["its results are read by train"],
        "ref": ["its results are read by train"],
        "train": ["its results are read by update"],
        "update": [
            "writes the state actor.master, actor.moments, which outlives the step",
            "is of kind update, whose work outlives the step",
            "its results are read by push, train",
        ],
        "push": ["writes the state actor.staged, which outlives the step", "its results are read by pull"],
        "pull": ["writes the state actor.rollout, which outlives the step", "its results are read by eval, gen"],
        "eval": ["is of kind evaluate, whose work outlives the step"],
    }
    assert refusals(graph, "drop_dead{stage=nobody}") == [("", ("nobody",), "is no stage")]


# merge_equal


def twice(graph: Graph, name: str) -> Graph:
    """The graph with a second stage that does the same into data of its own, read by the train as well."""
    stage, (write,) = graph.stage_of[name], graph.writes(name)
    data = graph.data_of[write.data]
    other = replace(data, name=f"{data.name}2", columns=tuple(replace(c, name=f"{c.name}2") for c in data.columns))
    return replace(
        graph,
        data=(*graph.data, other),
        stages=(*graph.stages, replace(stage, name=f"{name}2")),
        accesses=(
            *graph.accesses,
            *(replace(read, stage=f"{name}2") for read in graph.reads(name)),
            Access(f"{name}2", other.name, Mode.WRITE),
            Access("train", other.name, Mode.READ, (other.columns[0].name,)),
        ),
    )


def test_equal_stages_are_merged_and_columns_follow_by_place() -> None:
    graph = grpo(8, 2, kl=Kl.LOSS)
    doubled = twice(graph, "ref")
    assert validate(doubled) == []
    assert list(MergeEqual.candidates(doubled)) == [MergeEqual("ref", "ref2")]
    assert rewritten(doubled, "merge_equal{a=ref,b=ref2}").digest() == graph.digest()


def test_what_merge_equal_refuses(refusals: Refusals) -> None:
    graph = grpo(8, 2, kl=Kl.LOSS)
    text = "merge_equal{a=ref,b=ref2}"
    assert refusals(graph, text) == [("", ("ref2",), "is no stage")]
    assert refusals(graph, "merge_equal{a=ref,b=ref}") == [("", ("ref",), "is one stage already")]
    doubled = twice(graph, "ref")
    other = replace(doubled.stage_of["ref2"], heads=("entropy",), grain=Grain.GROUP)
    unlike = replace(doubled, stages=tuple(other if s.name == "ref2" else s for s in doubled.stages))
    assert [text for _, _, text in refusals(unlike, text)] == [
        "different heads: ('logprob',) and ('entropy',)",
        "different grain: sample and group",
    ]
    assert refusals(rewritten(doubled, "fire{stage=ref2,rows=8}"), text) == [("", ("ref", "ref2"), "1 and 2 firings")]
    late = tuple(replace(a, delay=1) if (a.stage, a.data) == ("ref2", "rollouts") else a for a in doubled.accesses)
    assert refusals(replace(doubled, accesses=late), text) == [
        ("", ("ref", "ref2"), "they differ in what they read of rollouts, rollouts@-1")
    ]
    wide = replace(doubled.data_of["ref_out2"], per=Per.GROUP)
    assert refusals(replace(doubled, data=tuple(wide if d.name == wide.name else d for d in doubled.data)), text) == [
        ("", ("ref", "ref2"), "they write data of different form")
    ]


def test_effects_and_states_are_not_merged(refusals: Refusals) -> None:
    doubled = twice(grpo(8, 2), "reward")
    assert refusals(doubled, "merge_equal{a=reward,b=reward2}") == [
        ("", ("reward",), "has the effect host_io"),
        ("", ("reward2",), "has the effect host_io"),
    ]
    reasons = refusals(ppo(8), "merge_equal{a=update_actor,b=update_critic}")
    assert ("", ("update_actor",), "writes the state actor.master") in reasons


def test_data_with_several_writers_is_not_merged(refusals: Refusals) -> None:
    graph = twice(grpo(8, 2, kl=Kl.LOSS), "ref")
    one = tuple(replace(a, data="ref_out") if (a.stage, a.data) == ("ref2", "ref_out2") else a for a in graph.accesses)
    reasons = refusals(replace(graph, accesses=one), "merge_equal{a=ref,b=ref2}")
    assert ("", ("ref", "ref2"), "ref_out has several writers") in reasons


# replicate


def test_which_stages_may_have_copies() -> None:
    graph = ppo(8, whiten=True)
    texts = {name: [reason.text for reason in dependent(graph, name)] for name in graph.stage_of}
    assert {name for name, found in texts.items() if not found} == {"gen", "old_logp", "value", "reward", "ref"}
    assert texts["gae"] == [
        "is of kind advantage, which makes one result of all its rows",
        "needs the whole batch",
    ]
    assert [reason.text for reason in dependent(graph, "nobody")] == ["is no stage"]


# expand


def test_a_generator_is_a_prefill_and_a_loop_of_decodes() -> None:
    graph = rewritten(grpo(8, 2, 1), "expand{stage=gen,implementation=prefill_decode,trips=1024}")
    body = graph.stage_of["gen"].body
    assert body is not None
    assert (body.index, str(body.trips)) == ("token", "1024")
    assert [(s.name, s.kind, str(s.firings)) for s in body.graph.stages] == [
        ("prefill", StageKind.FORWARD, "1 / 1024"),
        ("decode", StageKind.GENERATE, "1"),
    ]
    assert {d.name: d.kind for d in body.graph.data} == {
        **dict.fromkeys(("prompts", "actor.rollout"), DataKind.EXTERNAL),
        **{"rollouts": DataKind.STREAM, "kv": DataKind.STATE},
    }
    assert staleness(graph, "gen") == 1


def test_a_train_is_forward_and_backward() -> None:
    graph = rewritten(grpo(8, 2), "expand{stage=train,implementation=forward_backward,trips=8}")
    body = graph.stage_of["train"].body
    assert body is not None
    assert [(s.name, s.kind, s.heads) for s in body.graph.stages] == [
        ("forward", StageKind.FORWARD, ("logprob", "entropy")),
        ("backward", StageKind.TRAIN, ()),
    ]
    assert {(e.writer, e.data, e.reader) for e in body.graph.edges()} == {("forward", "kept", "backward")}


def test_a_pipeline_keeps_as_many_micro_batches_as_parts_follow() -> None:
    graph = rewritten(grpo(8, 2), "expand{stage=train,implementation=one_f_one_b,trips=8,parts=3}")
    body = graph.stage_of["train"].body
    assert body is not None
    assert (body.index, str(body.trips)) == ("pipeline", "8")
    assert {d.name: d.versions for d in body.graph.data if d.name.startswith("kept")} == {
        **{"kept.0": 3, "kept.1": 2, "kept.2": 1}
    }
    assert {(e.writer, e.reader) for e in body.graph.edges()} == {
        *(("forward.0", "forward.1"), ("forward.1", "forward.2")),
        *((f"forward.{i}", f"backward.{i}") for i in range(3)),
        *(("backward.2", "backward.1"), ("backward.1", "backward.0")),
    }


def test_what_expand_refuses(refusals: Refusals) -> None:
    text = "expand{{stage={},implementation={},trips={},parts={}}}"
    graph = grpo(8, 2)
    assert refusals(graph, text.format("nobody", "nothing", 1, 1)) == [
        ("", ("nobody",), "is no stage"),
        ("", ("nothing",), "is no implementation"),
    ]
    assert refusals(graph, text.format("gen", "one_f_one_b", 0, 1)) == [
        ("", ("gen",), "is of kind generate, one_f_one_b implements train"),
        ("", ("gen",), "would turn 0 times"),
        ("", ("gen",), "would have 1 parts"),
    ]
    assert refusals(graph, text.format("train", "forward_backward", 1, 2)) == [("", ("train",), "would have 2 parts")]
    assert refusals(ALGORITHMS["multi_turn"](8), text.format("gen", "prefill_decode", 1, 1)) == [
        ("", ("gen",), "has a body already (turn)")
    ]
    assert refusals(grpo(8, 2, max_carry=1), text.format("gen", "prefill_decode", 1, 1)) == [
        ("", ("gen",), "makes the state gen.unfinished as well")
    ]


# unfold


@pytest.mark.parametrize("k", range(5))
@pytest.mark.parametrize("n", [2, 3, 4])
def test_unfolding_keeps_staleness(k: int, n: int) -> None:
    graph = rewritten(grpo(8, 2, k, evaluate_every_steps=n), f"unfold{{n={n}}}")
    assert [staleness(graph, f"gen.{i}") for i in range(n)] == [k] * n
    assert [name for name in graph.stage_of if name.startswith("eval")] == [f"eval.{n - 1}"]
    assert str(graph.stage_of[f"eval.{n - 1}"].firings) == "1"


def test_delays_become_copies_and_periods() -> None:
    graph = rewritten(grpo(8, 2, 2), "unfold{n=2}")
    weights = {
        a.stage: (a.data, a.delay) for a in graph.accesses if a.data.startswith("actor.rollout") and not a.writes
    }
    assert weights == {"gen.0": ("actor.rollout.1", 2), "gen.1": ("actor.rollout.0", 1)}
    assert {d.name: d.versions for d in graph.data if d.name.startswith("actor.rollout")} == {
        **{"actor.rollout.0": 1, "actor.rollout.1": 2}
    }
    assert {(a.data, a.delay) for a in graph.reads("update.0") if a.data != "grads.0"} == {
        *(("actor.master.1", 1), ("actor.moments.1", 1))
    }
    assert {(a.data, a.delay) for a in graph.reads("train.1") if "master" in a.data} == {("actor.master.0", 0)}


def test_what_happens_less_often_than_the_period() -> None:
    graph = rewritten(grpo(8, 2, evaluate_every_steps=6), "unfold{n=3}")
    assert {s.name: str(s.firings) for s in graph.stages if s.kind is StageKind.EVALUATE} == {"eval.2": "1 / 2"}
    graph = rewritten(grpo(8, 2, evaluate_every_steps=2), "unfold{n=4}")
    assert {s.name: str(s.firings) for s in graph.stages if s.kind is StageKind.EVALUATE} == {
        **{"eval.1": "1", "eval.3": "1"}
    }
    assert list(Unfold.candidates(grpo(8, 2, evaluate_every_steps=6))) == [Unfold(6)]
    assert list(Unfold.candidates(grpo(8, 2, evaluate_every_steps=100))) == []
    assert list(Unfold.candidates(grpo(8, 2))) == []


def test_unfolding_twice_is_unfolding_by_the_product() -> None:
    twice_two = rewritten(grpo(8, 2, 1), "unfold{n=2}", "unfold{n=2}")
    four = rewritten(grpo(8, 2, 1), "unfold{n=4}")
    names = {f".{i}.{j}": f".{2 * j + i}" for i in range(2) for j in range(2)}

    def renamed(name: str) -> str:
        return next((name.removesuffix(old) + new for old, new in names.items() if name.endswith(old)), name)

    again = replace(
        twice_two,
        data=tuple(replace(d, name=renamed(d.name)) for d in twice_two.data),
        stages=tuple(replace(s, name=renamed(s.name)) for s in twice_two.stages),
        accesses=tuple(replace(a, stage=renamed(a.stage), data=renamed(a.data)) for a in twice_two.accesses),
    )
    assert again.digest() == four.digest()


def unfolded_plan(graph: Graph, plan: Plan, n: int, unfolded: Graph) -> Plan:
    """The same order step after step: what runs ahead is a copy further on, or of the next period."""
    placed = {
        f"{binding.stage}.{i}": replace(binding, stage=f"{binding.stage}.{i}")
        for binding in plan.bindings
        for i in range(n)
    }

    def slots(order: tuple[Slot, ...]) -> tuple[Slot, ...]:
        every = [
            Slot(f"{slot.stage}.{(i + slot.shift) % n}", slot.firing, (i + slot.shift) // n)
            for i in range(n)
            for slot in order
        ]
        return tuple(slot for slot in every if slot.stage in unfolded.stage_of)

    bindings = tuple(placed[stage] for stage in unfolded.stage_of)
    order = tuple((resource, slots(each)) for resource, each in plan.order)
    return check_plan(unfolded, replace(plan, graph=unfolded.digest(), bindings=bindings, order=order))


def period_s(graph: Graph, plan: Plan) -> Fraction:
    seconds = {"gen": 40.0, "reward": 4.0, "train": 20.0, "update": 1.0, "push": 1.0, "pull": 1.0, "eval": 10.0}
    durations = {stage.name: Duration(seconds.get(stage.name.split(".")[0], 0.0)) for stage in graph.stages}
    return cycle_ratio(lower(graph, plan, KnownCosts(durations)))[0]


@pytest.mark.parametrize("k", [0, 1, 2])
@pytest.mark.parametrize("n", [2, 3])
def test_n_steps_take_n_times_as_long(k: int, n: int) -> None:
    graph = grpo(8, 2, k)
    unfolded = rewritten(graph, f"unfold{{n={n}}}")
    plan = bind_local(graph)
    once = period_s(graph, plan)
    assert once == (67 if k == 0 else 41)
    assert period_s(unfolded, unfolded_plan(graph, plan, n, unfolded)) == n * once


def test_the_honest_average_with_an_evaluation_now_and_then() -> None:
    """67 s a step and 10 s of evaluation in every fourth: 69.5 s, not the 77 of a step that evaluates."""
    graph = grpo(8, 2, evaluate_every_steps=4)
    unfolded = rewritten(graph, "unfold{n=4}")
    plan = bind_local(graph)
    assert period_s(graph, plan) == 77
    assert period_s(unfolded, unfolded_plan(graph, plan, 4, unfolded)) / 4 == Fraction(139, 2)


def test_bodies_follow_the_names() -> None:
    graph = rewritten(ALGORITHMS["multi_turn"](8), "unfold{n=2}")
    body = graph.stage_of["gen.0"].body
    assert body is not None
    assert {d.name for d in body.graph.data if d.kind is DataKind.EXTERNAL} == {"prompts.0", "actor.rollout.1"}


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_can_be_unfolded(name: str) -> None:
    graph = ALGORITHMS[name](8)
    unfolded = rewritten(graph, "unfold{n=3}")
    assert len(unfolded.stages) == 3 * len(graph.stages)
    assert unfolded.contract == graph.contract


def test_what_unfold_refuses(refusals: Refusals) -> None:
    assert refusals(grpo(8, 2), "unfold{n=1}") == [("", ("grpo",), "would be 1 steps")]
    assert refusals(grpo(8, 2, evaluate_every_steps=4), "unfold{n=3}") == [
        ("", ("eval",), "acts in every 4th step, which does not fit into 3")
    ]


def test_a_train_with_weights_of_another_copy_is_found() -> None:
    """Rule V10 in an unfolded graph: an update makes its weights from those that its own train has read."""
    graph = rewritten(grpo(8, 2), "unfold{n=2}")
    accesses = tuple(
        replace(a, data="actor.master.1", delay=1) if (a.stage, a.data) == ("train.1", "actor.master.0") else a
        for a in graph.accesses
    )
    problems = [(p.rule, p.subjects, p.text) for p in validate(replace(graph, accesses=accesses))]
    assert problems == [
        ("V10", ("train.1", "update.1"), "reads actor.master.1 1 steps back, update.1 replaces version t-1")
    ]


def test_sizes_are_those_of_one_step() -> None:
    graph = rewritten(grpo(8, 2), "unfold{n=2}")
    assert (graph.batch_rows, graph.group_size) == (16, 2)
    assert graph.firings("train.1") == Fraction(1)
    rng = [stage.name for stage in graph.stages if Effect.RNG in stage.effects]
    assert rng == ["gen.0", "gen.1"]
    assert isinstance(graph.stage_of["gen.0"], Stage)
    assert isinstance(graph.data_of["prompts.1"], Data)


def test_a_rewrite_leaves_the_rest_alone() -> None:
    """Data that nobody reads, and a stage that reads two columns through two accesses, stay as they are."""
    graph = twice(grpo(8, 2, kl=Kl.LOSS), "ref")
    spare = Data("spare", DataKind.EXTERNAL, graph.data_of["prompts"].columns, Per.GROUP)
    apart = [
        replace(read, columns=(name,))
        for read in graph.accesses
        if (read.stage, read.data) == ("reward", "rollouts")
        for name in read.columns
    ]
    others = [access for access in graph.accesses if (access.stage, access.data) != ("reward", "rollouts")]
    graph = replace(graph, data=(*graph.data, spare), accesses=(*others, *apart))
    assert validate(graph) == []
    after = rewritten(graph, "merge_equal{a=ref,b=ref2}")
    assert "spare" in after.data_of
    assert [read for read in after.reads("reward") if read.data == "rollouts"] == apart
