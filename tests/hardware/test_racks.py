"""Which node is in which rack."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpeg.errors import HardwareError
from rpeg.hardware.racks import numbered, read_racks, read_racks_csv, read_racks_toml, read_topology_conf

TOPOLOGY = """
# two racks of a row, one of another
SwitchName=r0 Nodes=n[0-3] LinkSpeed=1
SwitchName=r1 Nodes=n[4-5],\\
n7
switchname=r2 nodes=n[8-9]
SwitchName=row0 Switches=r[0-1]
SwitchName=row1 Switches=r2
"""


def test_numbered_nodes() -> None:
    rule = numbered(112, first=1000)
    assert [rule.of(node) for node in ("nid001000", "nid001111", "nid001112", "nid000999", "login")] == [
        *(("0",), ("0",), ("1",), None, None)
    ]


def test_topology_conf() -> None:
    racks = read_topology_conf(TOPOLOGY, "topology.conf")
    assert [racks.of(node) for node in ("n0", "n5", "n7", "n9", "n6")] == [
        *(("row0", "r0"), ("row0", "r1"), ("row0", "r1"), ("row1", "r2"), None)
    ]


def test_blocks() -> None:
    racks = read_topology_conf(
        "BlockName=b1 Nodes=n[1-18]\nBlockName=b2 Nodes=n[19-36]\nBlockSizes=18", "topology.conf"
    )
    assert (racks.of("n18"), racks.of("n19")) == (("b1",), ("b2",))


def test_toml() -> None:
    racks = read_racks_toml('[racks]\nx1 = "n[0-1]"\nx2 = "n[2-3]"', "racks.toml")
    assert [racks.of(f"n{i}") for i in range(5)] == [("x1",), ("x1",), ("x2",), ("x2",), None]
    both = read_racks_toml('[numbered]\nnodes_per_rack = 4\n[racks]\nspare = "n1"', "racks.toml")
    assert (both.of("n1"), both.of("n2"), both.of("n4")) == (("spare",), ("0",), ("1",))


def test_csv() -> None:
    racks = read_racks_csv('row,rack,node\na,1,n0\na,2,"n[1-2]"\n\nb,1,n3\n', "racks.csv")
    assert [racks.of(f"n{i}") for i in range(4)] == [("a", "a/1"), ("a", "a/2"), ("a", "a/2"), ("b", "b/1")]


def test_files(tmp_path: Path) -> None:
    for name, text in (("t.conf", TOPOLOGY), ("t.toml", '[racks]\nr0 = "n0"'), ("t.csv", "rack,node\nr0,n0")):
        (tmp_path / name).write_text(text)
        found = read_racks(tmp_path / name).of("n0")
        assert found is not None
        assert found[-1] == "r0"
    with pytest.raises(HardwareError, match=r"file: ends in '.txt'; one of .conf, .toml, .csv"):
        read_racks(tmp_path / "t.txt")
    with pytest.raises(HardwareError, match=r"file: cannot be read \("):
        read_racks(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (
            "SwitchName=a Nodes=n[0-1]\nSwitchName=b Nodes=n1",
            ["line 2: puts n1 into b, it is in a; a node is in one rack"],
        ),
        ("SwitchName=a Nodes=n[0-", ["line 1: 'n[0-': "]),
        ("Nodes=n0", ["line 1: names no switch with what is below it"]),
        ("SwitchName=a", ["line 1: names no switch with what is below it"]),
        ("SwitchName=a Node=n0", ["line 1: has node", "line 1: names no switch"]),
        (
            "SwitchName=a Switches=c\nSwitchName=b Switches=c",
            ["line 2: puts c below b, it is below a; keep one of them"],
        ),
        (
            "SwitchName=a Nodes=n0\nSwitchName=b Switches=a\nSwitchName=a Switches=b",
            ["line 1: has a above itself; switches form a tree"],
        ),
    ],
)
def test_faults_of_a_topology(text: str, faults: list[str]) -> None:
    with pytest.raises(HardwareError) as caught:
        read_topology_conf(text, "topology.conf")
    assert len(caught.value.faults) == len(faults)
    for found, expected in zip(caught.value.faults, faults, strict=True):
        assert str(found).startswith(expected)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("racks =", "file: is not TOML ("),
        ("", "file: has no racks; write [racks] or [numbered]"),
        ("[rack]\na = 'n1'", "rack: is unknown; write [racks] or [numbered]"),
        ("[racks]\na = 1", "racks.a: is 1; write a list of nodes"),
        ("[racks]\na = ['n1']", "racks.a: is ['n1']; write a list of nodes"),
        ("[racks]\na = 'n1'\nb = 'n1'", "racks.b: puts n1 into b, it is in a; a node is in one rack"),
        ("[numbered]\nper_rack = 1", "numbered.per_rack: is unknown; write nodes_per_rack"),
        ("[numbered]\nnodes_per_rack = 1.5", "numbered: has 1.5 nodes per rack from 0; write whole numbers"),
    ],
)
def test_faults_of_a_toml_file(text: str, fault: str) -> None:
    with pytest.raises(HardwareError) as caught:
        read_racks_toml(text, "racks.toml")
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "line 1: is ''; write rack,node"),
        ("node,rack\nn1,r1", "line 1: is 'node,rack'; write rack,node"),
        ("rack,node\nr1", "line 2: has 'r1'; give rack,node"),
        ("rack,node\n,n1", "line 2: has ',n1'; give rack,node"),
        ("rack,node\nr1,n1\nr2,n1", "line 3: puts n1 into r2, it is in r1; a node is in one rack"),
        ("rack,node\nr1,n[", "line 2: 'n['"),
    ],
)
def test_faults_of_a_csv_file(text: str, fault: str) -> None:
    with pytest.raises(HardwareError) as caught:
        read_racks_csv(text, "racks.csv")
    assert fault in str(caught.value)
