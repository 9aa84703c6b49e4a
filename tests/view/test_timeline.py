"""The bars of the timeline."""

from __future__ import annotations

from rpeg.observe.trace import Span
from rpeg.view.timeline import last_steps, timeline


def span(step: int, start_s: float, stage: str = "train", resource: str = "gpu:0", event: str = "e") -> Span:
    return Span(event, stage, step, step, (resource,), start_s, start_s + 0.5, 8, 100, step - 1)


def test_the_last_three_steps_begin_at_zero() -> None:
    shown = timeline([span(step, float(step)) for step in range(1, 8)], [])
    assert shown is not None
    assert shown.steps == (5, 6, 7)
    assert [(row["kind"], row["step"], row["start"], row["end"]) for row in shown.rows] == [
        ("measured", 5, 0.0, 0.5),
        ("measured", 6, 1.0, 1.5),
        ("measured", 7, 2.0, 2.5),
    ]
    assert (shown.has_prediction, shown.num_hidden) == (False, 0)


def test_prediction_of_the_same_steps_is_preferred_and_comes_first() -> None:
    measured = [span(step, float(step)) for step in range(1, 5)]
    predicted = [span(step, step * 0.75, stage="update") for step in range(1, 9)]
    shown = timeline(measured, predicted)
    assert shown is not None
    assert [row["step"] for row in shown.rows if row["kind"] == "predicted"] == [2, 3, 4]
    assert shown.rows[0]["kind"] == "predicted"
    assert shown.rows[0]["start"] == 0.0
    assert shown.stages == ("train", "update")


def test_prediction_of_other_steps_is_better_than_none() -> None:
    shown = timeline([span(9, 9.0)], [span(step, float(step)) for step in (1, 2, 3, 4)])
    assert shown is not None
    assert [row["step"] for row in shown.rows if row["kind"] == "predicted"] == [2, 3, 4]


def test_too_many_spans_show_fewer_steps() -> None:
    spans = [span(step, float(step), event=str(i)) for step in (1, 2, 3) for i in range(1500)]
    assert {each.step for each in last_steps(spans)} == {2, 3}
    assert len(last_steps([span(1, 0.0)] * 9000)) == 4000


def test_too_many_resources_are_counted() -> None:
    shown = timeline([span(1, 0.0, resource=f"gpu:{i:03}") for i in range(60)], [])
    assert shown is not None
    assert (shown.num_resources, shown.num_hidden, len(shown.rows)) == (48, 12, 48)


def test_nothing_measured_is_no_timeline() -> None:
    assert timeline([], [span(1, 0.0)]) is None
