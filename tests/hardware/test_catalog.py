"""The shipped machines, and files with faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpeg.errors import HardwareError
from rpeg.hardware.catalog import catalogue, load_system, read_system
from rpeg.hardware.topology import Sharing

GOOD = """
name = "toy"

[device]
name = "chip"
memory_bytes = { value = 16e9, source = "data sheet", measured = false }
memory_bytes_per_s = { value = 1e12, source = "data sheet", measured = false }
host_memory_bytes = { value = 64e9, source = "data sheet", measured = false }
peak_flops.bfloat16 = { value = 1e14, source = "data sheet", measured = false }

[device.host]
link = "pcie"
bytes_per_s = { value = 32e9, source = "data sheet", measured = false }
latency_s = { value = 1e-5, source = "bench", measured = true }

[[levels]]
name = "box"
count = { value = 1, source = "on the desk", measured = false }

[[levels]]
name = "chip"
count = { value = 2, source = "on the desk", measured = false }
link = "bridge"
bytes_per_s = { value = 50e9, source = "data sheet", measured = false }
latency_s = { value = 5e-6, source = "bench", measured = true }
sharing = "ring"
"""


@pytest.mark.parametrize("name", catalogue())
def test_every_figure_of_the_catalogue_has_a_source(name: str) -> None:
    system = load_system(name)
    assert system.name == name
    assert all(figure.source.strip() and figure.value > 0 for figure in system.figures.values())
    num_links = sum(level.link is not None for level in system.levels)
    assert len(system.figures) == 3 + len(system.device.peak_flops) + 2 + len(system.levels) + 2 * num_links
    names = [level.link.name for level in system.levels if level.link] + [system.device.host.name]
    assert len(set(names)) == len(names), "traffic is booked by the name of its link"


def test_what_is_shipped() -> None:
    assert catalogue() == ["alps", "dgx-a100", "dgx-h100", "local"]


def test_bandwidths_are_per_direction_in_one_unit() -> None:
    """NVLink 3 is sold as 600 GB/s, both directions together. A ring all-reduce of 1 GB over 8 GPUs takes 5.833 ms."""
    node, gpu = load_system("dgx-a100").levels
    assert gpu.link is not None
    assert node.link is not None
    ring_s = 2 * (8 - 1) / 8 * 1e9 / gpu.link.bytes_per_s
    assert round(ring_s * 1e3, 3) == 5.833
    assert gpu.link.bytes_per_s / node.link.bytes_per_s == 12  # 300 GB/s beside 200 Gb/s


def test_a_file() -> None:
    system = read_system(GOOD, "toy.toml")
    assert [(level.name, level.count) for level in system.levels] == [("box", 1), ("chip", 2)]
    assert (system.levels[0].link, system.levels[1].link and system.levels[1].link.sharing) == (None, Sharing.RING)
    assert (system.device.memory_bytes, system.device.host.bytes_per_s) == (16_000_000_000, 32e9)
    assert system.device.peak_flops == (("bfloat16", 1e14),)
    assert system.figures["levels[1].latency_s"].measured
    assert system.figures["device.host.bytes_per_s"].source == "data sheet"


def test_a_path(tmp_path: Path) -> None:
    path = tmp_path / "toy.toml"
    path.write_text(GOOD)
    assert load_system(str(path)) == read_system(GOOD, "toy")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (', source = "data sheet"', "", "device.memory_bytes: has no source"),
        ("value = 16e9", "value = -1", "device.memory_bytes: has the value -1, which is no positive number"),
        ("value = 16e9", "value = inf", "device.memory_bytes: has the value inf, which is no positive number"),
        ("value = 16e9", 'value = "16"', "device.memory_bytes: has the value '16', which is no positive number"),
        (", measured = false", "", "device.memory_bytes: does not say whether it was measured"),
        ("measured = false }", "measured = false, unit = 1 }", "device.memory_bytes: has unknown fields unit"),
        ('{ value = 16e9, source = "data sheet", measured = false }', "16e9", "device.memory_bytes: is 16000000000.0"),
        ("memory_bytes =", "memory_byte =", "device.memory_byte: is unknown; did you mean memory_bytes?"),
        ("value = 2,", "value = 2.5,", "levels[1].count: is 2.5; count whole parts"),
        ('"ring"', '"star"', "levels[1].sharing: is 'star'; one of switched, pairs, ring"),
        ('name = "box"', 'name = "chip"', "levels chip: are there twice; every level has its own name"),
        ('name = "toy"', "", "name: is None; give it a name"),
        ('link = "bridge"', "", "levels[1].link: is None; give it a name"),
        ("peak_flops.bfloat16", "peak_flops", "device.peak_flops"),
    ],
)
def test_faults_of_a_file(old: str, new: str, fault: str) -> None:
    with pytest.raises(HardwareError) as caught:
        read_system(GOOD.replace(old, new, 1), "toy.toml")
    assert fault in str(caught.value)


def test_all_faults_at_once() -> None:
    with pytest.raises(HardwareError) as caught:
        read_system("name = 'x'\n[device]\nspeed = 1", "x.toml")
    wheres = [fault.where for fault in caught.value.faults]
    assert wheres[:3] == ["levels", "device.speed", "device.memory_bytes"]
    assert {"device.peak_flops", "device.name", "device.host.link", "device.host.bytes_per_s"} <= set(wheres)


def test_what_is_no_toml() -> None:
    with pytest.raises(HardwareError, match=r"^x: 1 fault\n  1\. file: is not TOML \("):
        read_system("name =", "x")


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("alps:256", [1, 64, 4]),
        ("alps:448", [1, 112, 4]),
        ("alps:1024", [4, 64, 4]),
        ("alps:10752", [24, 112, 4]),
        ("alps:2", [1, 1, 2]),
        ("dgx-h100:16", [2, 8]),
        ("local:2", [1, 2]),
    ],
)
def test_a_part_of_a_system(name: str, counts: list[int]) -> None:
    system = load_system(name)
    assert [level.count for level in system.levels] == counts
    assert (system.name, system.num_devices) == (name, int(name.split(":")[1]))


@pytest.mark.parametrize("size", ["0", "6", "452", "20000", "x", "-4"])
def test_parts_are_whole_nodes_spread_evenly(size: str) -> None:
    with pytest.raises(HardwareError) as caught:
        load_system(f"alps:{size}")
    assert str(caught.value) == (
        f"system: 1 fault\n  1. alps: has no part of {size} devices; "
        "whole nodes of 4, up to 10752 devices, spread evenly"
    )


def test_what_is_not_in_the_catalogue() -> None:
    with pytest.raises(HardwareError, match=r"alp: is not in the catalogue; did you mean alps\?"):
        load_system("alp")
    with pytest.raises(HardwareError, match=r"there is alps, dgx-a100, dgx-h100, local, or the path of a \.toml file"):
        load_system("nothing.toml")
