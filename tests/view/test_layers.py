"""Layered drawings: rows, order and places of small graphs, and what holds for every graph."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from rpeg.view.layers import Box, Layers, Link, lay_out

GAP = 26.0


def boxes(*names: str, width: float = 60.0) -> list[Box]:
    return [Box(name, width, 30.0) for name in names]


def links(*pairs: str, loose: str = "") -> list[Link]:
    """``ab`` leads from a to b; those in ``loose`` do not say which stands above."""
    return [Link(pair, pair[0], pair[1], pair in loose.split()) for pair in pairs]


def crossings(layers: Layers) -> int:
    place = {name: i for row in layers.rows for i, name in enumerate(row)}
    steps = [step for way in layers.ways.values() for step in pairwise(way)]
    return sum(
        layers.row_of[a] == layers.row_of[c] and (place[a] - place[c]) * (place[b] - place[d]) < 0
        for i, (a, b) in enumerate(steps)
        for c, d in steps[:i]
    )


def test_rows_are_longest_paths() -> None:
    layers = lay_out(boxes(*"abcd"), links("ab", "bc", "ac", "cd"))
    assert [layers.row_of[name] for name in "abcd"] == [0, 1, 2, 3]
    assert layers.ways["ac"] == ["a", "ac@1", "c"]
    assert sorted(layers.rows[1]) == ["ac@1", "b"]


def test_what_starts_a_chain_stands_just_above_what_it_leads_to() -> None:
    layers = lay_out(boxes(*"abcx"), links("ab", "bc", "xc"))
    assert layers.row_of["x"] == 1


def test_kinds_keep_to_their_rows() -> None:
    stages = [Box(name, 60.0, 40.0, 1) for name in "ST"]
    layers = lay_out([*boxes(*"abc"), *stages], links("aS", "Sb", "bT", "Tc"))
    assert [layers.row_of[name] for name in "aSbTc"] == [0, 1, 2, 3, 4]
    alone = lay_out([*boxes(*"a"), *stages], links("Sa", "aT"))
    assert [alone.row_of[name] for name in "SaT"] == [0, 1, 2]


def test_loose_links_and_those_that_close_a_cycle_lead_around() -> None:
    layers = lay_out(boxes(*"abc"), links("ab", "bc", "ca", "cb", loose="cb"))
    assert [layers.row_of[name] for name in "abc"] == [0, 1, 2]
    assert set(layers.ways) == {"ab", "bc"}


def test_a_loose_link_that_leads_down_anyway_is_drawn_down() -> None:
    layers = lay_out(boxes(*"abc"), links("ab", "bc", "ac", loose="ac"))
    assert layers.ways["ac"] == ["a", "ac@1", "c"]


def test_crossings_that_can_be_avoided_are_avoided() -> None:
    pairs = ("as", "bt", "cu", "sz", "ty", "ux")
    layers = lay_out(boxes(*"abcutszyx"), links(*pairs))
    assert crossings(layers) == 0


def test_a_straight_chain_is_straight() -> None:
    layers = lay_out([Box("a", 80.0, 30.0), Box("b", 40.0, 30.0), Box("c", 120.0, 30.0)], links("ab", "bc"))
    assert layers.x_of == {"a": 60.0, "b": 60.0, "c": 60.0}


def test_hints_keep_the_order_of_an_earlier_drawing() -> None:
    names, pairs = boxes(*"rabc"), links("ra", "rb", "rc")
    assert lay_out(names, pairs).rows[1] == ["a", "b", "c"]
    assert lay_out(names, pairs, {"a": 300.0, "b": 200.0, "c": 100.0}).rows[1] == ["c", "b", "a"]
    assert lay_out(names, pairs, {"a": 300.0, "c": 100.0}).rows[1] == ["c", "a", "b"]


def test_nothing_to_draw() -> None:
    assert lay_out([], []) == Layers([], {}, {}, {}, {})


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=20))
def test_every_drawing_is_in_order(size: int, ends: set[tuple[int, int]]) -> None:
    names = [f"n{i}" for i in range(size)]
    arrows = [Link(f"n{a}>n{b}", f"n{a}", f"n{b}", a % 3 == 0) for a, b in sorted(ends) if a < size and b < size]
    layers = lay_out([Box(name, 40.0 + 7 * i, 30.0) for i, name in enumerate(names)], arrows)
    assert sorted(name for row in layers.rows for name in row) == sorted(layers.row_of)
    assert set(names) <= set(layers.row_of)
    for way in layers.ways.values():
        assert [layers.row_of[b] - layers.row_of[a] for a, b in pairwise(way)] == [1] * (len(way) - 1)
    for row in layers.rows:
        for left, right in pairwise(row):
            apart = layers.x_of[right] - layers.x_of[left]
            assert apart >= (layers.width_of[left] + layers.width_of[right]) / 2 + GAP - 1e-6
    assert min(layers.x_of[name] - layers.width_of[name] / 2 for name in layers.x_of) == 0
