"""Explanations: the parts of one that was computed, and the text of one made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path

import pytest
from tests.plan.test_worked_example import disaggregated, grpo_by_hand
from tests.plan.test_worked_example import priced as by_hand
from tests.search.tiny import found, tiny

from rpeg.search.answer import Answer, Outlook, what_if
from rpeg.search.compare import Difference
from rpeg.search.explain import Explanation, Rival, explain, reading
from rpeg.search.explain_text import answer_json, answer_text, as_json, as_text
from rpeg.search.figures import Slope
from rpeg.search.reprice import priced, step_of
from rpeg.search.sensitivity import margins, token_worths
from rpeg.search.sentence import CycleLine, cycle_lines, limit, sentence
from rpeg.search.single_changes import Effect, How, Leave

GOLDEN = Path(__file__).parents[1] / "golden"


@cache
def explained() -> Explanation:
    best = found().plans[0]
    return explain(tiny(), best.structure.graph, best.priced.plan)


def made_by_hand(firings: int = 1, tail_s: float = 14.0) -> Explanation:
    """The worked example of the design, with changes and rivals that are its own cases."""
    steps = {
        k: step_of(graph, by_hand(graph, disaggregated(graph), tail_s=tail_s))
        for k in (0, 1)
        for graph in (grpo_by_hand(k, firings if not k else 1),)
    }
    now, relaxed = steps[0], steps[1]
    changes = (
        Effect("hbm 2x", "--what-if hbm=2x", Leave.MACHINE, How.PRICED, 40.0, "the generator itself is the limit", 8),
        Effect(
            "allowing staleness 1",
            "--staleness-max 1",
            Leave.LEARNING,
            How.SEARCHED,
            relaxed.seconds,
            limit(relaxed),
            8,
        ),
        Effect("streaming in 2 parts", "", Leave.FREE, How.MOVED, 56.0, limit(now), 8),
        Effect("flops 2x", "--what-if flops=2x", Leave.MACHINE, How.PRICED, 58.5, limit(now), 8),
        Effect("host 2x", "--what-if host=2x", Leave.MACHINE, How.PRICED, now.seconds, limit(now), 8),
    )
    return Explanation(
        now.graph.digest(),
        "0" * 64,
        "alps:8",
        8,
        0,
        (),
        now.seconds,
        42.0,
        reading(now, changes),
        cycle_lines(now),
        margins(now),
        token_worths(now),
        (Slope("hbm", 68.655, -0.5), Slope("flops", 68.8, -0.29), Slope("host", 69.0, 0.0)),
        changes,
        (
            Rival(("stream{producer=gen,firings=2}",), 0, 2, 56.0, 56 / 69, limit(now)),
            Rival(("relax{stage=gen,steps=1}",), 1, 1, 69.0, 1.0, limit(relaxed)),
            Rival((), 0, 1, 73.0, 73 / 69, "generation and training take turns on all"),
        ),
        tuple(f"P4 gen: needs {n} GB too much" for n in (4, 3, 2, 1)),
    )


def test_text() -> None:
    assert as_text(made_by_hand()) + "\n" == (GOLDEN / "explain.txt").read_text()


def test_a_long_cycle_has_one_line_per_stage() -> None:
    explanation = made_by_hand()
    lines = tuple(CycleLine(name, 1, 1.0, 0.0, "device:all", 0) for _ in range(8) for name in ("a", "b"))
    text = as_text(replace(explanation, cycle=lines))
    assert "  a  x8      8 s -> device:all" in text
    assert text.count("device:all") == 2


def test_nothing_to_say() -> None:
    empty = replace(made_by_hand(), cycle=(), stages=(), tokens=(), figures=(), changes=(), rivals=(), refused=())
    assert as_text(empty).splitlines()[-1] == "single changes, each computed anew"


def test_json_is_strict() -> None:
    explanation = made_by_hand()
    endless = replace(explanation, stages=(replace(explanation.stages[0], slack_s=inf),))
    record = json.loads(json.dumps(as_json(endless), allow_nan=False))
    assert record["stages"][0]["slack_s"] is None
    assert [each["change"] for each in record["best_changes"]] == [
        "hbm 2x",
        "allowing staleness 1",
        "streaming in 2 parts",
    ]
    assert record["changes"][-1]["change"] == "host 2x"
    assert record["changes"][1]["leave"] == "learning"


def test_what_is_explained() -> None:
    best, known = found().plans[0], explained()
    step = priced(tiny(), best.structure.graph, best.priced.plan)
    assert known.step_s == pytest.approx(best.step_s)
    assert known.text.startswith(sentence(step))
    assert known.bound_s == found().bound_s
    assert sum(each.share for each in known.stages) == pytest.approx(1.0)
    assert all(not each.slack_s for each in known.stages if each.cycle_s and not each.tail_s)
    assert {each.stage for each in known.stages} == {event.stage for event in step.events.events}


def test_the_best_changes_are_the_shortest_that_help() -> None:
    known = explained()
    assert len(known.best_changes) <= 3
    assert all(each.step_s < known.step_s for each in known.best_changes)
    assert known.best_changes == known.changes[: len(known.best_changes)]
    assert {"allowing staleness 1", "hbm 2x"} <= {each.change for each in known.changes}


def test_devices_are_a_figure() -> None:
    figures = {each.figure: each for each in explained().figures}
    assert "devices (4 to 8)" in figures
    searched = next(each for each in explained().changes if each.devices == 8)
    assert figures["devices (4 to 8)"].step_s == searched.step_s


@pytest.fixture
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the changes, which are tested where they are."""
    monkeypatch.setattr("rpeg.search.explain.single_changes", lambda *_: ())


@pytest.mark.usefixtures("unchanged")
def test_rivals_are_other_structures_with_their_own_limit() -> None:
    best, known = found(1).plans[0], found(1)
    explanation = explain(tiny(1), best.structure.graph, best.priced.plan, known)
    others = [each for each in known.plans if each.structure is not best.structure]
    assert [each.step_s for each in explanation.rivals] == pytest.approx([each.step_s for each in others])
    assert all(each.ratio >= 1 and each.reason for each in explanation.rivals)


@pytest.mark.usefixtures("unchanged")
def test_a_plan_that_is_not_the_best_is_told_so() -> None:
    """What the search found is among the rivals, faster."""
    worst = min(found(1).plans, key=lambda each: -each.step_s)
    explanation = explain(tiny(1), worst.structure.graph, worst.priced.plan, found(1))
    assert explanation.rivals[0].step_s == pytest.approx(found(1).plans[0].step_s)
    assert "faster: rpeg plan finds it" in as_text(explanation)


def test_an_answer() -> None:
    before = Outlook(69.0, "generation waits: 69 s over 1 step", 8, 0, ())
    after = Outlook(42.0, "the generator itself is the limit: 42 s over 1 step", 8, 1, ("relax{stage=gen,steps=1}",))
    differing = (Difference("rewrites", "none", "relax{stage=gen,steps=1}"), Difference("gen", "a" * 40, "b" * 40))
    answer = Answer(("staleness=1",), How.SEARCHED, before, after, differing)
    assert answer_text(answer).splitlines() == [
        "what if    staleness=1 (searched again)",
        "now        69 s on 8 devices, the algorithm's own graph; samples of the newest weights",
        "           generation waits: 69 s over 1 step",
        "then       42 s on 8 devices, relax{stage=gen,steps=1}; samples up to 1 step old",
        "           the generator itself is the limit: 42 s over 1 step",
        "ratio      0.609 of the step, 0.609 of the device-seconds",
        "",
        "rewrites: none -> relax{stage=gen,steps=1}",
        "gen:",
        f"  now: {'a' * 40}",
        f"  then: {'b' * 40}",
    ]
    assert answer_json(answer)["ratio"] == pytest.approx(42 / 69)
    assert answer_json(answer)["how"] == "searched again"


def test_an_answer_where_nothing_differs() -> None:
    best = found().plans[0]
    answer = what_if(tiny(), ["host=2x"], best.structure.graph, best.priced.plan, same_plan=True)
    assert answer_text(answer).splitlines()[-1].startswith("ratio")
