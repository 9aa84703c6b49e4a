"""Structures: PPO's ninety, what has to be allowed, and what is refused."""

from collections import Counter

import pytest

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.errors import PlanError
from rpeg.search.structures import structures


def test_ppo_has_ninety() -> None:
    found = structures(ppo(64), max_staleness=2, allow=["share_trunk"])
    assert len(found) == 90
    assert Counter(each.staleness for each in found) == {0: 30, 1: 30, 2: 30}
    assert Counter(each.firings for each in found) == dict.fromkeys((1, 2, 4, 8, 16, 32), 15)
    assert len({each.form for each in found}) == 5
    assert found[0].rewrites == ()


def test_without_leave_the_learning_stays_as_it_is() -> None:
    assert {each.staleness for each in structures(grpo(32, 8))} == {0}
    assert {each.form for each in structures(ppo(64))} == {each.form for each in structures(ppo(64), 2)}


@pytest.mark.parametrize(
    ("staleness", "allow", "text"),
    [
        (0, ["stream"], "is no transformation that changes learning"),
        (0, ["share_trunks"], "is no transformation that changes learning"),
        (1, [], "samples of grpo are 2 steps old already"),
    ],
)
def test_refusals(staleness: int, allow: list[str], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        structures(grpo(32, 8, 2), staleness, allow)
