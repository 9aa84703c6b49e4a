"""Costs as measured."""

from __future__ import annotations

from rpeg.observe.measured import MeasuredCosts
from rpeg.plan.costs import Duration
from rpeg.plan.plan import Binding, Layout
from rpeg.plan.shipments import Cause, Shipment


def test_medians_of_what_was_seen() -> None:
    costs, layout = MeasuredCosts(), Layout("trn")
    for seconds in (1.0, 9.0, 2.0):
        costs.add("train", seconds)
    costs.add("load:w.0", 4.0)
    assert costs.seconds("train", Binding("train", "trn", layout)) == Duration(2.0)
    assert costs.seconds("gen", Binding("gen", "trn", layout)) == Duration(0.0)
    assert costs.transfer_s(Shipment("load:w.0", Cause.LOAD, "w", layout, layout, "train")) == 4.0
    assert costs.transfer_s(Shipment("store:w.0", Cause.STORE, "w", layout, layout, "train")) == 0.0


def test_only_the_newest_count() -> None:
    costs = MeasuredCosts()
    for seconds in [100.0] * 40 + [1.0] * 32:
        costs.add("train", seconds)
    assert costs.seconds("train", Binding("train", "trn", Layout("trn"))) == Duration(1.0)
