"""Checking and applying: the contract, reasons from the rules, all of them at once, the record in the history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import pytest

from rpeg.algorithms.grpo import grpo
from rpeg.errors import Fault, TransformError
from rpeg.graph.access import Access, Mode
from rpeg.graph.contract import Kl
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Applied, Graph
from rpeg.graph.stage import Stage, StageKind
from rpeg.graph.validate import validate
from rpeg.transforms.base import EffectClass, Reason, Transform
from rpeg.transforms.drop_dead import DropDead
from rpeg.transforms.edit import with_stage
from rpeg.transforms.relax import Relax
from rpeg.transforms.stream import Stream


@dataclass(frozen=True, slots=True)
class SetFirings(Transform):
    """Fires a stage as often as one says, without any condition."""

    name: ClassVar[str] = "set_firings"
    effect: ClassVar[EffectClass] = EffectClass.NUMERIC

    stage: str
    firings: int

    @classmethod
    def candidates(cls, graph: Graph) -> Iterator[Self]:
        yield cls("gen", 2)

    def conditions(self, graph: Graph) -> Iterator[Reason]:
        return iter(())

    def rewrite(self, graph: Graph) -> Graph:
        return with_stage(graph, replace(graph.stage_of[self.stage], firings=Dim(str(self.firings))))


def test_a_rewrite_that_changes_learning_needs_the_contract() -> None:
    graph, relax = grpo(8, 2, 1), Relax("gen", 1)
    older = replace(graph, contract=replace(graph.contract, max_staleness=2))
    assert older.contract.allowed == {"relax"}
    assert relax.check(older) == []
    strict = replace(older, contract=replace(older.contract, allowed=frozenset({"in_flight", "share_trunk"})))
    text = "changes what is learned; the contract allows in_flight, share_trunk"
    assert relax.check(strict) == [Reason(("relax",), text, "add relax to the contract's allowed")]
    assert relax.check(strict, explore=True) == []
    assert relax.apply(strict, explore=True).stage_of == older.stage_of
    nothing = replace(older, contract=replace(older.contract, allowed=frozenset()))
    assert [reason.text for reason in relax.check(nothing)] == [
        "changes what is learned; the contract allows nothing of the kind"
    ]


def test_one_that_keeps_the_mathematics_does_not() -> None:
    assert Stream("gen", 2).check(grpo(8, 2)) == []


def test_a_broken_rule_is_a_reason() -> None:
    graph = grpo(8, 4)
    reasons = SetFirings("advantage", 16).check(graph)
    assert [(r.rule, r.subjects, r.text) for r in reasons] == [
        ("V8", ("advantage",), "16 firings of 2 rows split groups of 4")
    ]
    assert str(reasons[0]).startswith("V8 advantage: 16 firings of 2 rows split groups of 4; ")


def test_the_contract_the_conditions_and_the_rules_are_all_reported(allow: Callable[..., Graph]) -> None:
    graph = allow(grpo(8, 2), max_staleness=1)
    texts = [reason.text for reason in Relax("gen", 2).check(graph)]
    assert texts == [
        "changes what is learned; the contract allows nothing of the kind",
        "samples are up to 2 versions old, the contract allows 1",
    ]
    texts = [reason.text for reason in Relax("gen", 0).check(graph)]
    assert texts == [
        "changes what is learned; the contract allows nothing of the kind",
        "would read 0 steps further back",
    ]


def test_refusing_to_apply_names_the_reasons() -> None:
    with pytest.raises(TransformError) as caught:
        SetFirings("advantage", 16).apply(grpo(8, 4))
    assert caught.value.subject == "set_firings{stage=advantage,firings=16} on grpo"
    (fault,) = caught.value.faults
    assert fault == Fault("V8 advantage", "16 firings of 2 rows split groups of 4", "at most 8 firings, dividing it")


def test_what_was_applied_is_recorded() -> None:
    graph = grpo(8, 4)
    once = Stream("gen", 2).apply(graph)
    twice = Stream("gen", 4).apply(once)
    assert twice.history == (
        Applied("stream{producer=gen,firings=2}", graph.digest(), once.digest()),
        Applied("stream{producer=gen,firings=4}", once.digest(), twice.digest()),
    )
    assert graph.history == ()
    assert replace(twice, history=()).digest() == twice.digest() != once.digest()


def test_a_rewrite_may_leave_problems_that_were_there_before() -> None:
    """Two dead stages: each can be dropped although the other one still breaks V9."""
    graph = grpo(8, 4, kl=Kl.LOSS)
    dead = [Stage(f"spare{i}", StageKind.FORWARD, "ref") for i in range(2)]
    reads = [Access(stage.name, "rollouts", Mode.READ, ("tokens",)) for stage in dead]
    broken = replace(graph, stages=(*graph.stages, *dead), accesses=(*graph.accesses, *reads))
    assert [problem.subjects for problem in validate(broken)] == [("spare0",), ("spare1",)]
    better = DropDead("spare0").apply(broken)
    assert [problem.subjects for problem in validate(better)] == [("spare1",)]
    assert validate(DropDead("spare1").apply(better)) == []
    assert DropDead("spare1").apply(better).digest() == graph.digest()


def test_reasons_as_text() -> None:
    reason = Reason(("a", "b"), "are 3 and 4", "make both 3")
    assert str(reason) == "a, b: are 3 and 4; make both 3"
    assert reason.fault() == Fault("a, b", "are 3 and 4", "make both 3")
    assert str(Reason(("a",), "is wrong", rule="V1")) == "V1 a: is wrong"
