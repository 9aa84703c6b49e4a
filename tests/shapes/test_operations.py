"""Operations and cache bytes: by hand, and how they depend on lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.shapes.catalog import catalogue, shape_of
from rpeg.shapes.operations import (
    FlopsForm,
    absorbed_attention_flops,
    attention_flops,
    causal_flops_per_token,
    flops_per_token,
    kv_bytes,
    kv_bytes_per_token,
    linear_attention_flops,
    matrix_flops_per_token,
    mean_context_tokens,
    model_flops_per_token,
    state_bytes,
)
from rpeg.shapes.parameters import active_parameters

LLAMA = shape_of("Llama-3.1-8B")
OSS = shape_of("GPT-OSS-20B")
V3 = shape_of("DeepSeek-V3")
NEXT = shape_of("Qwen3-Next-80B-A3B")


def test_matrix_products_by_hand() -> None:
    layer = 4096 * (4096 + 1024 + 1024 + 4096) + 3 * 4096 * 14336
    assert matrix_flops_per_token(LLAMA) == 2 * (32 * layer + 4096 * 128256)
    assert matrix_flops_per_token(LLAMA, has_head=False) == 2 * 32 * layer


def test_a_tied_head_is_a_product_too() -> None:
    tied = shape_of("Qwen2.5-0.5B")
    layer = 896 * (896 + 128 + 128 + 896) + 3 * 896 * 4864
    assert matrix_flops_per_token(tied) == 2 * (24 * layer + 896 * 151936)


def test_only_the_experts_that_are_visited() -> None:
    attention = 2048 * (2 * 4096 + 2 * 512)
    layer = attention + 2048 * 128 + 8 * 3 * 2048 * 768
    assert matrix_flops_per_token(shape_of("Qwen3-30B-A3B")) == 2 * (48 * layer + 2048 * 151936)


@pytest.mark.parametrize("name", [name for name in catalogue() if "BLOOM" not in name])
def test_two_per_active_parameter(name: str) -> None:
    shape = shape_of(name)
    looked_up = 0 if shape.is_tied else shape.vocabulary * shape.hidden
    matrices = active_parameters(shape) - looked_up - shape.positions * shape.hidden
    assert matrix_flops_per_token(shape) == pytest.approx(2 * matrices, rel=0.005)


def test_attention_by_hand() -> None:
    assert attention_flops(LLAMA, 100.0) == 4 * 32 * 128 * 100
    assert attention_flops(V3, 100.0) == 2 * 128 * (192 + 128) * 100
    assert absorbed_attention_flops(V3, 100.0) == 2 * 128 * (512 + 64 + 512) * 100
    assert absorbed_attention_flops(LLAMA, 100.0) == attention_flops(LLAMA, 100.0)


def test_a_window_bounds_what_is_seen() -> None:
    base = matrix_flops_per_token(OSS)
    assert flops_per_token(OSS, 1000.0) - base == pytest.approx(12 * 4 * 64 * 64 * (1000 + 128))
    assert flops_per_token(OSS, 100.0) - base == pytest.approx(24 * 4 * 64 * 64 * 100)


def test_causal_is_the_mean_over_the_tokens() -> None:
    each = flops_per_token(OSS, np.arange(1.0, 501.0))
    assert causal_flops_per_token(OSS, 500.0) == pytest.approx(float(np.mean(each)))


@given(st.integers(1, 400), st.integers(1, 400) | st.none())
def test_mean_context_is_the_mean(length: int, window: int | None) -> None:
    seen = np.minimum(np.arange(1, length + 1), window or length)
    assert mean_context_tokens(float(length), window) == pytest.approx(float(np.mean(seen)))


def test_cache_by_hand() -> None:
    assert kv_bytes_per_token(LLAMA) == 131_072
    assert kv_bytes_per_token(LLAMA, item_bytes=1) == 65_536
    assert kv_bytes_per_token(V3) == 576 * 61 * 2
    assert kv_bytes_per_token(NEXT) == 12 * 2 * 2 * 256 * 2
    assert kv_bytes(LLAMA, 1000.0) == 131_072_000
    assert kv_bytes(OSS, 1000.0) == 2 * 8 * 64 * 2 * 12 * (1000 + 128)


def test_states_do_not_grow() -> None:
    assert state_bytes(NEXT) == 36 * (4 * 32 * 128 * 128 + 3 * 8192 * 2)
    assert kv_bytes(NEXT, 2000.0) - kv_bytes(NEXT, 1000.0) == 1000 * kv_bytes_per_token(NEXT)
    assert linear_attention_flops(LLAMA) == 0 == state_bytes(LLAMA)


def test_forms_of_training_operations() -> None:
    gpt = shape_of("GPT-3-175B")
    with_recompute = model_flops_per_token(gpt, 2048.0, FlopsForm.MEGATRON_RECOMPUTED)
    assert with_recompute == pytest.approx(96 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (16 * 96 * 12288)))
    assert model_flops_per_token(gpt, 2048.0, FlopsForm.MEGATRON) / with_recompute == pytest.approx(0.75, rel=0.01)
    assert model_flops_per_token(LLAMA, 4096.0, FlopsForm.PARAMETERS) == pytest.approx(
        6 * 8_030_261_248 + 12 * 32 * 4096 * 4096
    )
    assert model_flops_per_token(LLAMA, 4096.0) == 3 * causal_flops_per_token(LLAMA, 4096.0)


def test_megatron_counts_keys_that_are_masked() -> None:
    """Its form is three forward passes in which every token sees the whole sequence."""
    gpt = shape_of("GPT-3-175B")
    whole = 3 * flops_per_token(gpt, 2048.0)
    assert model_flops_per_token(gpt, 2048.0, FlopsForm.MEGATRON) == pytest.approx(whole, rel=1e-3)


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "GPT-OSS-120B", "DeepSeek-V3", "Qwen3-Next-80B-A3B", "Gemma-3-4B"])
def test_arrays_and_growth(name: str) -> None:
    shape = shape_of(name)
    tokens = np.array([1.0, 10.0, 1e3, 1e5])
    for values in (flops_per_token(shape, tokens), kv_bytes(shape, tokens), causal_flops_per_token(shape, tokens)):
        assert np.all(np.diff(values) > 0)
    assert np.asarray(kv_bytes(shape, tokens))[2] == pytest.approx(float(kv_bytes(shape, 1e3)))
