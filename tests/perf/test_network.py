"""Messages between places: ports, methods, hosts, sharing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpeg.hardware.catalog import load_system
from rpeg.hardware.topology import Link
from rpeg.perf.collectives import Collective, collective_s
from rpeg.perf.group import Group, group_of
from rpeg.perf.links import LinkConstants, links_of
from rpeg.perf.network import (
    WeightPushConstants,
    broadcast_weights_s,
    copy_s,
    delta_bytes,
    exposed_s,
    in_place_s,
    relay_s,
    shared_s,
    tiles_s,
    transfer_s,
)
from rpeg.plan.plan import Layout, Mesh, Method
from rpeg.plan.transfer import Message, tile_plan
from rpeg.shapes.tensor import Tensor

ALPS = load_system("alps:64")
ONLY_BYTES = {kind: LinkConstants(0.0, 0.0, 1.0) for kind in ("nvlink4", "slingshot", "c2c")}
WEIGHTS = (Tensor("w", (("rows", 1 << 14), ("columns", 1 << 14))),)  # 1 GiB in float32
GIB = 1 << 30


def message(src: int, dst: int, num_bytes: int) -> Message:
    return Message(src, dst, (), num_bytes)


def test_the_busiest_port_bounds() -> None:
    """Place 4 gets 25 GB from each of two nodes through one port; place 5 gets as much from one."""
    sent = [message(0, 4, int(25e9)), message(8, 4, int(25e9)), message(1, 5, int(25e9))]
    assert tiles_s(sent, ALPS, ONLY_BYTES) == pytest.approx(2.0)


def test_both_directions_of_a_port_work_at_once() -> None:
    sent = [message(0, 4, int(25e9)), message(4, 0, int(25e9))]
    assert tiles_s(sent, ALPS, ONLY_BYTES) == pytest.approx(1.0)


def test_every_pair_of_a_node_has_its_own_wire() -> None:
    sent = [message(0, 1, int(150e9)), message(0, 2, int(150e9)), message(3, 1, int(150e9))]
    assert tiles_s(sent, ALPS, ONLY_BYTES) == pytest.approx(1.0)


def test_levels_work_at_once() -> None:
    sent = [message(0, 1, int(150e9)), message(0, 4, int(50e9)), message(0, ALPS.host_of(0), int(450e9))]
    assert tiles_s(sent, ALPS, ONLY_BYTES) == pytest.approx(2.0)


def test_messages_cost_and_pieces_start_anew() -> None:
    links = {"slingshot": LinkConstants(10.0, 0.0, 1.0, peer_s=1.0)}
    sent = [message(0, 4, int(25e9)), message(0, 8, int(25e9))]
    assert tiles_s(sent, ALPS, links) == pytest.approx(10 + 2 * 1 + 2)
    assert tiles_s(sent, ALPS, links, bucket_bytes=10e9) == pytest.approx(5 * 10 + 5 * 1 + 2)


def test_nothing_to_send_takes_no_time() -> None:
    mesh = Mesh("trn", "rack[0].node[0]", (("dp", 4),))
    plan = tile_plan(WEIGHTS, (Layout("trn"), mesh), (Layout("trn"), mesh), ALPS)
    for method in Method:
        assert transfer_s(plan, ONLY_BYTES, method) == 0.0
    assert tiles_s([message(3, 3, 10)], ALPS, ONLY_BYTES) == 0.0


def test_tiles_beat_gathering_and_broadcasting() -> None:
    """Four devices of a node hold a quarter each; four of another want all: everyone sends its quarter to everyone."""
    here, there = (Mesh(name, f"rack[0].node[{i}]", (("dp", 4),)) for i, name in enumerate(("trn", "gen")))
    ends = (Layout("trn", (), 3), here), (Layout("gen"), there)
    tiles, gathered = (tile_plan(WEIGHTS, *ends, ALPS, method) for method in (Method.P2P, Method.GATHER))
    assert transfer_s(tiles, ONLY_BYTES) == pytest.approx(GIB / 25e9)
    assert transfer_s(tiles, ONLY_BYTES, Method.BUCKETED, bucket_bytes=1e8) == pytest.approx(GIB / 25e9)
    # A quarter from each of three neighbours at once, then all of it through the root's port.
    found = transfer_s(gathered, ONLY_BYTES, Method.GATHER)
    assert found == pytest.approx(GIB / 4 / 150e9 + GIB / 25e9, rel=1e-6)


def test_gathering_to_one_place_only_is_no_broadcast() -> None:
    here, there = Mesh("trn", "rack[0].node[0]", (("dp", 4),)), Mesh("gen", "rack[0].node[0].gpu[0]", (("dp", 1),))
    plan = tile_plan(WEIGHTS, (Layout("trn", (), 3), here), (Layout("gen"), there), ALPS, Method.GATHER)
    assert transfer_s(plan, ONLY_BYTES, Method.GATHER) == pytest.approx(GIB / 4 / 150e9)


def test_copies_to_hosts() -> None:
    system = load_system("dgx-h100")
    assert copy_s(55.251e9, system.device.host, links_of(system)) == pytest.approx(1.00001)
    assert copy_s(45e9, Link("c2c", 450e9, 0.0), ONLY_BYTES) == pytest.approx(0.1)


def test_legs_of_a_way_overlap_in_pieces() -> None:
    assert relay_s([1.0, 3.0, 2.0]) == 6.0
    assert relay_s([1.0, 3.0, 2.0], 3) == pytest.approx(4.0)
    assert relay_s([]) == 0.0


def test_deltas_are_never_more_than_all() -> None:
    assert delta_bytes(2e9, 0.01, 2) == pytest.approx(6e7)
    assert delta_bytes(2e9, 0.9, 2) == 2e9


def test_what_does_not_hide_shows() -> None:
    assert exposed_s(5.0, 3.0) == 2.0
    assert exposed_s(5.0, 3.0, 0.5) == 3.0
    assert exposed_s(3.0, 5.0, 0.5) == 0.0


def test_copying_in_place_reads_and_writes() -> None:
    assert in_place_s(1e12, 4e12) == 0.5


def test_weights_are_pushed_in_buckets() -> None:
    """Three buckets of 1 GB: gathered over 2 devices, broadcast over 2 nodes, loaded at 10 GB/s."""
    nvlink, port = Link("nvlink4", 100e9, 0.0), Link("slingshot", 10e9, 0.0)
    shards, audience = Group(((nvlink, 2),)), Group(((port, 2),))
    constants = WeightPushConstants(tensor_s=0.01, bucket_bytes=1e9, bucket_s=0.5, load_bytes_per_s=10e9)
    found = broadcast_weights_s(3e9, 100, shards, audience, ONLY_BYTES, constants)
    assert found == pytest.approx(100 * 0.01 + 3 * 0.5 + 0.015 + 0.3 + 0.3)
    hidden = WeightPushConstants(0.01, 1e9, 0.5, 10e9, start_s=4.0, overlap=1.0)
    assert broadcast_weights_s(3e9, 100, shards, audience, ONLY_BYTES, hidden) == pytest.approx(4.0 + 1.0 + 1.5 + 0.3)


def test_two_transfers_over_one_link_take_as_long_as_both() -> None:
    assert shared_s([{"slingshot": 2.0}, {"slingshot": 2.0}]) == pytest.approx([4.0, 4.0])


def test_transfers_over_different_links_do_not_meet() -> None:
    assert shared_s([{"slingshot": 2.0}, {"nvlink": 3.0}, {}]) == pytest.approx([2.0, 3.0, 0.0])


def test_links_are_shared_level_by_level() -> None:
    """The first uses a quarter of the port's time, so the second has three quarters of it until the first is done."""
    found = shared_s([{"nvlink": 4.0, "slingshot": 1.0}, {"slingshot": 3.0}])
    assert found == pytest.approx([4.0, 4.0])
    assert shared_s([{"nvlink": 4.0, "slingshot": 1.0}, {"slingshot": 6.0}]) == pytest.approx([4.0, 7.0])


links_busy = st.dictionaries(st.sampled_from(["nvlink", "slingshot", "c2c"]), st.floats(0.0, 10.0), max_size=3)


@settings(max_examples=50)
@given(st.lists(links_busy, min_size=1, max_size=4))
def test_sharing_never_speeds_up_and_wastes_nothing(busy_s: list[dict[str, float]]) -> None:
    found = shared_s(busy_s)
    alone = [max(links.values(), default=0.0) for links in busy_s]
    assert all(end >= s * (1 - 1e-6) for end, s in zip(found, alone, strict=True))
    assert max(found) <= sum(alone) * (1 + 1e-6) + 1e-9
    for name in ("nvlink", "slingshot", "c2c"):
        assert max(found) >= sum(links.get(name, 0.0) for links in busy_s) * (1 - 1e-6)


def test_a_broadcast_is_what_the_collective_says() -> None:
    system = load_system("alps:64")
    links = links_of(system)
    constants = WeightPushConstants(0.0, 1e12, 0.0, 1e18)
    one, group = Group(), group_of(system, 8)
    found = broadcast_weights_s(15e9, 1, one, group, links, constants)
    assert found == pytest.approx(float(collective_s(Collective.BROADCAST, 15e9, group, links)), rel=1e-6)
