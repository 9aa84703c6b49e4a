"""Lists of nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.errors import HardwareError
from rpeg.hardware.nodes import natural_order, node_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n7", ["n7"]),
        ("n1,n2", ["n1", "n2"]),
        ("n1 n2\nn3, n4,", ["n1", "n2", "n3", "n4"]),
        ("nid[001000-001003,001010]", ["nid001000", "nid001001", "nid001002", "nid001003", "nid001010"]),
        ("n[08-10]x", ["n08x", "n09x", "n10x"]),
        ("n[0-8/4]", ["n0", "n4", "n8"]),
        ("n[0-9:4]", ["n0", "n4", "n8"]),
        ("r[1-2]n[1-2],login-1.site", ["r1n1", "r1n2", "r2n1", "r2n2", "login-1.site"]),
        ("n[1,3[0-1],4]", ["n1", "n30", "n31", "n4"]),
        ("n[2-2]", ["n2"]),
    ],
)
def test_lists(text: str, names: list[str]) -> None:
    assert list(node_names(text)) == names


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("n[1-3", "opens a bracket at position 1 and does not close it"),
        ("a,n[1,[2", "opens a bracket at position 6 and does not close it"),
        ("n1]", "has ']' at position 2"),
        ("n[1]],n2", "has ']' at position 4"),
        ("n[]", "has empty brackets at position 1"),
        ("n[3-1]", "has the empty range 3-1 at position 2"),
        ("n[1-3/0]", "has the empty range 1-3/0 at position 2"),
        ("n[1-]", "has '-' at position 3"),
        ("n[a-b]", "has '-' at position 3"),
        ("n1;n2", "has ';' at position 2"),
        ("", "names no node"),
        (" , ", "names no node"),
        ("n[1-999999999]", "names more than 100,000 nodes at position 2"),
        ("a[1-9999]b[1-9999]", "names more than 100,000 nodes at position 0"),
        ("a[1-60000],b[1-60000]", "names more than 100,000 nodes"),
    ],
)
def test_what_is_no_list(text: str, fault: str) -> None:
    with pytest.raises(HardwareError) as caught:
        node_names(text)
    assert str(caught.value) == f"nodes: 1 fault\n  1. {text!r}: {fault}; write nid[001000-001003,001010],n7"


def test_nodes_that_are_there_twice() -> None:
    with pytest.raises(HardwareError) as caught:
        node_names("n[1-3,2],n1")
    assert str(caught.value) == (
        "nodes: 2 faults\n  1. n1: is there twice; name every node once\n  2. n2: is there twice; name every node once"
    )


def test_natural_order() -> None:
    assert sorted(["n10", "n2", "m1", "n2a"], key=natural_order) == ["m1", "n2", "n2a", "n10"]


@given(st.sets(st.integers(0, 9999), min_size=1))
def test_ranges_say_the_same_as_names(numbers: set[int]) -> None:
    """As Slurm would fold them: neighbours become a range."""
    spans, ordered = list[list[int]](), sorted(numbers)
    for number in ordered:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    folded = ",".join(f"{first:04d}-{last:04d}" if last > first else f"{first:04d}" for first, last in spans)
    assert list(node_names(f"nid[{folded}]")) == [f"nid{number:04d}" for number in ordered]
