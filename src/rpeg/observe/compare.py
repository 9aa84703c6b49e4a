"""Predicted beside measured: the same event graph played with measured medians, laid onto the end of the run."""

from __future__ import annotations

from collections.abc import Sequence

from rpeg.observe.trace import Span
from rpeg.plan.events import EventGraph
from rpeg.plan.simulate import simulate

__all__ = ["predicted_spans"]


def predicted_spans(events: EventGraph, measured: Sequence[Span], num_steps: int = 3) -> list[Span]:
    """Return what the priced ``events`` predict for the last ``num_steps`` steps that were measured.

    The prediction is shifted so that its first event of these steps starts when the measured one did; from there on the
    two may drift apart, and how far is what the picture shows. Empty when fewer than ``num_steps`` steps were measured.
    """
    last = max((span.step for span in measured), default=0)
    first = last - num_steps + 1
    shown = [span for span in measured if span.step >= first]
    if first < 1 or not shown:
        return []
    steady = num_steps + 4  # steps before: the pipeline fills
    played = [f for f in simulate(events, steady) if f.step >= steady - num_steps]
    offset_s = min(span.start_s for span in shown) - min(f.start_s for f in played)
    ahead = first - (steady - num_steps)
    spans = [
        (events.event_of[f.event], f.step + ahead, f.start_s + offset_s, f.end_s + offset_s)
        for f in played
        if f.step + ahead <= last
    ]
    return [Span(e.id, e.stage, e.firing, step, e.resources, start, end) for e, step, start, end in spans]
