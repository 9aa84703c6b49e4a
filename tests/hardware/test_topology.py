"""Places in a tree, and the links between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.hardware.catalog import load_system
from rpeg.hardware.region import Region
from rpeg.hardware.topology import Link, Sharing

ALPS = load_system("alps")
LAST = ALPS.num_devices + ALPS.num_hosts - 1


def test_places_follow_the_tree() -> None:
    """24 cabinets of 112 nodes of 4: device 448 is the first of the second cabinet."""
    assert (ALPS.num_devices, ALPS.num_hosts) == (10752, 2688)
    assert [ALPS.place_name(place) for place in (0, 3, 4, 448, 10751)] == [
        *("rack[0].node[0].gpu[0]", "rack[0].node[0].gpu[3]", "rack[0].node[1].gpu[0]"),
        *("rack[1].node[0].gpu[0]", "rack[23].node[111].gpu[3]"),
    ]


def test_hosts_come_after_the_devices() -> None:
    assert [ALPS.place_name(ALPS.host_of(place)) for place in (0, 7, 448)] == [
        *("rack[0].node[0].host", "rack[0].node[1].host", "rack[1].node[0].host")
    ]
    assert [ALPS.is_host(place) for place in (0, 10751, 10752, LAST)] == [False, False, True, True]
    assert ALPS.host_of(10752) == 10752


@given(st.integers(0, LAST))
def test_the_name_of_a_place_is_the_region_of_it_alone(place: int) -> None:
    assert Region.parse(ALPS.place_name(place)).places(ALPS) == (place,)


@pytest.mark.parametrize(
    ("a", "b", "link"),
    [
        (0, 3, "nvlink"),
        (3, 4, "slingshot"),
        (0, 448, "dragonfly"),
        (0, 10752, "c2c"),
        (4, 10752, "slingshot"),
        (10752, 10753, "slingshot"),
        (10752, 10752 + 112, "dragonfly"),
    ],
)
def test_the_outermost_level_that_parts_two_places_limits_them(a: int, b: int, link: str) -> None:
    assert [found.name for found in (ALPS.link_between(a, b), ALPS.link_between(b, a)) if found] == [link, link]


def test_nothing_is_crossed_to_stay() -> None:
    assert ALPS.link_between(5, 5) is None


def test_memory_of_devices_and_hosts() -> None:
    """A host has the shares of its four devices."""
    assert (ALPS.memory_bytes_of(0), ALPS.memory_bytes_of(10752)) == (96e9, 480e9)


@pytest.mark.parametrize(
    ("sharing", "count", "expected"),
    [
        (Sharing.SWITCHED, 8, 450e9),
        (Sharing.PAIRS, 4, 150e9),
        (Sharing.PAIRS, 1, 450e9),
        (Sharing.RING, 4, 225e9),
        (Sharing.RING, 2, 450e9),
    ],
)
def test_bandwidth_between_two(sharing: Sharing, count: int, expected: float) -> None:
    assert Link("nvlink", 450e9, 0.0, sharing).pair_bytes_per_s(count) == expected
