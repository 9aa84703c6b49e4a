"""Machines by what tables call them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from rpeg.errors import HardwareError
from rpeg.hardware.catalog import catalogue, devices, load_system
from rpeg.hardware.naming import device_for, named, system_for

GRAND_TETON = "H100 96GB HBM2e 2.4TB/s 500W (Grand Teton, 8/node, 400Gb/s RDMA per GPU)"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("DGX-H100", "dgx-h100"),
        ("DGX-H100-80GB", "dgx-h100"),
        ("H100-SXM-80GB (8/node)", "dgx-h100"),
        ("h100_sxm", "dgx-h100"),
        ("H100 HBM3", "dgx-h100"),
        ("H100 (DGX)", "dgx-h100"),
        ("NVIDIA H100 80GB HBM3", "dgx-h100"),
        ("A100-80GB (Selene, 8/node, 8x HDR200)", "dgx-a100"),
        ("NVIDIA A100-SXM4-80GB", "dgx-a100"),
        ("a100_sxm", "dgx-a100"),
        ("A100-SXM4-40GB", "dgx-a100-40gb"),
        ("A100 PCIe", "a100-pcie"),
        ("A800", "a800"),
        ("H20 (8/node)", "h20"),
        ("H20 141GB", "h20-141gb"),
        ("H800", "h800"),
        ("H200", "dgx-h200"),
        ("h200_sxm", "dgx-h200"),
        ("H200 node", "dgx-h200"),
        ("DGX-B200", "dgx-b200"),
        ("b200_sxm", "dgx-b200"),
        ("DGX-B300", "dgx-b300"),
        ("DGX-GB200", "gb200-nvl72"),
        ("gb200_sxm", "gb200-nvl72"),
        ("GB200NVL72", "gb200-nvl72"),
        ("GB300 NVL72", "gb300-nvl72"),
        ("GH200 96GB HBM3 480GB LPDDR5X", "gh200-single"),
        ("GH200 96GB (shown as 120GB)", "alps"),
        ("Alps (CSCS), quad-GH200 nodes", "alps"),
        ("GH200 SXM (900W 141GiB HBM3e)", "gh200-144"),
        (GRAND_TETON, "h100-grandteton"),
        ("H100 NVL", "h100-nvl"),
        ("H100-80GB-PCIe", "h100-pcie"),
        ("MI300X", "mi300x"),
        ("8xMI325X", "mi325x"),
        ("MI355X", "mi355x"),
        ("L40S", "l40s"),
        ("l4", "l4"),
        ("V100-SXM2-32GB", "v100"),
        ("rtx_pro_6000_server", "rtx-pro-6000"),
        ("RTX PRO 6000 Blackwell", "rtx-pro-6000"),
        ("RTX4090", "rtx-4090"),
        ("RTX A6000", "a6000"),
        ("A10", "a10"),
        ("local:2", "local:2"),
        (" dgx-h100:64 ", "dgx-h100:64"),
    ],
)
def test_what_is_said_in_full(text: str, name: str) -> None:
    assert named(text).system.name == name
    assert named(text).assumed == ""


@pytest.mark.parametrize(
    ("text", "name", "assumed"),
    [
        ("H100", "dgx-h100", "H100 SXM with 80 GB, 8 per node"),
        ("8xA100", "dgx-a100", "A100 SXM with 80 GB, 8 per node"),
        ("A100/A800 80GB", "dgx-a100", "A100 of the several devices named"),
        ("V100", "v100", "V100 SXM2 with 32 GB"),
        ("H200 NVL", "dgx-h200", "H200 SXM: the card is not in the catalogue"),
        ("H100-SXM-64GB", "dgx-h100", "H100 SXM with 80 GB: 64 GB is not in the catalogue"),
        ("A100-PCIe-40GB", "a100-pcie", "A100 PCIe with 80 GB: 40 GB is not in the catalogue"),
        ("GH200 96GB", "gh200-single", "one GH200 per node"),
        (
            "H100/H200/A100/GB200",
            "dgx-h100",
            "H100 SXM with 80 GB, 8 per node; H100 of the several devices named",
        ),
        (
            "8-GPU NVLink nodes; GPU model not stated in the sources read",
            "dgx-a100",
            "A100 SXM with 80 GB: the source does not name the GPU",
        ),
    ],
)
def test_what_is_left_open_is_said(text: str, name: str, assumed: str) -> None:
    assert (named(text).system.name, named(text).assumed) == (name, assumed)


@pytest.mark.parametrize(
    ("text", "num_per_node", "port_bytes_per_s"),
    [
        ("A100-40GB (4/node, 4x HDR200)", 4, 25e9),
        ("A100-40GB (1600 Gb/s per node)", 8, 25e9),
        ("A100-80GB (8 GPUs per node, 4x HDR100)", 8, 6.25e9),
        ("A100-80GB, 8x 100Gb/s RoCE", 8, 12.5e9),
        ("H100-SXM-80GB (4/node, 200Gb/s IB per GPU)", 4, 25e9),
        ("V100 (6/node)", 6, 6.25e9),
        (GRAND_TETON, 8, 50e9),
    ],
)
def test_nodes_and_ports_as_the_text_says(text: str, num_per_node: int, port_bytes_per_s: float) -> None:
    system = system_for(text)
    *ports, devices_of_node = system.levels
    assert devices_of_node.count == num_per_node
    assert {level.link.bytes_per_s for level in ports if level.link} == {port_bytes_per_s}
    for figure in system.figures.values():
        assert figure.source


def test_a_changed_figure_says_where_it_is_from() -> None:
    system = system_for("V100 (6/node)")
    assert system.figures["levels[1].count"].source == "said by the name: v100 6/node"
    assert load_system("v100").figures["levels[1].count"].value == 8


@pytest.mark.parametrize("name", catalogue())
def test_names_of_the_catalogue_are_themselves(name: str) -> None:
    assert system_for(name) == load_system(name)


@pytest.mark.parametrize("name", devices())
def test_a_device_by_its_name(name: str) -> None:
    assert device_for(name).name == name
    assert named(name).assumed == ""


def test_devices() -> None:
    assert device_for("GH200 96GB").host_memory_bytes == 480e9
    assert device_for("Alps GH200").host_memory_bytes == 120e9


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("h10", "did you mean h100 or h20?"),
        ("H1000", "did you mean h100 or v100?"),
        ("MI300", "did you mean mi300x?"),
        ("L40", "did you mean l40s?"),
        ("", "there is a10, a100-pcie, "),
        ("TPU v5p-256", "there is a10, a100-pcie, "),
    ],
)
def test_unknown_devices_are_refused(text: str, remedy: str) -> None:
    with pytest.raises(HardwareError) as caught:
        system_for(text)
    assert f"1. {text!r}: names no device of the catalogue; {remedy}" in str(caught.value)


def test_a_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    text = (files("rpeg.hardware") / "catalog" / "systems" / "l40s.toml").read_text("utf-8")
    for name in ("one", "two"):
        path.write_text(text.replace('name = "l40s"', f'name = "{name}"'))
        assert system_for(f"{path}:16").name == f"{name}:16"
