"""Weights of mixtures split over ranks: every element is somewhere, and no device holds what it should not."""

from __future__ import annotations

from collections import Counter

import pytest

from rpeg.plan.layout import box_of, num_elements
from rpeg.plan.mesh import num_ranks
from rpeg.plan.plan import Layout, Mesh
from rpeg.shapes.catalog import shape_of
from rpeg.shapes.parameters import num_parameters, tensors

TENSOR = (("heads", "tp"), ("kv_heads", "tp"), ("ffn", "tp"), ("shared_ffn", "tp"), ("vocabulary", "tp"))


def _held(name: str, shard: tuple[tuple[str, str], ...], *axes: tuple[str, int]) -> list[Counter[str]]:
    mesh, layout = Mesh("m", "node[0]", axes), Layout("m", shard)
    found = [Counter[str]() for _ in range(num_ranks(mesh))]
    for rank, held in enumerate(found):
        for tensor in tensors(shape_of(name)):
            if (box := box_of(tensor, layout, mesh, rank)) is not None:
                held[tensor.name] += num_elements(box)
    return found


@pytest.mark.parametrize(
    "name", ["Qwen2.5-7B", "GPT-NeoX-20B", "Qwen3-30B-A3B", "Llama-4-Maverick", "Qwen3-Next-80B-A3B"]
)
def test_a_pipeline_holds_every_layer_once(name: str) -> None:
    assert sum(held.total() for held in _held(name, (("layers", "pp"),), ("pp", 2))) == num_parameters(shape_of(name))


def test_experts_over_ranks() -> None:
    whole = {tensor.name: tensor.num_elements for tensor in tensors(shape_of("Qwen3-30B-A3B"))}
    for held in _held("Qwen3-30B-A3B", (*TENSOR, ("experts", "ep")), ("ep", 8), ("tp", 4)):
        assert held["experts.up"] == whole["experts.up"] // 8
        assert held["q"] == whole["q"] // 4
        assert held["norm1"] == whole["norm1"]


def test_ordinary_layers_are_with_the_first_stage() -> None:
    first, second = _held("DeepSeek-V2-Lite", (("layers", "pp"),), ("pp", 2))
    assert first["up"] == 2048 * 10944
    assert "up" not in second
    assert first["experts.up"] == second["experts.up"] == 13 * 64 * 2048 * 1408


def test_latent_vectors_are_not_split() -> None:
    held = _held("DeepSeek-V3", TENSOR, ("tp", 8))[0]
    assert held["kv.down"] == 61 * 7168 * 576
    assert held["kv.up"] == 61 * 16 * 256 * 512
