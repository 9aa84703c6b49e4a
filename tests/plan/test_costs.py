"""Costs that are known."""

from __future__ import annotations

from rpeg.plan.costs import Duration, KnownCosts, KnownSizes
from rpeg.plan.plan import Binding, Layout
from rpeg.plan.shipments import Cause, Shipment


def test_known_costs() -> None:
    costs = KnownCosts({"gen": Duration(26.0, 14.0)})
    assert costs.seconds("gen", Binding("gen", "roll", Layout("roll"))) == Duration(26.0, 14.0)
    assert costs.seconds("train", Binding("train", "trn", Layout("trn"))) == Duration(0.0, 0.0)


def test_known_transfers_and_sizes() -> None:
    shipment = Shipment("load:w.0", Cause.LOAD, "w", Layout("trn"), Layout("trn"), "train")
    assert KnownCosts({}, {"load:w.0": 3.0}).transfer_s(shipment) == 3.0
    assert KnownCosts({}).transfer_s(shipment) == 0.0
    sizes = KnownSizes({"w": 10}, {"train": 7})
    assert [sizes.held_bytes(name, Layout("trn")) for name in ("w", "x")] == [10, 0]
    assert [sizes.working_bytes(name, Binding(name, "trn", Layout("trn"))) for name in ("train", "gen")] == [7, 0]
