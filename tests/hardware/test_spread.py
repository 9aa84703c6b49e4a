"""What a group touches of a tree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.hardware.allocation import allocated
from rpeg.hardware.catalog import load_system
from rpeg.hardware.racks import numbered
from rpeg.hardware.spread import Reach, spread

ALPS = load_system("alps")


def summary(reach: Reach) -> tuple[str, int, tuple[int, ...]]:
    return (reach.level, reach.parts, reach.ranks)


def test_side_by_side_and_scattered() -> None:
    """The first 8 of 16 nodes in two racks: all in one, or 6 and 2."""
    near = allocated(ALPS, "nid[0-7,112-119]", numbered(112)).system
    far = allocated(ALPS, "nid[106-121]", numbered(112)).system
    assert [summary(each) for each in spread(range(32), near)] == [
        *(("gpu", 4, (1,) * 32), ("node", 8, (4,) * 8), ("rack", 1, (32,)))
    ]
    found = spread(range(32), far)
    assert [summary(each) for each in found] == [*(("gpu", 4, (1,) * 32), ("node", 6, (4,) * 8), ("rack", 2, (24, 8)))]
    assert [each.is_even for each in found] == [True, True, False]
    assert [each.link and each.link.name for each in found] == ["nvlink", "slingshot", "dragonfly"]


def test_one_rank_per_node() -> None:
    assert [summary(each) for each in spread(range(0, 32, 4), ALPS)] == [
        *(("gpu", 1, (1,) * 8), ("node", 8, (1,) * 8), ("rack", 1, (8,)))
    ]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [((32,), 0.0), ((16, 16), 16 * 16 / 31), ((24, 8), 24 * 8 / 31), ((11, 11, 10), 11 * 21 / 31), ((1,), 0.0)],
)
def test_bytes_of_the_busiest_uplink(ranks: tuple[int, ...], expected: float) -> None:
    assert Reach("rack", None, len(ranks), ranks).uplink_bytes(1e9) == pytest.approx(expected * 1e9)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=10))
def test_no_part_sends_more_than_its_ranks_have(ranks: list[int]) -> None:
    """And at least what an even part of all traffic would be, if there is more than one."""
    reach = Reach("rack", None, len(ranks), tuple(sorted(ranks, reverse=True)))
    assert 0 <= reach.uplink_bytes(1.0) <= max(ranks)
    assert (reach.uplink_bytes(1.0) > 0) == (len(ranks) > 1)
