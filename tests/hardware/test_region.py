"""Parts of a tree as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.errors import HardwareError
from rpeg.hardware.catalog import load_system
from rpeg.hardware.region import Region

ALPS = load_system("alps:1024")  # 4 racks, 64 nodes each, 4 devices each


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rack[0].node[0].gpu[0:4]", (0, 1, 2, 3)),
        ("rack[0].node[0]", (0, 1, 2, 3)),
        ("rack[1].node[63].gpu[3]", (511,)),
        ("rack[0].node[0,2:4].gpu[1]", (1, 9, 13)),
        ("rack[0:2].node[0].gpu[0,0:2]", (0, 1, 256, 257)),
        ("rack[0].node[1:3].host", (1025, 1026)),
        (" rack[0] . node[ 1 ] . gpu[ 0 : 2 ]", (4, 5)),
    ],
)
def test_places_come_in_the_order_of_the_tree(text: str, expected: tuple[int, ...]) -> None:
    assert Region.parse(text).places(ALPS) == expected


def test_all_of_it() -> None:
    assert Region.parse("rack[*].node[*].gpu[*]").places(ALPS) == tuple(range(1024))
    assert Region.parse("rack").places(ALPS) == tuple(range(1024))
    assert Region.parse("rack[0:2].node[*].gpu[0:2]").places(ALPS)[:6] == (0, 1, 4, 5, 8, 9)
    assert Region.parse("rack.node.host").places(ALPS) == tuple(range(1024, 1024 + 256))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "'': has ''"),
        ("rack[0", "'rack[0': has 'rack[0'"),
        ("rack[a]", "'rack[a]': has [a]"),
        ("rack[0:2:3]", "'rack[0:2:3]': has [0:2:3]"),
        ("rack[-1]", "'rack[-1]': has [-1]"),
        ("rack[2:2]", "'rack[2:2]': has the empty range 2:2"),
        ("rack[]", "'rack[]': has []"),
        ("Rack", "'Rack': has 'Rack'"),
    ],
)
def test_what_is_no_region(text: str, fault: str) -> None:
    with pytest.raises(HardwareError) as caught:
        Region.parse(text)
    assert str(caught.value) == f"region: 1 fault\n  1. {fault}; write rack[0:2].node[*].gpu[0:4]"


def test_what_the_machine_has_not_is_said_all_at_once() -> None:
    with pytest.raises(HardwareError) as caught:
        Region.parse("rack[3:5].node[7,99].tpu").places(ALPS)
    assert str(caught.value) == (
        "region of alps:1024: 3 faults\n"
        "  1. rack[3:5].node[7,99].tpu: asks for rack 4 where there are 4; alps:1024 has rack[0:4]\n"
        "  2. rack[3:5].node[7,99].tpu: asks for node 99 where there are 64; alps:1024 has node[0:64]\n"
        "  3. rack[3:5].node[7,99].tpu: is no path in the tree of alps:1024; "
        "levels are rack.node.gpu, hosts rack.node.host"
    )


@pytest.mark.parametrize(
    "text", ["node[0]", "rack[0].gpu[0]", "rack[0].host", "rack.node.gpu.core", "rack.node.gpu.host"]
)
def test_levels_are_named_from_the_outermost_without_gaps(text: str) -> None:
    assert [fault.what for fault in Region.parse(text).faults(ALPS)] == ["is no path in the tree of alps:1024"]


def test_a_huge_range_costs_nothing() -> None:
    assert len(Region.parse("rack[0:999999999]").faults(ALPS)) == 1


@pytest.mark.parametrize(
    ("text", "part", "expected"),
    [
        ("rack[0:4].node.gpu", 1, ("rack[0].node.gpu", "rack[1:4].node.gpu")),
        ("rack[0].node[0:8].gpu", 2, ("rack[0].node[0:4].gpu", "rack[0].node[4:8].gpu")),
        ("rack[0].node[3].gpu[0:4]", 3, ("rack[0].node[3].gpu[0:3]", "rack[0].node[3].gpu[3]")),
        ("rack[1].node[0,2,4,6]", 1, ("rack[1].node[0]", "rack[1].node[2,4,6]")),
        ("rack", 2, ("rack[0:2]", "rack[2:4]")),
        ("rack[0:2]", 1, None),
        ("rack[0].node[0].gpu[0]", 1, None),
    ],
)
def test_cut(text: str, part: int, expected: tuple[str, str] | None) -> None:
    found = Region.parse(text).cut(ALPS, part, 4)
    assert (found and tuple(region.text for region in found)) == expected


@given(st.sets(st.integers(0, 63), min_size=2), st.integers(1, 3))
def test_the_halves_of_a_cut_make_up_the_whole(nodes: set[int], part: int) -> None:
    region = Region.parse(f"rack[2].node[{','.join(map(str, nodes))}].gpu[1:3]")
    if (halves := region.cut(ALPS, part, 4)) is not None:
        first, rest = (half.places(ALPS) for half in halves)
        assert (*first, *rest) == region.places(ALPS)
        assert len(first) * 4 == len(region.places(ALPS)) * part
        assert all(Region.parse(half.text) == half for half in halves)
