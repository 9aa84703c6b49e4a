"""Ranks follow nodes whatever order a launcher hands devices out in."""

from __future__ import annotations

import random

import pytest

from rpeg.errors import HardwareError
from rpeg.hardware.allocation import NodeDevice, seats
from rpeg.hardware.catalog import load_system


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
