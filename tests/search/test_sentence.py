"""What limits a step, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.plan.test_worked_example import SECONDS, colocated, disaggregated, grpo_by_hand, priced

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import Duration, KnownCosts
from rpeg.plan.events import Arc, Event, EventGraph
from rpeg.plan.lower import lower
from rpeg.search.explain import reading
from rpeg.search.reprice import Step, step_of
from rpeg.search.sentence import agent, cycle_lines, limit, noun, sentence
from rpeg.search.single_changes import Effect, How, Leave


def step(k: int = 0, *, tail_s: float = 0.0, in_flight: bool = False, **seconds: float) -> Step:
    graph = grpo_by_hand(k, in_flight=in_flight)
    return step_of(graph, priced(graph, disaggregated(graph), {**SECONDS, **seconds}, tail_s=tail_s))


def test_the_sentence_of_the_design() -> None:
    """Generation waits for weights that wait for training; with a step of staleness it is the generator."""
    relaxed = step(1)
    effect = Effect(
        "allowing staleness 1", "--staleness-max 1", Leave.LEARNING, How.SEARCHED, relaxed.seconds, limit(relaxed), 8
    )
    assert reading(step(), (effect,)) == (
        "generation waits for weights that wait for training: 69 s over 1 step; "
        "allowing staleness 1 makes it 42 s, then the generator itself is the limit"
    )


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (step(1), "the generator itself is the limit: 42 s over 1 step"),
        (step(ref=18.0), "generation waits for weights that wait for training, which waits for the pass ref: 81 s"),
        (step(1, gen=25.0, ref=8.0, train=27.0), "training and the pass ref take turns on trn: 38 s over 1 step"),
        (
            step(1, tail_s=14.0),
            "the generator itself is the limit (14 s of it until the last sample is out): 42 s over 1 step",
        ),
        (
            step(1, tail_s=14.0, in_flight=True),
            "generation waits for weights that wait for training: 69 s over 2 steps, 34.5 s each",
        ),
    ],
)
def test_sentences(found: Step, text: str) -> None:
    assert sentence(found).startswith(text)


def test_on_one_group_of_devices() -> None:
    graph = grpo_by_hand()
    found = step_of(graph, priced(graph, colocated(graph)))
    assert sentence(found) == "generation and training take turns on all: 73 s over 1 step"


def test_the_last_samples_of_a_shared_group() -> None:
    """Devices that rest while the last samples are written do not limit: the way of the samples does."""
    graph = grpo_by_hand()
    found = step_of(graph, priced(graph, colocated(graph), tail_s=30.0))
    assert limit(found) == "generation waits for weights that wait for training"


def test_publishing_that_takes_long_is_named() -> None:
    assert limit(step(publish=30.0)) == "generation waits for the publishing of weights, which waits for training"


def test_devices_that_others_have_to_leave() -> None:
    """Training comes after the pass on devices of both, generation elsewhere after its weights."""
    graph = grpo_by_hand()
    plan = disaggregated(graph)
    events = priced(graph, plan, {**SECONDS, "ref": 30.0})
    arcs = tuple(
        replace(arc, reason="device:trn") if (arc.src, arc.dst) == ("ref.0", "train.0") else arc for arc in events.arcs
    )
    text = limit(step_of(graph, EventGraph(events.events, arcs)))
    assert text == ("generation waits for weights that wait for training, which waits for the pass ref to leave trn")


def test_the_way_back_is_told_where_it_is_devices() -> None:
    graph = grpo_by_hand()
    events = (Event("gen.0", "gen", 0, 5.0, ("a",)), Event("ref.0", "ref", 0, 5.0, ("b",)))
    arcs = (Arc("gen.0", "ref.0", 0, 0.0, "device:b"), Arc("ref.0", "gen.0", 1, 0.0, "room:rollouts"))
    text = limit(step_of(graph, EventGraph(events, arcs)))
    assert text == "generation waits for room that the pass ref makes, which waits for generation to leave b"


def test_weights_that_stay_until_the_last_sample_is_out() -> None:
    found = step(1, tail_s=14.0, publish=30.0)
    assert limit(found) == "generation waits for the publishing of weights, which waits for the last samples"


def test_nothing_takes_time() -> None:
    events = EventGraph((Event("gen.0", "gen", 0, 0.0, ("a",)),), (Arc("gen.0", "gen.0", 1, 0.0, "self"),))
    assert sentence(step_of(grpo_by_hand(), events)) == "nothing takes time"


def test_nothing_helps() -> None:
    assert reading(step(), ()).endswith("; nothing that was tried makes it shorter")
    same = Effect("streaming in 2 parts", "", Leave.FREE, How.MOVED, 69.0, "", 8)
    assert reading(step(), (same,)).endswith("; nothing that was tried makes it shorter")


def test_what_the_user_can_decide_comes_before_another_machine() -> None:
    machine = Effect("hbm 2x", "", Leave.MACHINE, How.PRICED, 30.0, "x", 8)
    own = Effect("streaming in 2 parts", "", Leave.FREE, How.MOVED, 56.0, limit(step()), 8)
    assert reading(step(), (machine, own)).endswith(
        "; streaming in 2 parts makes it 56 s, and generation waits for weights that wait for training still"
    )
    assert reading(step(), (machine,)).endswith("; hbm 2x makes it 30 s, then x")


def test_cycle_lines_join_the_firings_of_a_stage() -> None:
    graph = grpo_by_hand(firings=4)
    lines = cycle_lines(step_of(graph, priced(graph, disaggregated(graph))))
    assert [(line.stage, line.firings, line.seconds) for line in lines] == [
        *(("gen", 4, 40.0), ("ref", 1, 1.5), ("train", 1, 5.0), ("update", 1, 1.0), ("publish", 1, 2.0))
    ]
    assert [line.tokens for line in lines] == [0, 0, 0, 0, 1]


def test_nouns() -> None:
    graph = ppo(64)
    assert [noun(graph, name) for name in ("gen", "train_critic", "update_actor", "ref", "publish", "gae")] == [
        *("generation", "training of critic", "the update of actor", "the pass ref"),
        *("the publishing of weights", "the stage gae"),
    ]
    assert agent(graph, "gen") == "the generator"
    assert agent(graph, "train_critic") == "training of critic"
    assert noun(graph, "load:rm.weights.0") == "loading rm.weights.0"
    assert noun(graph, "reshard:actor.master>old_logp") == "moving actor.master"
    single = grpo(8, 8)
    assert [noun(single, name) for name in ("train", "update", "pull")] == [
        *("training", "the update", "the installing of weights")
    ]


def test_pushes_and_pulls_are_weights() -> None:
    """The graph with staged weights: update, push and pull lie between training and generation."""
    graph = grpo(8, 8)
    costs = KnownCosts({"gen": Duration(30.0, 40.0), "train": Duration(20.0)})
    found = step_of(graph, lower(graph, bind_local(graph), costs))
    assert limit(found) == "generation waits for weights that wait for training"
