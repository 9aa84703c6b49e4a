"""Meshes on a machine: ranks, groups, links, and what meshes share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.hardware.catalog import load_system
from rpeg.plan.mesh import axis_groups, axis_link, coordinates, meshes_of, num_ranks, places, resource_name, resources
from rpeg.plan.plan import Mesh

ALPS = load_system("alps:1024")  # 4 racks of 64 nodes of 4
THREE = Mesh("trn", "rack[0].node[0:6]", (("pp", 2), ("dp", 3), ("tp", 4)))


def test_ranks_follow_the_tree() -> None:
    assert num_ranks(THREE) == 24
    assert places(THREE, ALPS) == tuple(range(24))
    assert places(Mesh("m", "rack[0].node[0:2].gpu[2:4]"), ALPS) == (2, 3, 6, 7)
    assert [coordinates(THREE, rank) for rank in (0, 5, 23)] == [
        {"pp": 0, "dp": 0, "tp": 0},
        {"pp": 0, "dp": 1, "tp": 1},
        {"pp": 1, "dp": 2, "tp": 3},
    ]


def test_groups_that_communicate() -> None:
    """Neighbours for the last axis, strides for those before."""
    assert [list(group) for group in axis_groups(THREE, "tp")][:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [list(group) for group in axis_groups(THREE, "dp")][:2] == [[0, 4, 8], [1, 5, 9]]
    assert [list(group) for group in axis_groups(THREE, "dp")][4] == [12, 16, 20]
    assert [list(group) for group in axis_groups(THREE, "pp")][11] == [11, 23]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_groups_of_an_axis_are_the_ranks_that_differ_in_it_alone(sizes: list[int]) -> None:
    mesh = Mesh("m", "rack", tuple((f"a{i}", size) for i, size in enumerate(sizes)))
    for axis in mesh.sizes:
        groups = list(axis_groups(mesh, axis))
        assert sorted(rank for group in groups for rank in group) == list(range(num_ranks(mesh)))
        for group in groups:
            found = [coordinates(mesh, rank) for rank in group]
            assert [where.pop(axis) for where in found] == list(range(mesh.sizes[axis]))
            assert all(where == found[0] for where in found)


@pytest.mark.parametrize(
    ("where", "axes", "expected"),
    [
        ("rack[0].node[0:2]", (("dp", 2), ("tp", 4)), {"dp": "slingshot", "tp": "nvlink"}),
        ("rack[0].node[0:2]", (("dp", 1), ("tp", 8)), {"dp": None, "tp": "slingshot"}),
        ("rack[0:2].node[0]", (("dp", 2), ("tp", 4)), {"dp": "dragonfly", "tp": "nvlink"}),
        ("rack[0].node[0:3].gpu[0:2]", (("dp", 2), ("tp", 3)), {"dp": "slingshot", "tp": "slingshot"}),
    ],
)
def test_the_slowest_link_of_an_axis(where: str, axes: tuple[tuple[str, int], ...], expected: dict[str, str]) -> None:
    mesh = Mesh("m", where, axes)
    links = {axis: axis_link(mesh, axis, ALPS) for axis in mesh.sizes}
    assert {axis: link and link.name for axis, link in links.items()} == expected


def test_meshes_apart_are_their_own_resources() -> None:
    meshes = [Mesh("roll", "rack[0].node[0]"), Mesh("trn", "rack[0].node[1]"), Mesh("host", "rack[0].node[0:2].host")]
    assert resources(meshes, ALPS) == {"roll": (0, 1, 2, 3), "trn": (4, 5, 6, 7), "host": (1024, 1025)}


def test_what_meshes_share() -> None:
    meshes = [
        Mesh("trn", "rack[0].node[0:2]"),
        Mesh("gen", "rack[0].node[1:3]"),
        Mesh("ref", "rack[0].node[1].gpu[0]"),
    ]
    assert resources(meshes, ALPS) == {
        "trn": (0, 1, 2, 3),
        "gen&ref&trn": (4,),
        "gen&trn": (5, 6, 7),
        "gen": (8, 9, 10, 11),
    }
    assert meshes_of("gen&ref&trn") == ("gen", "ref", "trn")
    assert resource_name(["trn", "gen"]) == "gen&trn"


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 8)), min_size=1, max_size=4))
def test_resources_part_the_places_by_the_meshes_they_belong_to(spans: list[tuple[int, int]]) -> None:
    meshes = [Mesh(f"m{i}", f"rack[0].node[{a}:{a + n}].gpu[0]") for i, (a, n) in enumerate(spans)]
    found = resources(meshes, ALPS)
    everything = [place for shared in found.values() for place in shared]
    assert len(everything) == len(set(everything))
    for mesh in meshes:
        mine = [place for name, shared in found.items() if mesh.name in meshes_of(name) for place in shared]
        assert sorted(mine) == sorted(places(mesh, ALPS))
