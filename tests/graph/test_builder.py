"""What an author of an algorithm writes, and the records that come of it."""

from __future__ import annotations

from typing import Any

import pytest

from rpeg.errors import GraphError
from rpeg.graph.access import Access, Bound, Mode, Refresh
from rpeg.graph.builder import Builder
from rpeg.graph.contract import Contract
from rpeg.graph.data import Column, DataKind, Lifetime, ModelRef, Per, SymbolKind
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Graph
from rpeg.graph.handle import DataHandle
from rpeg.graph.stage import Effect, Grain, Stage, StageKind
from rpeg.graph.text import to_text

CONTRACT = Contract("tiny", Dim("B"), Dim("G"))


def tiny(*, delay: int = 1) -> Graph:
    b = Builder("tiny", CONTRACT, B=4, G=2)
    actor = b.trained_model("actor")
    rollouts = b.generate("gen", actor, actor.rollout.at(-delay), b.prompts(), ahead=False)
    b.update("update", actor, b.train("train", actor, rollouts, None))
    return b.graph()


def test_the_finished_graph() -> None:
    graph = tiny()
    assert (
        to_text(graph)
        == f"""\
tiny  batch 8 = 4 x 2  staleness 0 (<= 0)  digest {graph.digest()[:8]}
  gen     generate  actor  x1  prompts, actor.rollout@-1  -> rollouts
  train   train     actor  x1  rollouts, actor.master@-1  -> grads
  update  update    actor  x1  grads                      -> actor.master!, actor.moments!
  push    push      actor  x1  actor.master               -> actor.staged
  pull    pull      actor  x1  actor.staged               -> actor.rollout"""
    )


def test_sizes_are_constants() -> None:
    assert [(s.name, s.value, s.kind, s.unit) for s in tiny().symbols] == [
        ("B", 4, SymbolKind.CONST, "samples"),
        ("G", 2, SymbolKind.CONST, "samples"),
    ]


def test_states_of_a_trained_model() -> None:
    b = Builder("tiny", CONTRACT, B=4, G=2)
    model = b.trained_model("actor", versions=3)
    assert (model.master.name, model.rollout.name) == ("actor.master", "actor.rollout")
    assert [handle.name for handle in model.states] == ["actor.master", "actor.moments"]
    rollouts = b.generate("gen", model, model.rollout.at(-1), b.prompts(), ahead=False)
    b.update("update", model, b.train("train", model, rollouts))
    states = [(d.name, d.versions, d.lifetime) for d in b.graph().data if d.kind is DataKind.STATE]
    assert states == [
        ("actor.master", 1, Lifetime.SAVED),
        ("actor.moments", 1, Lifetime.SAVED),
        ("actor.staged", 2, Lifetime.RUN),
        ("actor.rollout", 3, Lifetime.RUN),
    ]


def test_what_each_call_declares() -> None:
    b = Builder("tiny", CONTRACT, B=4, G=2)
    actor = b.trained_model("actor")
    rollouts = b.generate("gen", actor, actor.rollout.at(-1), b.prompts(), ahead=False)
    scores = b.verify("reward", rollouts["tokens", "mask"])
    advantages = b.advantage("advantage", scores, grain=Grain.GROUP)
    ref = b.forward("ref", "ref", b.frozen_model("ref"), rollouts["tokens"])
    grads = b.train("train", actor, rollouts, advantages, None, ref, firings=2)
    b.update("update", actor, grads, firings=2)
    b.evaluate("eval", actor, 5)
    graph = b.graph()
    assert graph.models == (ModelRef("actor"), ModelRef("ref", frozen=True))
    assert [(s.name, s.kind, str(s.firings)) for s in graph.stages] == [
        ("gen", StageKind.GENERATE, "1"),
        ("reward", StageKind.VERIFY, "1"),
        ("advantage", StageKind.ADVANTAGE, "1"),
        ("ref", StageKind.FORWARD, "1"),
        ("train", StageKind.TRAIN, "2"),
        ("update", StageKind.UPDATE, "2"),
        ("push", StageKind.PUSH, "1"),
        ("pull", StageKind.PULL, "1"),
        ("eval", StageKind.EVALUATE, "1 / 5"),
    ]
    assert graph.stage_of["gen"].effects == {Effect.RNG}
    assert graph.stage_of["gen"].yields == Dim("G")
    assert graph.stage_of["advantage"].grain is Grain.GROUP
    assert graph.reads("reward") == [Access("reward", "rollouts", Mode.READ, ("tokens", "mask"))]
    assert graph.reads("ref") == [
        Access("ref", "rollouts", Mode.READ, ("tokens",)),
        Access("ref", "ref.weights", Mode.READ),
    ]
    assert [c.name for c in graph.data_of["ref_out"].columns] == ["ref_logp"]
    assert [a.data for a in graph.reads("train")] == ["rollouts", "advantages", "ref_out", "actor.master"]
    assert graph.data_of["rollouts"].lifetime is Lifetime.STEP
    assert {c.name: c.dtype for c in graph.data_of["rollouts"].columns} == {
        **{"tokens": "int64", "mask": "bool", "logp": "float32", "version": "int32"},
        "finished": "float32",
    }


def test_batches_made_ahead_are_saved() -> None:
    b = Builder("tiny", Contract("tiny", Dim("B"), Dim("G"), max_staleness=1), B=4, G=2)
    actor = b.trained_model("actor", versions=2)
    rollouts = b.generate("gen", actor, actor.rollout.at(-2), b.prompts(), ahead=True)
    b.update("update", actor, b.train("train", actor, rollouts))
    assert b.graph().data_of["rollouts"].lifetime is Lifetime.SAVED


def test_external_data() -> None:
    b = Builder("tiny", CONTRACT, B=4, G=2)
    assert b.external("tools", "text", per=Per.RUN, model=None) == DataHandle("tools")


def test_a_stage_knows_the_line_it_was_written_on() -> None:
    sources = {stage.name: stage.source for stage in tiny().stages}
    origins = {name: source.origin for name, source in sources.items() if source is not None}
    first = tiny.__code__.co_firstlineno
    assert origins["gen"] == f"test_builder.py:{first + 3}"
    assert origins["train"] == origins["update"] == f"test_builder.py:{first + 4}"
    assert origins["push"] == f"test_builder.py:{first + 2}"


def test_a_graph_that_breaks_a_rule_is_not_returned() -> None:
    with pytest.raises(
        GraphError, match="V4 gen, train, update, push, pull: gen -> train -> update -> push -> pull -> gen"
    ):
        tiny(delay=0)


def published(**options: Any) -> Graph:
    b = Builder("tiny", CONTRACT, B=4, G=2)
    actor, critic = b.published_model("actor", **options), b.learner("critic")
    rollouts = b.generate("gen", actor, actor.rollout.at(-1), b.prompts(), ahead=False)
    for model in (actor, critic):
        grads = b.train(f"train_{model.name}", model, rollouts, out=f"{model.name}.grads")
        b.update(f"update_{model.name}", model, grads)
    return b.graph()


def test_a_model_that_is_published_by_a_rendezvous() -> None:
    graph = published(weights=("trunk", "value_head"), published=("trunk",), rollout="copy")
    assert [(d.name, [c.name for c in d.columns]) for d in graph.data if d.kind is DataKind.STATE] == [
        ("actor.master", ["trunk", "value_head", "moments"]),
        ("copy", ["trunk"]),
        ("critic.master", ["weights", "moments"]),
    ]
    assert graph.reads("publish") == [Access("publish", "actor.master", Mode.READ, ("trunk",))]
    assert graph.writes("publish") == [Access("publish", "copy", Mode.WRITE)]
    assert graph.stages[-1] == Stage("publish", StageKind.PUSH, "actor")
    assert [a.columns for a in graph.reads("train_actor") if a.data == "actor.master"] == [("trunk", "value_head")]


def test_names_of_what_a_rendezvous_publishes_are_up_to_the_author_but_have_a_default() -> None:
    assert [a.data for a in published().writes("publish")] == ["actor.rollout"]


def test_a_frozen_model_is_declared_once() -> None:
    b = Builder("tiny", CONTRACT, B=4, G=2)
    assert b.frozen_model("rm") == b.frozen_model("rm") == DataHandle("rm.weights")
    assert len(b.region("turn", Dim("1")).graph.data) == 1


def test_a_region_is_not_checked_before_it_has_a_stage() -> None:
    b = Builder("turn", CONTRACT)
    b.stage(Stage("env", StageKind.ENVIRONMENT), [DataHandle("nothing")])
    region = b.region("turn", b.symbol("turns", "1", SymbolKind.CONST, "at most", 4))
    assert (region.index, region.trips, region.graph.env) == ("turn", Dim("turns"), {"turns": 4})


def test_a_stage_with_everything() -> None:
    b = Builder("tiny", CONTRACT, B=4, G=2)
    average = b.state("average", "weights", Column("steps", "int64"), model=b.model("ref"), versions=2)
    fresh = average["weights"].at(-2).newest(Refresh.REQUEST)
    b.stage(Stage("ema", StageKind.UPDATE, "ref"), [fresh], updates=[average], merge="ema(0.9)")
    graph = b.region("turn", Dim("1")).graph
    assert graph.accesses == (
        Access("ema", "average", Mode.READ, ("weights",), 2, Bound.AT_LEAST, Refresh.REQUEST),
        Access("ema", "average", Mode.UPDATE, merge="ema(0.9)"),
    )
    assert [(c.name, c.dtype) for c in graph.data[0].columns] == [("weights", "float32"), ("steps", "int64")]
    assert (graph.data[0].versions, graph.data[0].lifetime) == (2, Lifetime.SAVED)


def test_handles() -> None:
    rollouts = DataHandle("rollouts")
    assert rollouts["tokens"] == DataHandle("rollouts", ("tokens",))
    assert rollouts["tokens", "mask"].at(-2) == DataHandle("rollouts", ("tokens", "mask"), 2)
    assert rollouts.at(0) == rollouts
    with pytest.raises(AssertionError, match="rollouts cannot be read 1 steps ahead"):
        rollouts.at(1)
