"""Costs that are known."""

from __future__ import annotations

from rpeg.plan.costs import Duration, KnownCosts
from rpeg.plan.plan import Binding, Layout


def test_known_costs() -> None:
    costs = KnownCosts({"gen": Duration(26.0, 14.0)})
    assert costs.seconds("gen", Binding("gen", "roll", Layout("roll"))) == Duration(26.0, 14.0)
    assert costs.seconds("train", Binding("train", "trn", Layout("trn"))) == Duration(0.0, 0.0)
