"""Shapes from the columns of tables, which are seldom all filled."""

from __future__ import annotations

import pytest

from rpeg.shapes.columns import nearest_by_size, shape_from_columns
from rpeg.shapes.model import ModelShape, Norm
from rpeg.shapes.parameters import num_parameters

COLUMNS = ("model", "params_b", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "moe_experts", "moe_topk")


def _shape(*values: object, **more: str) -> ModelShape:
    found = shape_from_columns({**dict(zip(COLUMNS, map(str, values), strict=False)), **more})
    assert found is not None
    return found


def test_a_known_name_fills_what_is_empty() -> None:
    shape = _shape("Nemotron-8B", 8)
    assert (shape.layers, shape.vocabulary, shape.is_gated) == (32, 256000, False)
    assert not shape.note


def test_columns_are_believed_before_the_name() -> None:
    """The same name, of another table: 2048 wide and 131072 tokens instead of 2304 and 51200."""
    shape = _shape("GPT-1.7B", 1.7, 24, 2048, 16, 16, 8192, 131072, seq_len="4096")
    assert (shape.hidden, shape.is_gated, shape.norm, shape.is_tied) == (2048, False, Norm.LAYER, False)
    assert shape.positions == 4096
    assert num_parameters(shape) / 1e9 == pytest.approx(1.7, rel=0.04)


def test_another_vocabulary_is_still_the_same_model() -> None:
    shape = _shape("Llama-3.1-8B", 8.03, 32, 4096, 32, 8, 14336, 128512)
    assert (shape.name, shape.vocabulary) == ("Llama-3.1-8B", 128512)


def test_learned_positions_are_as_many_as_the_sequences_have() -> None:
    short, long = (_shape("MPT-13b", 12.85, 40, 5120, 40, 40, 20480, 50368, seq_len=n) for n in ("512", "8192"))
    assert (short.positions, long.positions) == (512, 8192)
    assert num_parameters(long) - num_parameters(short) == (8192 - 512) * 5120
    assert num_parameters(long) == pytest.approx(12.8854e9, abs=5e4)  # as published, to the last digit
    assert _shape("Qwen3-8B", seq_len="8192").positions == 0


def test_unknown_models_are_gated_and_tied_as_their_parameters_say() -> None:
    small = _shape("Llama-arch 1.34B", 1.34, 16, 2048, 32, "", 8192)
    assert (small.is_tied, small.vocabulary, small.kv_heads) == (True, 131072, 32)
    assert small.note == "vocab assumed"
    large = _shape("Llama-arch 8.86B", 8.86, 32, 4096, 32, "", 14336)
    assert (large.is_tied, large.vocabulary) == (False, 131072)
    plain = _shape("somebody's", 12.86, 40, 5120, 40, 40, 20480, 51200)
    assert (plain.is_gated, plain.norm) == (False, Norm.LAYER)


def test_unknown_mixtures() -> None:
    shape = _shape("new", "", 24, 2048, 16, 4, 1024, 151936, 64, 6)
    assert shape.experts is not None
    assert (shape.experts.count, shape.experts.active, shape.experts.ffn) == (64, 6, 1024)
    assert shape.is_gated


def test_heads_and_widths_that_nobody_states() -> None:
    shape = _shape("new", "", 24, 2048)
    assert (shape.heads, shape.head_size, shape.ffn) == (16, 128, 5632)
    assert shape.note == "heads, ffn, vocab assumed"


def test_a_known_mixture_keeps_what_the_columns_cannot_say() -> None:
    shape = _shape("DeepSeek-V3", 671, 61, 7168, 128, 128, 2048, 129280, 256, 8)
    assert (shape.ffn, shape.experts and shape.experts.dense_layers) == (18432, 3)
    fewer = _shape("Qwen3_30B_a3B", 30.5, 48, 2048, 32, 4, 768, 151936, 128, 4)
    assert fewer.experts is not None
    assert fewer.experts.active == 4


def test_only_a_size_is_flagged() -> None:
    shape = _shape("8B dense", "")
    assert shape.note == "sizes unknown: taken from Llama-3.1-8B"
    assert nearest_by_size(14.5, "mine").name == "mine"
    assert num_parameters(nearest_by_size(70.0)) == 70_553_706_496


def test_nothing_is_nothing() -> None:
    assert shape_from_columns({}) is None
    assert shape_from_columns({"model": "-", "params_b": "unknown", "layers": ""}) is None
