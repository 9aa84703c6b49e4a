"""Groups: how the ranks of a communicator lie on the tree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.errors import HardwareError
from rpeg.hardware.catalog import load_system
from rpeg.hardware.topology import Sharing
from rpeg.perf.group import ALONE, Group, group_along, group_of, group_of_places
from rpeg.plan.plan import Mesh

ALPS = load_system("alps")


def shape(group: Group) -> list[tuple[str, int]]:
    return [(link.name, count) for link, count in group.levels]


def test_two_nodes_of_four() -> None:
    group = group_of(ALPS, 8)
    assert shape(group) == [("nvlink", 4), ("slingshot", 2)]
    assert group.size == 8
    assert group.outer is not None
    assert group.outer.name == "slingshot"


def test_one_rank_per_node_crosses_only_the_network() -> None:
    assert shape(group_of(ALPS, 16, stride=4)) == [("slingshot", 16)]


def test_more_nodes_than_a_cabinet_has_cross_cabinets_too() -> None:
    assert shape(group_of(ALPS, 4 * 224)) == [("nvlink", 4), ("slingshot", 112), ("dragonfly", 2)]


def test_one_rank_is_alone() -> None:
    assert group_of(ALPS, 1) == ALONE
    assert ALONE.size == 1
    assert ALONE.outer is None


def test_uneven_parts_count_as_the_fullest() -> None:
    assert shape(group_of_places(ALPS, [0, 1, 2, 4])) == [("nvlink", 3), ("slingshot", 2)]


def test_the_emptiest_part_brings_its_ports_only() -> None:
    """A root alone in its node, and four samplers in another: one port of four leaves the first node."""
    (_, inside), (port, nodes) = group_of_places(ALPS, [0, 4, 5, 6, 7]).levels
    assert (inside, nodes) == (4, 2)
    assert port.bytes_per_s == 25e9 / 4


def test_scattered_places_cross_what_contiguous_ones_do_not() -> None:
    other_rack = 112 * 4
    assert shape(group_of_places(ALPS, range(4))) == [("nvlink", 4)]
    assert shape(group_of_places(ALPS, [0, 1, other_rack, other_rack + 1])) == [("nvlink", 2), ("dragonfly", 2)]


def test_two_of_four_devices_have_one_of_three_wires() -> None:
    (link, count), *_ = group_of(ALPS, 2).levels
    assert count == 2
    assert link.bytes_per_s == 150e9
    assert group_of(ALPS, 4).levels[0][0].bytes_per_s == 450e9


def test_part_of_a_ring_is_a_chain() -> None:
    inner = ALPS.levels[-1]
    assert inner.link is not None
    ring = replace(ALPS, levels=(*ALPS.levels[:-1], replace(inner, link=replace(inner.link, sharing=Sharing.RING))))
    assert group_of(ring, 3).levels[0][0].bytes_per_s == 225e9
    assert group_of(ring, 4).levels[0][0].bytes_per_s == 450e9


def test_switches_that_reach_over_nodes_make_one_level() -> None:
    system = load_system("gb200-nvl72")
    assert [(link.kind, count) for link, count in group_of(system, 72).levels] == [("nvlink5", 72)]
    assert [(link.kind, count) for link, count in group_of(system, 144).levels] == [("nvlink5", 72), ("infiniband", 2)]


def test_axes_of_a_mesh() -> None:
    mesh = Mesh("trn", "rack[0].node[0:4]", (("pp", 2), ("dp", 2), ("tp", 4)))
    assert shape(group_along(mesh, "tp", ALPS)) == [("nvlink", 4)]
    assert shape(group_along(mesh, "dp", ALPS)) == [("slingshot", 2)]
    assert shape(group_along(mesh, "pp", ALPS)) == [("slingshot", 2)]
    assert group_along(mesh, "cp", ALPS) == ALONE


def test_the_group_that_reaches_furthest_counts() -> None:
    """Three ranks along dp in nodes of four: the first group stays in a node, the second does not."""
    mesh = Mesh("trn", "rack[0].node[0:3]", (("pp", 4), ("dp", 3)))
    assert shape(group_along(mesh, "dp", ALPS)) == [("nvlink", 2), ("slingshot", 2)]


@pytest.mark.parametrize(("size", "stride"), [(0, 1), (2, 0), (3, 10752)])
def test_too_large_a_group_is_refused(size: int, stride: int) -> None:
    with pytest.raises(HardwareError, match=rf"has 10752 devices, {size} ranks {stride} apart need"):
        group_of(ALPS, size, stride)


@given(st.integers(1, 64), st.integers(1, 16))
def test_a_group_has_room_for_all_of_its_ranks(size: int, stride: int) -> None:
    group = group_of(ALPS, size, stride)
    assert size <= group.size
    assert all(count > 1 for _, count in group.levels)
