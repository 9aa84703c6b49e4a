"""Ranks follow nodes whatever order a launcher hands devices out in."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.errors import HardwareError
from rpeg.hardware.allocation import NodeDevice, allocated, seats
from rpeg.hardware.catalog import load_system
from rpeg.hardware.racks import Racks, numbered, read_racks_csv
from rpeg.hardware.region import Region
from rpeg.hardware.topology import Level


def devices(*names: str) -> list[NodeDevice]:
    return [NodeDevice(name[:-1], int(name[-1])) for name in names]


def test_a_group_of_eight_stays_in_its_node() -> None:
    """The launcher gave a0, b0 to b7, a1 to a7; the first eight of these would sit on two nodes."""
    given = devices("a0", *(f"b{i}" for i in range(8)), *(f"a{i}" for i in range(1, 8)))
    found = seats(load_system("dgx-h100:16"), given)
    assert found[:8] == tuple(devices(*(f"a{i}" for i in range(8))))
    assert found[8:] == tuple(devices(*(f"b{i}" for i in range(8))))


def test_the_order_given_does_not_matter() -> None:
    given = [NodeDevice(f"n{node}", i) for node in (10, 2, 1) for i in range(4)]
    expected = [("n1", 0), ("n1", 1), ("n1", 2), ("n1", 3), ("n2", 0)]
    for seed in range(5):
        shuffled = random.Random(seed).sample(given, len(given))
        found = seats(load_system("alps:12"), shuffled)
        assert [(device.node, device.index) for device in found[:5]] == expected
        assert found[-1] == NodeDevice("n10", 3)


def test_devices_that_do_not_fill_the_system() -> None:
    with pytest.raises(HardwareError) as caught:
        seats(load_system("alps:8"), devices("a0", "a1", "b0", "b1", "b2", "b3", "c0"))
    assert str(caught.value) == (
        "allocation: 3 faults\n"
        "  1. a: has 2 devices, a node of alps:8 has 4; allocate whole nodes\n"
        "  2. c: has 1 devices, a node of alps:8 has 4; allocate whole nodes\n"
        "  3. allocation: 3 nodes were given, alps:8 has 2; "
        "name the part of the system that was allocated, such as alps:256"
    )


ALPS = load_system("alps")
CABINETS = numbered(112)


def test_side_by_side() -> None:
    """64 nodes of one cabinet are what alps:256 is."""
    found = allocated(ALPS, "nid[0112-0175]", CABINETS)
    expected = load_system("alps:256")
    assert (found.system.name, found.system.levels) == (expected.name, expected.levels)
    assert [found.system.path(place) for place in (0, 3, 4, 255, 256)] == [
        *((0, 0, 0), (0, 0, 3), (0, 1, 0), (0, 63, 3), (0, 0))
    ]
    assert found.text == "alps:256, 64 nodes: 64 in 1"


def test_the_same_devices_scattered_have_other_links() -> None:
    """40 nodes at the end of cabinet 0 and 24 in cabinet 3: rank 159 and 160 are neighbours, and in two cabinets."""
    near = allocated(ALPS, "nid[0000-0063]", CABINETS).system
    far = allocated(ALPS, "nid[0072-0111,0336-0359]", CABINETS)
    links = [[system.link_between(a, a + 4) for a in (0, 156, 252 - 4)] for system in (near, far.system)]
    assert [[link.name for link in found if link] for found in links] == [
        ["slingshot", "slingshot", "slingshot"],
        ["slingshot", "dragonfly", "slingshot"],
    ]
    assert far.text == "alps:256, 64 nodes: 40 in 0, 24 in 3"
    assert far.system.place_name(160) == near.place_name(160) == "rack[0].node[40].gpu[0]"
    assert far.system.path(160) == (1, 0, 0)
    hosts = far.system.host_of(0), far.system.host_of(160)
    assert [link and link.name for link in (far.system.link_between(*hosts), far.system.link_between(0, hosts[0]))] == [
        *("dragonfly", "c2c")
    ]
    assert far.system != near


def test_places_are_those_of_seats() -> None:
    nodes = ("nid10", "nid9", "nid200")
    found = allocated(ALPS, nodes, CABINETS)
    given = [NodeDevice(node, index) for index in range(4) for node in nodes]
    assert tuple(seat.node for seat in seats(found.system, given)[::4]) == found.nodes == ("nid9", "nid10", "nid200")


def test_a_number_of_nodes_that_makes_no_even_part() -> None:
    """127 nodes are no equal number per cabinet: regions count them in one."""
    found = allocated(ALPS, "nid[0-126]", CABINETS).system
    assert (found.name, [level.count for level in found.levels]) == ("alps:508", [1, 127, 4])
    assert len(Region.parse("rack[0].node[126].gpu").places(found)) == 4
    assert (found.path(447), found.path(448)) == ((0, 111, 3), (1, 0, 0))


def test_a_machine_without_racks_needs_no_map() -> None:
    found = allocated(load_system("h20"), ["b", "a"])
    assert (found.nodes, found.system.name, found.text) == (("a", "b"), "h20:16", "h20:16, 2 nodes")
    assert [found.system.path(place) for place in (0, 8, 17)] == [(0, 0), (1, 0), (1,)]


def test_levels_that_the_map_does_not_know_are_one() -> None:
    """A tree of row, rack, node and device, and a map of racks only; then one with more than the tree has."""
    machine = replace(ALPS, levels=(Level("row", 3, ALPS.levels[0].link), *ALPS.levels))
    only_racks = allocated(machine, "nid[0-1,112]", CABINETS).system
    assert [only_racks.path(4 * node)[:3] for node in range(3)] == [(0, 0, 0), (0, 0, 1), (0, 1, 0)]
    rows = read_racks_csv("site,row,rack,node\ns,a,1,n0\ns,a,2,n1\ns,b,1,n2", "racks.csv")
    assert [allocated(machine, "n[0-2]", rows).system.path(4 * node)[:3] for node in range(3)] == [
        *((0, 0, 0), (0, 1, 0), (1, 0, 0))
    ]
    assert [allocated(ALPS, "n[0-2]", rows).system.path(4 * node)[:2] for node in range(3)] == [(0, 0), (1, 0), (2, 0)]


@pytest.mark.parametrize(
    ("machine", "nodes", "racks", "faults"),
    [
        ("alps", ["n1", "n2", "n1"], CABINETS, ["n1: is there 2 times; name every node once"]),
        ("alps", [], CABINETS, ["nodes: are missing; name at least one"]),
        ("alps:8", "n[1-3]", CABINETS, ["nodes: 3 were given, alps:8 has 2; name a larger system"]),
        (
            "alps",
            "login[1-2],x",
            numbered(112, first=1000),
            [
                "login1 (and 2 more): is in no known rack: the map of racks does not have it; "
                "give a topology.conf, a .toml or a .csv, or number the nodes"
            ],
        ),
        (
            "alps",
            "n1",
            None,
            ["n1: is in no known rack: alps has racks; give a topology.conf, a .toml or a .csv, or number the nodes"],
        ),
        (
            "alps",
            "n[0-112]",
            numbered(113),
            ["rack 0: has 113 nodes, a rack of alps has 112; look at the map of racks"],
        ),
        (
            "alps",
            "n[0-24]",
            numbered(1),
            ["alps: has 24 racks, the nodes are in 25; name the whole machine, or look at the map of racks"],
        ),
        ("alps:256", "n[111-112]", CABINETS, ["alps:256: has 1 racks, the nodes are in 2; name the whole machine"]),
    ],
)
def test_faults_of_an_allocation(machine: str, nodes: str | list[str], racks: Racks | None, faults: list[str]) -> None:
    with pytest.raises(HardwareError) as caught:
        allocated(load_system(machine), nodes, racks)
    assert len(caught.value.faults) == len(faults)
    assert all(str(fault).startswith(text) for fault, text in zip(caught.value.faults, faults, strict=True))


@given(st.sets(st.integers(0, 2687), min_size=1, max_size=40))
def test_an_allocation_keeps_who_is_near_whom(numbers: set[int]) -> None:
    """Two devices of an allocation have the link between them that they have in the whole machine."""
    ordered = sorted(numbers)
    found = allocated(ALPS, [f"nid{number}" for number in reversed(ordered)], CABINETS).system
    for i, a in enumerate(ordered):
        for j, b in enumerate(ordered):
            assert found.link_between(4 * i, 4 * j + 1) == ALPS.link_between(4 * a, 4 * b + 1)
