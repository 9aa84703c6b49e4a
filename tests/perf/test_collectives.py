"""Collectives: bytes and hops by hand, which algorithm wins, and what holds for all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.hardware.allocation import allocated
from rpeg.hardware.catalog import load_system
from rpeg.hardware.racks import numbered
from rpeg.hardware.topology import Link, Sharing
from rpeg.perf.collectives import Collective, collective_s
from rpeg.perf.group import ALONE, Group, group_of, group_of_places
from rpeg.perf.links import LinkConstants, links_of

NVLINK, PORT = Link("nvlink", 400e9, 5e-6), Link("port", 20e9, 3e-6)
NODE, NODES = Group(((NVLINK, 4),)), Group(((NVLINK, 4), (PORT, 2)))
ONLY_BYTES = {"nvlink": LinkConstants(0.0, 0.0, 1.0), "port": LinkConstants(0.0, 0.0, 1.0)}
ONLY_HOPS = {"nvlink": LinkConstants(10.0, 1.0, 1.0), "port": LinkConstants(20.0, 100.0, 1.0)}


def seconds(kind: Collective, num_bytes: float, group: Group, links: dict[str, LinkConstants]) -> float:
    return float(collective_s(kind, num_bytes, group, links))


@pytest.mark.parametrize(
    ("kind", "expected_s"),
    [
        (Collective.ALL_REDUCE, 2 * 3 / 4),
        (Collective.ALL_GATHER, 3 / 4),
        (Collective.REDUCE_SCATTER, 3 / 4),
        (Collective.ALL_TO_ALL, 3 / 4),
        (Collective.BROADCAST, 1.0),
        (Collective.POINT_TO_POINT, 1.0),
    ],
)
def test_bytes_within_a_node(kind: Collective, expected_s: float) -> None:
    assert seconds(kind, 400e9, NODE, ONLY_BYTES) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("kind", "expected_s"),
    [
        (Collective.ALL_REDUCE, 2 * 7 / 8),  # a ring: 2 · 7/8 of the bytes, over four ports
        (Collective.ALL_GATHER, 7 / 8),
        (Collective.ALL_TO_ALL, 4 / 8 * 4),  # half of what each rank has goes through its own port
        (Collective.BROADCAST, 1.0),
        (Collective.POINT_TO_POINT, 4.0),  # one port
    ],
)
def test_bytes_between_nodes(kind: Collective, expected_s: float) -> None:
    """80 GB take a second over the four ports of a node."""
    assert seconds(kind, 80e9, NODES, ONLY_BYTES) == pytest.approx(expected_s)


def test_a_tree_between_nodes_sends_less_than_a_ring() -> None:
    """Every port carries its quarter up and down: 2 · 1/2 instead of 2 · 7/8."""
    links = ONLY_BYTES | {"port": LinkConstants(0.0, 0.0, 1.0, is_network=True)}
    assert seconds(Collective.ALL_REDUCE, 80e9, NODES, links) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("kind", "hops"),
    [
        (Collective.ALL_REDUCE, 2 * (6 * 1 + 1 * 100)),  # eight ranks in a ring: one of seven hops leaves the node
        (Collective.ALL_GATHER, 6 * 1 + 1 * 100),
        (Collective.BROADCAST, 6 * 1 + 1 * 100),
        (Collective.POINT_TO_POINT, 100),
    ],
)
def test_hops_between_nodes(kind: Collective, hops: float) -> None:
    assert seconds(kind, 0.0, NODES, ONLY_HOPS) == pytest.approx(20 + hops)


def test_trees_grow_with_the_logarithm_of_the_nodes() -> None:
    links = ONLY_HOPS | {"port": LinkConstants(20.0, 100.0, 1.0, is_network=True)}
    wide = Group(((NVLINK, 4), (PORT, 64)))
    assert seconds(Collective.ALL_REDUCE, 0.0, wide, links) == pytest.approx(20 + 2 * (3 * 1 + 6 * 100))


def test_recursive_doubling_grows_with_the_logarithm_of_the_ranks() -> None:
    links = {"port": LinkConstants(20.0, 100.0, 1.0, is_recursive=True)}
    assert seconds(Collective.ALL_GATHER, 0.0, Group(((PORT, 16),)), links) == pytest.approx(20 + 4 * 100)


def test_everybody_pays_for_every_peer() -> None:
    links = {
        "nvlink": LinkConstants(0.0, 0.0, 1.0, exchange_start_s=10.0, peer_s=1.0),
        "port": LinkConstants(0.0, 0.0, 1.0, exchange_start_s=20.0, peer_s=100.0),
    }
    assert seconds(Collective.ALL_TO_ALL, 0.0, NODES, links) == pytest.approx(20 + 3 * 1 + 4 * 100)


def test_a_crowded_network_is_slower() -> None:
    links = ONLY_BYTES | {"port": LinkConstants(0.0, 0.0, 1.0, exchange_fraction=0.5)}
    assert seconds(Collective.ALL_TO_ALL, 80e9, NODES, links) == pytest.approx(4.0)


def test_own_parts_are_copied() -> None:
    links = {"nvlink": LinkConstants(0.0, 0.0, 1.0, copy_bytes_per_s=100e9, exchange_copy_bytes_per_s=200e9)}
    assert seconds(Collective.ALL_GATHER, 400e9, NODE, links) == pytest.approx(3 / 4 + 1.0)
    assert seconds(Collective.ALL_TO_ALL, 400e9, NODE, links) == pytest.approx(3 / 4 + 0.5)


def test_switches_help_all_reduces_only() -> None:
    """(1 + 1/4) of the bytes instead of 2 · 3/4."""
    links = {"nvlink": LinkConstants(0.0, 0.0, 1.0, switch_fraction=1.0)}
    assert float(collective_s(Collective.ALL_REDUCE, 400e9, NODE, links, in_switch=True)) == pytest.approx(1.25)
    assert float(collective_s(Collective.ALL_GATHER, 400e9, NODE, links, in_switch=True)) == pytest.approx(0.75)


def test_switches_are_used_only_where_they_are_faster() -> None:
    links = {"nvlink": LinkConstants(0.0, 0.0, 1.0, switch_fraction=1.0, switch_start_s=9.0)}
    assert float(collective_s(Collective.ALL_REDUCE, 400e9, NODE, links, in_switch=True)) == pytest.approx(1.5)


def test_a_message_between_two_of_four_linked_devices_has_one_wire() -> None:
    links = {"pairs": LinkConstants(0.0, 0.0, 1.0)}
    node = Group(((Link("pairs", 450e9, 0.0, Sharing.PAIRS), 4),))
    assert seconds(Collective.POINT_TO_POINT, 150e9, node, links) == pytest.approx(1.0)
    assert seconds(Collective.ALL_GATHER, 450e9, node, links) == pytest.approx(0.75)


def test_nobody_to_talk_to_takes_no_time() -> None:
    assert seconds(Collective.ALL_REDUCE, 1e9, ALONE, {}) == 0.0
    assert np.array_equal(collective_s(Collective.ALL_REDUCE, np.ones(3), ALONE, {}), np.zeros(3))


def test_arrays_are_taken_element_by_element() -> None:
    system = load_system("alps")
    group, links, sizes = group_of(system, 16), links_of(system), np.array([1e3, 1e6, 1e9])
    for kind in Collective:
        found = collective_s(kind, sizes, group, links)
        assert np.allclose(found, [float(collective_s(kind, float(size), group, links)) for size in sizes])


def test_racks_apart_cost_more_than_a_rack() -> None:
    system = load_system("alps")
    links, rack = links_of(system), 112 * 4
    together, apart = (
        collective_s(Collective.ALL_REDUCE, 1e6, group, links)
        for group in (group_of(system, 8), Group((*group_of(system, 4).levels, *group_of(system, 2, rack).levels)))
    )
    assert apart > together


@given(
    kind=st.sampled_from(list(Collective)),
    num_bytes=st.floats(1.0, 1e11),
    more=st.floats(1.0, 100.0),
    size=st.sampled_from([2, 4, 8, 12, 64, 512]),
    name=st.sampled_from(["alps", "dgx-h100", "gb200-nvl72", "l40s", "mi300x"]),
)
def test_more_bytes_take_longer(kind: Collective, num_bytes: float, more: float, size: int, name: str) -> None:
    system = load_system(name)
    group, links = group_of(system, size), links_of(system)
    less_s, more_s = (float(collective_s(kind, each, group, links)) for each in (num_bytes, num_bytes * more))
    assert 0 < less_s <= more_s * 1.1  # the measured curve of Slingshot dips by 6 % at one size


@given(st.sampled_from(list(Collective)), st.floats(1e3, 1e10), st.floats(1.5, 8.0))
def test_large_times_scale_with_the_bandwidth(kind: Collective, num_bytes: float, factor: float) -> None:
    fast = Group(tuple((Link(link.name, link.bytes_per_s * factor, 0.0), count) for link, count in NODES.levels))
    slow_s, fast_s = (seconds(kind, num_bytes, group, ONLY_BYTES) for group in (NODES, fast))
    assert slow_s == pytest.approx(factor * fast_s)


@pytest.mark.parametrize("kind", [Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.ALL_TO_ALL])
@pytest.mark.parametrize("num_bytes", [1e4, 1e6, 1e9])
def test_scattered_over_racks_is_never_faster(kind: Collective, num_bytes: float) -> None:
    """What leaves a rack leaves the nodes' ports as well; parts of 40 and 24 nodes are 256 devices, not 320."""
    alps, racks = load_system("alps"), numbered(112)
    scattered = {
        "far": ",".join(f"nid[{112 * rack}-{112 * rack + 7}]" for rack in range(8)),
        "uneven": "nid[0-39],nid[112-135]",
    }
    near_s, *others_s = (
        seconds(kind, num_bytes, group_of_places(system, range(256)), links_of(system))
        for system in (allocated(alps, nodes, racks).system for nodes in ("nid[0-63]", *scattered.values()))
    )
    assert all(near_s <= other_s <= 1.6 * near_s for other_s in others_s)
