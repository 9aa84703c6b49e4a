"""What every move has in common: text, reasons, history, and that no candidate breaks anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rpeg.algorithms.dapo import dapo
from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.errors import TransformError
from rpeg.graph.contract import Logprob
from rpeg.graph.graph import Graph
from rpeg.plan.json import from_json
from rpeg.plan.lower import lower
from rpeg.plan.moves.base import Deployment
from rpeg.plan.moves.place import Place
from rpeg.plan.moves.registry import MOVES, candidates, parse, replay, undo
from rpeg.plan.rules import validate_plan
from rpeg.transforms.base import EffectClass


def after(deployment: Deployment, *texts: str) -> Deployment:
    """Apply moves one after the other."""
    for text in texts:
        deployment = replace(deployment, plan=parse(text).apply(deployment))
    return deployment


def test_the_moves_of_the_design() -> None:
    assert list(MOVES) == [
        *("place", "parallel", "colocate", "separate", "reorder", "offload", "prefetch", "reshard"),
        *("micro", "pack", "balance", "recompute", "pipeline", "replicate"),
    ]
    assert EffectClass.LEARNING not in {move.effect for move in MOVES.values()}


@pytest.mark.parametrize(
    "graph", [ppo(512), grpo(64, 8, 1, old_logprob=Logprob.RECOMPUTED), dapo()], ids=["ppo", "grpo", "dapo"]
)
def test_every_candidate_fits_or_says_why(deploy: Callable[[Graph], Deployment], graph: Graph) -> None:
    deployment = deploy(graph)
    for move in candidates(deployment):
        assert parse(str(move)) == move
        if reasons := move.check(deployment):
            assert all(reason.text and reason.subjects for reason in reasons)
            with pytest.raises(TransformError):
                move.apply(deployment)
        else:
            plan = move.apply(deployment)
            assert plan.digest() != deployment.plan.digest()
            assert from_json(plan.to_json()) == plan


def test_two_moves_deep_nothing_raises_but_refusals(together: Deployment) -> None:
    """Every seventh move, and every eleventh after it."""
    applied = 0
    for first in list(candidates(together))[::7]:
        if first.check(together):
            continue
        changed = replace(together, plan=first.apply(together))
        for second in list(candidates(changed))[::11]:
            if not second.check(changed):
                plan = second.apply(changed)
                assert validate_plan(changed.graph, plan, changed.site) == []
                lower(changed.graph, plan, changed.site.costs or pytest.fail("costs are known"))
                assert [entry.transform for entry in plan.history] == [str(first), str(second)]
                applied += 1
    assert applied > 100


def test_history_is_replayed_and_undone(apart: Deployment) -> None:
    texts = ["place{stage=ref,mesh=roll}", "micro{stage=train,rows=4}", "offload{data=ref.weights,between=[ref,ref]}"]
    end = after(apart, *texts).plan
    assert [entry.transform for entry in end.history] == texts
    assert replay(apart, end.history) == end
    assert undo(apart, end, 1) == after(apart, *texts[:2]).plan
    assert undo(apart, end, 3) == apart.plan
    with pytest.raises(TransformError, match="has 3 moves, 4 cannot be undone; choose 0 to 3"):
        undo(apart, end, 4)


def test_history_from_another_plan_is_refused(apart: Deployment, together: Deployment) -> None:
    end = after(apart, "place{stage=ref,mesh=roll}").plan
    with pytest.raises(TransformError) as caught:
        replay(together, end.history)
    assert "1. place{stage=ref,mesh=roll}: the plan before it has digest " in str(caught.value)


def test_a_refusal_has_all_the_reasons(apart: Deployment) -> None:
    with pytest.raises(TransformError) as caught:
        Place("rf", "moon").apply(apart)
    assert str(caught.value) == (
        "place{stage=rf,mesh=moon} on grpo: 2 faults\n"
        "  1. rf: is no stage; stages: gen, reward, advantage, ref, train, update, push, pull\n"
        "  2. moon: is no mesh; meshes: roll, trn, host"
    )


def test_rules_that_are_broken_before_are_no_reason(apart: Deployment) -> None:
    """A plan with a layout that cannot be does not keep its other stages from moving."""
    layout = replace(apart.plan.binding_of["update"].layout, zero=9)
    bindings = (replace(b, layout=layout) if b.stage == "update" else b for b in apart.plan.bindings)
    broken = replace(apart, plan=replace(apart.plan, bindings=tuple(bindings)))
    assert parse("micro{stage=train,rows=4}").check(broken) == []
    assert [str(reason) for reason in parse("micro{stage=train,rows=3}").check(broken)] == [
        "P3 train: micro-batches of 3 rows do not divide the 64 rows of a rank; choose 1, 2, 4, 8, 16, 32 or 64"
    ]
