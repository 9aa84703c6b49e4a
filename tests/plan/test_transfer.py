"""Tile plans: who sends which slice to whom, and over which links."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.models import QWEN_7B, TOY

from rpeg.algorithms.grpo import grpo
from rpeg.hardware.catalog import load_system
from rpeg.plan.bind import bind_local
from rpeg.plan.layout import box_of
from rpeg.plan.plan import Layout, Mesh, Method, Transfer
from rpeg.plan.shipments import reshards
from rpeg.plan.transfer import TilePlan, gap, tile_plan, tile_plan_of
from rpeg.shapes.tensor import Tensor

ALPS = load_system("alps:64")  # 16 nodes of 4
SQUARE = (Tensor("w", (("rows", 8), ("columns", 8))),)  # 256 bytes in float32
BY_TENSOR = (("heads", "tp"), ("kv_heads", "tp"), ("ffn", "tp"), ("vocabulary", "tp"))


def mesh(name: str, where: str, **axes: int) -> Mesh:
    return Mesh(name, f"rack[0].{where}", tuple(axes.items()))


def test_fully_sharded_to_tensor_parallel_on_the_same_four_devices() -> None:
    """Each holds 2 rows of 8 and wants 4 columns of all rows: 8 of its 32 elements are there, 24 come from 3 others."""
    here = mesh("trn", "node[0]", dp=4)
    there = mesh("gen", "node[0]", dp=2, tp=2)
    plan = tile_plan(SQUARE, (Layout("trn", (), 3), here), (Layout("gen", (("columns", "tp"),)), there), ALPS)
    assert len(plan.sent) == 12
    assert {message.num_bytes for message in plan.messages} == {8 * 4}
    assert plan.bytes_in_place == 4 * 32
    assert plan.bytes_by_link == {"nvlink": 12 * 32}
    assert (plan.most_sent_bytes, plan.most_received_bytes) == (96, 96)


def test_the_nearest_replica_sends() -> None:
    """Both source nodes hold everything; each destination node has one of them for a neighbour."""
    here = mesh("trn", "node[0:2].gpu[0:2]", dp=4)
    there = mesh("gen", "node[0:2].gpu[2:4]", dp=4)
    plan = tile_plan(SQUARE, (Layout("trn"), here), (Layout("gen"), there), ALPS)
    assert [(message.src, message.dst) for message in plan.sent] == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert plan.bytes_by_link == {"nvlink": 4 * 256}
    assert plan.most_sent_bytes == 256


def test_replicas_equally_near_share_the_work() -> None:
    here = mesh("trn", "node[0]", dp=4)
    there = mesh("gen", "node[1:3]", dp=8)
    plan = tile_plan(SQUARE, (Layout("trn"), here), (Layout("gen"), there), ALPS)
    assert sorted(message.src for message in plan.sent) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (plan.most_sent_bytes, plan.most_received_bytes) == (2 * 256, 256)
    assert plan.bytes_by_link == {"slingshot": 8 * 256}


def test_the_same_layout_elsewhere_is_not_free() -> None:
    here, there = mesh("trn", "node[0]", tp=4), mesh("gen", "node[1]", tp=4)
    plan = tile_plan(SQUARE, (Layout("trn", (("rows", "tp"),)), here), (Layout("gen", (("rows", "tp"),)), there), ALPS)
    assert plan.bytes_by_link == {"slingshot": 256}
    in_place = tile_plan(
        SQUARE, (Layout("trn", (("rows", "tp"),)), here), (Layout("trn", (("rows", "tp"),)), here), ALPS
    )
    assert (in_place.bytes_by_link, in_place.bytes_in_place) == ({}, 256)


@pytest.mark.parametrize(
    ("src", "dst", "sent", "item_bytes"),
    [
        ("float32", "float32", None, 4),
        ("float32", "bfloat16", None, 2),
        ("bfloat16", "float32", None, 2),
        ("float32", "bfloat16", "float8", 1),
    ],
)
def test_what_both_ends_know_is_sent(src: str, dst: str, sent: str | None, item_bytes: int) -> None:
    here, there = mesh("trn", "node[0].gpu[0]", dp=1), mesh("gen", "node[0].gpu[1]", dp=1)
    plan = tile_plan(SQUARE, (Layout("trn", dtype=src), here), (Layout("gen", dtype=dst), there), ALPS, dtype=sent)
    assert plan.bytes_by_link == {"nvlink": 64 * item_bytes}


def test_gathering_sends_everything_through_one() -> None:
    """Three quarters come to the first device; it sends the whole to three more there and to four next door."""
    here, there = mesh("trn", "node[0]", dp=4), mesh("gen", "node[0:2]", dp=2, tp=4)
    dst = Layout("gen", (("columns", "tp"),))
    plan = tile_plan(SQUARE, (Layout("trn", (), 3), here), (dst, there), ALPS, Method.GATHER)
    assert plan.bytes_by_link == {"nvlink": 192 + 3 * 256, "slingshot": 4 * 256}
    assert plan.most_sent_bytes == 7 * 256


def test_weights_of_a_7b_model_from_training_to_sampling() -> None:
    """32 replicas of 15.2 GB in bfloat16 arrive; every training device sends about as much as any other."""
    src = (Layout("trn", (("layers", "pp"), *BY_TENSOR)), mesh("trn", "node[0:8]", pp=4, dp=2, tp=4))
    dst = (Layout("gen", BY_TENSOR, dtype="bfloat16"), mesh("gen", "node[8:16]", dp=16, tp=2))
    plan = tile_plan(QWEN_7B, src, dst, ALPS)
    assert plan.bytes_by_link == {"slingshot": 16 * _bytes_of_a_replica()}
    assert plan.most_received_bytes == _bytes_of_a_replica() // 2
    assert plan.most_sent_bytes * 32 < 1.3 * 16 * _bytes_of_a_replica()


def _bytes_of_a_replica() -> int:
    """Norms are on both tensor parallel ranks, everything else on one."""
    whole = sum(tensor.num_elements for tensor in QWEN_7B if not tensor.name.startswith("norm"))
    return 2 * (whole + 2 * sum(tensor.num_elements for tensor in QWEN_7B if tensor.name.startswith("norm")))


def test_the_tile_plan_of_a_transfer_of_a_plan() -> None:
    """The pull of a split plan, as the plan says it is sent."""
    graph = grpo(64, 8, 1)
    plan = bind_local(graph)
    meshes = (mesh("roll", "node[0].gpu[0]", dp=1), mesh("trn", "node[1].gpu[0]", dp=1), plan.mesh_named["host"])
    plan = replace(plan, meshes=meshes, transfers=(Transfer("actor.staged", "pull", Method.GATHER, dtype="float8"),))
    (shipment,) = reshards(graph, plan)
    found = tile_plan_of(plan, shipment, {"actor": SQUARE}, "actor", ALPS)
    assert found.bytes_by_link == {"slingshot": 64}
    plain = replace(shipment, how=None)
    assert tile_plan_of(plan, plain, {"actor": SQUARE}, "actor", ALPS).bytes_by_link == {"slingshot": 256}


def arrived(plan: TilePlan, tensors: tuple[Tensor, ...]) -> dict[tuple[int, str], np.ndarray]:
    """Carry every slice of a numbered tensor to its destination; what came twice, or never, shows."""
    wholes = {tensor.name: np.arange(tensor.num_elements).reshape(tensor.shape) for tensor in tensors}
    found: dict[tuple[int, str], np.ndarray] = {}
    for message in plan.messages:
        for piece in message.slices:
            window = tuple(slice(*span) for span in piece.box)
            copy = found.setdefault((message.dst, piece.tensor), np.full(wholes[piece.tensor].shape, -1))
            assert (copy[window] == -1).all(), "came twice"
            copy[window] = wholes[piece.tensor][window]
    return found


LAYOUTS = st.tuples(
    st.sampled_from([1, 2]), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2]), st.sampled_from([0, 3])
)
SPLIT = (("layers", "pp"), *BY_TENSOR)


@settings(max_examples=60)
@given(LAYOUTS, LAYOUTS, st.sampled_from(list(Method)))
def test_every_tile_is_complete(src: tuple[int, ...], dst: tuple[int, ...], method: Method) -> None:
    ends = []
    for name, (pp, dp, tp, zero), first in (("trn", src, 0), ("gen", dst, 1)):
        size = pp * dp * tp
        where = mesh(name, f"node[{first}:{first + size}].gpu[0]", pp=pp, dp=dp, tp=tp)  # the two overlap mostly
        ends.append((Layout(name, SPLIT, zero), where))
    plan = tile_plan(TOY, ends[0], ends[1], ALPS, method)
    found = arrived(plan, TOY)
    layout, there = ends[1]
    for rank, tensor in product(range(len(found)), TOY):
        box = box_of(tensor, layout, there, rank) if rank < dst[0] * dst[1] * dst[2] else None
        if box is not None:
            window = tuple(slice(*span) for span in box)
            whole = np.arange(tensor.num_elements).reshape(tensor.shape)
            np.testing.assert_array_equal(found[4 * (1 + rank), tensor.name][window], whole[window])
    assert plan.bytes_in_place + sum(plan.bytes_by_link.values()) == sum(m.num_bytes for m in plan.messages)


@pytest.mark.parametrize(("a", "b", "expected"), [(0, 0, 0), (0, 1, 1), (0, 4, 2), (0, 64, 1), (0, 65, 2)])
def test_gaps(a: int, b: int, expected: int) -> None:
    """64 is the host of the first node, 65 that of the second."""
    assert gap(ALPS, a, b) == gap(ALPS, b, a) == expected
