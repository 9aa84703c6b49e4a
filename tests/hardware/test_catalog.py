"""The shipped machines, and files with faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpeg.errors import HardwareError
from rpeg.hardware.catalog import catalogue, devices, load_device, load_system, part_of, read_system
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
    """Every device is in a system, every number of operations is dense, every GPU has a wide and a narrow format."""
    systems = [load_system(name) for name in catalogue()]
    assert {"alps", "dgx-a100", "dgx-h100", "gb200-nvl72", "mi300x", "local"} < {system.name for system in systems}
    assert sorted({system.device.name for system in systems}) == devices()
    for name in devices():
        device = load_device(name)
        peaks = dict(device.peak_flops)
        assert device.name == name
        assert "float32" in peaks
        assert len(peaks) > 1
        assert peaks.get("bfloat16", 0) in {0, peaks.get("float16", peaks.get("bfloat16"))}
        assert peaks.get("float8", 2 * peaks.get("bfloat16", 0)) == pytest.approx(
            2 * peaks.get("bfloat16", 0), rel=0.03
        )


@pytest.mark.parametrize(
    ("name", "bfloat16", "float8", "memory_bytes", "memory_bytes_per_s", "pair_bytes_per_s"),
    [
        ("dgx-a100", 312e12, None, 80e9, 2039e9, 300e9),
        ("dgx-h100", 989e12, 1979e12, 80e9, 3350e9, 450e9),
        ("alps", 989e12, 1979e12, 96e9, 4000e9, 150e9),
        ("h20", 148e12, 296e12, 96e9, 4000e9, 450e9),
        ("h800", 989e12, 1979e12, 80e9, 3350e9, 200e9),
        ("dgx-b200", 2250e12, 4500e12, 180e9, 8000e9, 900e9),
        ("gb300-nvl72", 2500e12, 5000e12, 288e9, 8000e9, 900e9),
        ("mi300x", 1307.4e12, 2614.9e12, 192e9, 5300e9, 64e9),
        ("l40s", 362e12, 733e12, 48e9, 864e9, 31e9),
    ],
)
def test_figures_of_data_sheets(
    name: str,
    bfloat16: float,
    float8: float | None,
    memory_bytes: float,
    memory_bytes_per_s: float,
    pair_bytes_per_s: float,
) -> None:
    system = load_system(name)
    device, (*_, level) = system.device, system.levels
    peaks = dict(device.peak_flops)
    assert (peaks["bfloat16"], peaks.get("float8")) == (bfloat16, float8)
    assert (device.memory_bytes, device.memory_bytes_per_s) == (memory_bytes, memory_bytes_per_s)
    assert level.link is not None
    assert level.link.pair_bytes_per_s(level.count) == pair_bytes_per_s


def test_links_say_their_make() -> None:
    """Two networks of one make have two names, under which traffic is booked."""
    assert [level.link and (level.link.name, level.link.kind) for level in load_system("alps").levels] == [
        *(("dragonfly", "slingshot"), ("slingshot", "slingshot"), ("nvlink", "nvlink4"))
    ]
    assert [level.link and level.link.kind for level in load_system("gb200-nvl72").levels] == [
        *("infiniband", "nvlink5", "nvlink5")
    ]


def test_a_device_of_the_catalogue_in_a_file() -> None:
    start, end = GOOD.index("[device]"), GOOD.index("[[levels]]")
    text = GOOD[:start] + 'device = "L40S-48GB"\n' + GOOD[end:]
    system = read_system(text, "toy.toml")
    assert system.device == load_device("L40S-48GB")
    assert system.figures["device.memory_bytes"].source == "NVIDIA L40S data sheet: 48 GB GDDR6"
    with pytest.raises(HardwareError) as caught:
        read_system(text.replace("L40S-48GB", "L40S-49GB"), "toy.toml")
    assert str(caught.value) == (
        "toy.toml: 1 fault\n  1. device: 'L40S-49GB' is not in the catalogue; did you mean L40S-48GB?"
    )
    with pytest.raises(HardwareError, match="device: 'x' is not in the catalogue; there is A10-24GB, "):
        load_device("x")


def test_bandwidths_are_per_direction_in_one_unit() -> None:
    """NVLink 3 is sold as 600 GB/s, both directions together. A ring all-reduce of 1 GB over 8 GPUs takes 5.833 ms."""
    _, node, gpu = load_system("dgx-a100").levels
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
        ('link = "bridge"', 'link = "bridge"\nkind = 4', "levels[1].kind: is 4; give it a name"),
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
        ("dgx-h100:16", [1, 2, 8]),
        ("dgx-h100:3", [1, 1, 3]),
        ("dgx-h100:768", [3, 32, 8]),
        ("dgx-h100:1016", [127, 1, 8]),
        ("dgx-a100:1920", [12, 20, 8]),
        ("dgx-a100:3072", [24, 16, 8]),
        ("gb200-nvl72:64", [1, 16, 4]),
        ("gb200-nvl72:72", [1, 18, 4]),
        ("gb200-nvl72:256", [4, 16, 4]),
        ("local:2", [1, 2]),
    ],
)
def test_a_part_of_a_system(name: str, counts: list[int]) -> None:
    system = load_system(name)
    assert [level.count for level in system.levels] == counts
    assert (system.name, system.num_devices) == (name, int(name.split(":")[1]))


@pytest.mark.parametrize("name", [name for name in catalogue() if name not in {"alps", "local"}])
def test_sizes_of_real_jobs(name: str) -> None:
    system = load_system(name)
    for size in (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1920, 2048, 3072, 4096, 8192, 16384):
        part = part_of(system, size)
        assert (part.name, part.num_devices) == (f"{name}:{size}", size)
        assert part.levels[-1].count == min(size, system.levels[-1].count)


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
    with pytest.raises(HardwareError, match=r"there is a10, .*, v100, or the path of a \.toml file"):
        load_system("nothing.toml")
