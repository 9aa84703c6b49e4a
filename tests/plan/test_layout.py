"""Which box of a tensor a rank holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plan.models import QWEN_7B, TOY

from rpeg.plan.layout import Box, box_of, degrees, holders, intersection, num_elements
from rpeg.plan.plan import Layout, Mesh
from rpeg.shapes.tensor import End, Tensor

MESH = Mesh("trn", "rack", (("pp", 2), ("dp", 3), ("tp", 2)))
SPLIT = (("layers", "pp"), ("heads", "tp"), ("kv_heads", "tp"), ("vocabulary", "tp"))
W, K, EMBEDDING, HEAD, SCALE = TOY


def test_parameters_of_the_models() -> None:
    assert sum(tensor.num_elements for tensor in QWEN_7B) == 7_615_616_512
    assert sum(tensor.num_elements for tensor in TOY) == 4 * 4 * 6 + 4 * 2 * 6 + 2 * 48 + 6


def test_splits_by_part() -> None:
    layout = Layout("trn", SPLIT)
    assert degrees(layout, MESH) == {"layers": 2, "heads": 2, "kv_heads": 2, "vocabulary": 2}
    assert box_of(W, layout, MESH, 0) == ((0, 2), (0, 2), (0, 6))
    assert box_of(W, layout, MESH, 7) == ((2, 4), (2, 4), (0, 6))  # pp 1, dp 0, tp 1
    assert box_of(SCALE, layout, MESH, 7) == ((0, 6),)


def test_ends_of_a_pipeline() -> None:
    layout = Layout("trn", SPLIT)
    assert [box_of(EMBEDDING, layout, MESH, rank) for rank in (1, 6)] == [((4, 8), (0, 6)), None]
    assert [box_of(HEAD, layout, MESH, rank) for rank in (1, 6)] == [None, ((0, 4), (0, 6))]
    tied = Tensor("tied", EMBEDDING.parts, End.BOTH)
    three = Mesh("m", "rack", (("pp", 3),))
    assert [box_of(tied, Layout("m", (("layers", "pp"),)), three, rank) is None for rank in range(3)] == [
        *(False, True, False)
    ]
    assert box_of(HEAD, Layout("m"), three, 0) == ((0, 8), (0, 6))  # nothing is split, so everybody holds all


def test_zero_3_splits_what_is_no_layer_over_data_parallel_ranks() -> None:
    """FSDP cuts each tensor along its first dimension; of 4 heads, 3 ranks get 2, 2 and none."""
    layout = Layout("m", (), 3)
    mesh = Mesh("m", "rack", (("dp", 3),))
    assert [box_of(W, layout, mesh, rank) for rank in range(3)] == [
        *(((0, 4), (0, 2), (0, 6)), ((0, 4), (2, 4), (0, 6)), None)
    ]
    assert box_of(W, Layout("m", (), 2), mesh, 0) == ((0, 4), (0, 4), (0, 6))


def test_one_part_over_two_axes() -> None:
    layout, mesh = Layout("m", (("experts", "ep"), ("experts", "tp"))), Mesh("m", "rack", (("ep", 2), ("tp", 2)))
    experts = Tensor("experts", (("experts", 8), ("ffn", 4)))
    assert degrees(layout, mesh) == {"experts": 4}
    assert [box_of(experts, layout, mesh, rank) for rank in range(4)] == [
        *(((0, 2), (0, 4)), ((2, 4), (0, 4)), ((4, 6), (0, 4)), ((6, 8), (0, 4)))
    ]


def test_where_there_are_fewer_kv_heads_than_ranks_neighbours_hold_the_same() -> None:
    layout, mesh = Layout("m", (("kv_heads", "tp"),)), Mesh("m", "rack", (("tp", 8),))
    assert holders(K, layout, mesh) == {
        ((0, 4), (0, 1), (0, 6)): [0, 1, 2, 3],
        ((0, 4), (1, 2), (0, 6)): [4, 5, 6, 7],
    }


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (((0, 4), (0, 4)), ((2, 6), (1, 3)), ((2, 4), (1, 3))),
        (((0, 2), (0, 4)), ((2, 4), (0, 4)), None),
        (((0, 2),), ((0, 2),), ((0, 2),)),
    ],
)
def test_intersection(a: Box, b: Box, expected: Box | None) -> None:
    assert intersection(a, b) == intersection(b, a) == expected


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from([1, 2, 3]), st.sampled_from([0, 3]))
def test_boxes_are_equal_or_apart_and_cover_everything(pp: int, tp: int, dp: int, zero: int) -> None:
    mesh = Mesh("m", "rack", (("pp", pp), ("dp", dp), ("tp", tp)))
    for tensor in TOY:
        boxes = list(holders(tensor, Layout("m", SPLIT, zero), mesh))
        assert sum(map(num_elements, boxes)) == tensor.num_elements
        assert all(intersection(a, b) is None for a in boxes for b in boxes if a != b)
