"""Weights between layouts: counted cells against exact tile plans, regions as systems, degrees of bindings."""

from __future__ import annotations

import doctest
from fractions import Fraction

import pytest

from rpeg.graph.dim import Dim
from rpeg.hardware.allocation import allocated
from rpeg.hardware.catalog import load_system
from rpeg.hardware.racks import numbered
from rpeg.perf import regions, reshard
from rpeg.perf.layouts import Choice
from rpeg.perf.links import links_of
from rpeg.perf.network import transfer_s
from rpeg.perf.regions import choice_of, choice_of_layout, region_of, share_of
from rpeg.perf.reshard import haul_s, num_tensors, reshard_s, routed_parameters, traffic_of
from rpeg.perf.software import PublishConstants, publish_s
from rpeg.plan.plan import Binding, Layout, Mesh, Method, Pipeline, Recompute, Transfer
from rpeg.plan.transfer import tile_plan
from rpeg.shapes.catalog import shape_of
from rpeg.shapes.parameters import num_parameters, tensors

SYSTEM = load_system("alps:32")
SHAPE = shape_of("Llama-3.1-8B")
ALL, LOW, HIGH = "rack[0].node[0:8]", "rack[0].node[0:4]", "rack[0].node[4:8]"
Side = tuple[Layout, Mesh]


def side(name: str, where: str, pp: int, dp: int, tp: int, zero: int = 0) -> Side:
    mesh = Mesh(name, where, (("pp", pp), ("dp", dp), ("tp", tp)))
    shard = [(part, "tp") for part in ("heads", "kv_heads", "ffn", "vocabulary")] + [("layers", "pp")]
    return Layout(name, tuple(shard), zero, "bfloat16"), mesh


def test_doctests() -> None:
    assert doctest.testmod(reshard).failed == 0
    assert doctest.testmod(regions).failed == 0


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ((LOW, 1, 8, 2), (HIGH, 1, 4, 4)),
        ((LOW, 2, 2, 4), (HIGH, 1, 16, 1)),
        ((ALL, 2, 4, 4), (ALL, 1, 8, 4)),
        ((ALL, 1, 8, 4), (ALL, 1, 32, 1)),
        ((ALL, 4, 4, 2), (ALL, 1, 16, 2)),
        ((ALL, 1, 32, 1, 3), (ALL, 1, 16, 2)),
        ((LOW, 1, 16, 1, 3), (HIGH, 1, 8, 2)),
    ],
)
def test_counted_cells_are_the_bytes_of_the_tile_plan(
    src: tuple[str, int, int, int], dst: tuple[str, int, int, int]
) -> None:
    """Totals agree up to norms, which every rank has whole; who sends most depends on how ties are broken."""
    here, there = side("s", *src), side("d", *dst)
    found, exact = traffic_of(SHAPE, here, there, SYSTEM, 2.0), tile_plan(tensors(SHAPE), here, there, SYSTEM)
    assert found.total == pytest.approx(sum(message.num_bytes for message in exact.sent), rel=2e-3)
    assert found.in_place == pytest.approx(exact.bytes_in_place, rel=2e-3)
    assert exact.most_received_bytes <= 1.15 * (found.near + found.far)
    kept_s = 2 * exact.bytes_in_place / 32 / SYSTEM.device.memory_bytes_per_s
    assert reshard_s(SHAPE, here, there, SYSTEM, 2.0) == pytest.approx(
        transfer_s(exact, links_of(SYSTEM)) + kept_s, rel=0.15
    )


def test_the_same_layout_on_the_same_devices_is_a_copy() -> None:
    """2 GB of 16 GB on each device, read and written at 4 TB/s."""
    here = side("s", ALL, 1, 4, 8)
    found = traffic_of(SHAPE, here, here, SYSTEM, 2.0)
    assert (found.total, found.near, found.far) == (0, 0, 0)
    each = 2 * num_parameters(SHAPE) / 8
    assert reshard_s(SHAPE, here, here, SYSTEM, 2.0) == pytest.approx(2 * each / SYSTEM.device.memory_bytes_per_s)


def test_the_same_layout_on_other_devices_is_not_free() -> None:
    found = traffic_of(SHAPE, side("s", LOW, 1, 4, 4), side("d", HIGH, 1, 4, 4), SYSTEM, 2.0)
    assert found.far == pytest.approx(2 * num_parameters(SHAPE) / 4)


def test_buckets_cost_a_start_each() -> None:
    here, there = side("s", LOW, 1, 8, 2), side("d", HIGH, 1, 4, 4)
    whole, pieces = (
        reshard_s(SHAPE, here, there, SYSTEM, 2.0, Transfer("w", "gen", Method.BUCKETED, size))
        for size in (None, 10**6)
    )
    assert pieces > 1.05 * whole


def test_experts_are_cut_their_own_way() -> None:
    """From all experts split over 4 ranks to a quarter of whole experts on each: only a quarter is there already."""
    shape = shape_of("Qwen3-30B-A3B")
    system, where = load_system("alps:4"), "rack[0].node[0]"
    mesh = Mesh("m", where, (("dp", 1), ("tp", 4)))
    tp = tuple((part, "tp") for part in ("heads", "kv_heads", "ffn", "vocabulary"))
    split, spread = (Layout("m", (*tp, (part, "tp")), 0, "bfloat16") for part in ("expert_ffn", "experts"))
    same = traffic_of(shape, (spread, mesh), (spread, mesh), system, 2.0)
    assert same.total == 0
    assert (choice_of_layout(split, mesh).ep, choice_of_layout(spread, mesh).ep) == (1, 4)


def test_gathering_takes_what_the_software_takes() -> None:
    constants = PublishConstants(1.0, 5e9, 2e9, crossing_bytes_per_s=1e9)
    how = Transfer("w", "gen", Method.GATHER)
    sharded, split = side("s", LOW, 1, 16, 1, 3), side("s", LOW, 1, 4, 4)
    to = side("d", HIGH, 1, 16, 1)
    size = 2.0 * num_parameters(SHAPE)
    wanted = [publish_s(size, 0.0, num_tensors(SHAPE), constants, is_crossing=each) for each in (True, False)]
    assert [reshard_s(SHAPE, each, to, SYSTEM, 2.0, how, constants) for each in (sharded, split)] == wanted


def test_routed_parameters_by_hand() -> None:
    assert routed_parameters(SHAPE) == 0
    assert routed_parameters(shape_of("Qwen3-30B-A3B")) == 48 * 128 * 3 * 768 * 2048


def test_a_disk_is_slower_than_a_host() -> None:
    assert haul_s(1e9, SYSTEM, 1e9) == pytest.approx(1.0)
    assert haul_s(1e9, SYSTEM) < 0.01


def test_a_region_is_a_machine_with_as_many_parts() -> None:
    system = load_system("alps:512")
    part = region_of(system, "rack[1].node[0:8]")
    assert [level.count for level in part.levels] == [1, 8, 4]
    assert (part.num_devices, part.num_hosts, part.device) == (32, 8, system.device)
    assert region_of(system, "rack.node.host").num_devices == system.num_hosts
    assert region_of(system, "rack[0].node[0].gpu[2]").levels[-1].link is None


def test_a_region_of_an_allocation_keeps_its_racks() -> None:
    nodes = [f"nid{number:06}" for number in (1000, 1001, 1112, 1113)]
    system = allocated(load_system("alps"), nodes, numbered(112, first=1000)).system
    parts = [region_of(system, f"rack[0].node[{span}]") for span in ("0:2", "1:3")]
    assert [part.link_between(0, 4).name for part in parts] == ["slingshot", "dragonfly"]  # pyright: ignore


def test_servers_share_a_region() -> None:
    part = share_of(region_of(SYSTEM, ALL), 4)
    assert (part.num_devices, share_of(part, 1)) == (8, part)


def test_a_binding_is_a_row_of_a_table() -> None:
    layout, mesh = side("m", ALL, 2, 4, 4, 1)
    binding = Binding("train", "m", layout, Dim("B / 4"), Pipeline.INTERLEAVED, Recompute.FULL, pack=True, servers=2)
    assert choice_of(binding, mesh, {"B": Fraction(8)}) == Choice(
        4, 2, 2, 1, 1, 2.0, 1, Recompute.FULL, Pipeline.INTERLEAVED, True, binding.balance
    )


def test_axes_beside_tensors_and_layers_are_data_parallel() -> None:
    mesh = Mesh("m", ALL, (("dp", 2), ("ep", 4), ("cp", 2), ("tp", 2)))
    found = choice_of_layout(Layout("m", (("heads", "tp"), ("experts", "ep"), ("experts", "tp"))), mesh)
    assert (found.tp, found.cp, found.ep, found.dp) == (2, 2, 8, 8)
