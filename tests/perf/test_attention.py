from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.perf.attention import (
    AttentionConstants,
    AttentionFigures,
    Heads,
    attended_pairs,
    decode_s,
    narrowness,
    prefill_s,
)

FIGURES = AttentionFigures(best_flops=1e15, bytes_per_s=1e12, processors=100)
CONSTANTS = AttentionConstants(0.0, 0.5, 2.0, 0.0, 0.5, 0.0, 0.0, cache_speed=3.0)
HEADS = Heads(32.0, 8.0, 128.0, 128.0)


@pytest.mark.parametrize(("length", "prefix", "window"), [(7, 0, None), (7, 5, None), (7, 0, 3), (7, 5, 3), (2, 9, 50)])
def test_pairs_are_counted_as_one_would_by_hand(length: int, prefix: int, window: int | None) -> None:
    counted = sum(min(position + 1, window or 10**9) for position in range(prefix, prefix + length))
    # Every token sees half of itself here: the formula is the area under the diagonal.
    found = float(attended_pairs(float(length), float(length + prefix), window))
    assert found == pytest.approx(counted - length / 2, abs=length / 2)


def test_many_pairs_keep_all_processors_busy() -> None:
    pairs = 8192.0**2 / 2 + 8192 * 64
    flops = 4 * 16 * 32 * 128 * pairs
    moved_s = 16 * 8192 * (2 * 32 * 256 + 3 * 8 * 256) * 2 / 1e12
    assert prefill_s(16.0, 8192.0, 8192.0, HEADS, FIGURES, CONSTANTS) == pytest.approx(flops / 5e14 + moved_s, rel=1e-3)


def test_one_head_waits_for_its_longest_block() -> None:
    constants = replace(CONSTANTS, query_passes=0.0)
    one, two = (
        prefill_s(1.0, 1024.0, 1024.0, Heads(heads, 0.0, 128.0, 128.0), FIGURES, constants) for heads in (1.0, 2.0)
    )
    assert two / one < 1.02  # the second head runs beside the first
    assert one == pytest.approx(512 * 128 * 1024 / (5e14 / 100), rel=0.02)


def test_decoding_reads_the_cache() -> None:
    num_bytes = 64 * 2000 * 8 * 256 * 2
    assert decode_s(64.0, 2000.0, HEADS, FIGURES, CONSTANTS) == pytest.approx(num_bytes / 0.5e12)
    assert decode_s(64.0, 2000.0, HEADS, FIGURES, CONSTANTS, item_bytes=1.0) == pytest.approx(num_bytes / 1e12)


def test_a_window_bounds_what_is_read() -> None:
    near = replace(HEADS, window=128.0)
    assert decode_s(64.0, 2000.0, near, FIGURES, CONSTANTS) == decode_s(64.0, 128.0, HEADS, FIGURES, CONSTANTS)


def test_fixed_parts_of_decoding_add_up() -> None:
    constants = AttentionConstants(0.0, 0.5, 2.0, 1e-5, 0.5, 1e-6, 2e-6)
    read_s = decode_s(100.0, 1024.0, HEADS, FIGURES, CONSTANTS)
    # Three doublings from 128 to 1024, and 100 sequences times 8 heads on 100 processors.
    assert decode_s(100.0, 1024.0, HEADS, FIGURES, constants) == pytest.approx(read_s + 1e-5 + 3e-6 + 16e-6)


def test_what_is_read_again_comes_from_the_cache_if_it_fits() -> None:
    near = replace(FIGURES, cache_bytes=1e9)
    assert decode_s(1.0, 1000.0, HEADS, near, CONSTANTS) == pytest.approx(
        decode_s(1.0, 1000.0, HEADS, FIGURES, CONSTANTS) / 3
    )
    far = replace(FIGURES, cache_bytes=1e3)
    assert decode_s(1.0, 1000.0, HEADS, far, CONSTANTS) == pytest.approx(
        decode_s(1.0, 1000.0, HEADS, FIGURES, CONSTANTS)
    )


def test_latent_attention_reads_one_vector_and_computes_much() -> None:
    latent = Heads(128.0, 1.0, 576.0, 512.0, is_shared=True)
    assert latent.kept_size == 576
    assert latent.pair_flops() == 2 * 128 * (576 + 512)
    slow = replace(FIGURES, best_flops=1e13)
    assert decode_s(8.0, 1000.0, latent, slow, CONSTANTS) == pytest.approx(8 * 1000 * 2 * 128 * 1088 / 5e12)


def test_arrays_are_taken_element_by_element() -> None:
    rows = np.array([1.0, 64.0])
    assert np.shape(prefill_s(rows, 512.0, 512.0, HEADS, FIGURES, CONSTANTS)) == (2,)
    assert np.shape(decode_s(rows[:, None], np.array([128.0, 256.0, 512.0]), HEADS, FIGURES, CONSTANTS)) == (2, 3)


@given(length=st.floats(1, 1e5), more=st.floats(1, 4), window=st.none() | st.floats(1, 1e5))
def test_longer_never_takes_less(length: float, more: float, window: float | None) -> None:
    heads = replace(HEADS, window=window)
    for price in (
        lambda tokens: prefill_s(2.0, tokens, tokens, heads, FIGURES, CONSTANTS),
        lambda tokens: decode_s(2.0, tokens, heads, FIGURES, CONSTANTS),
    ):
        assert price(length * more) >= price(length) * (1 - 1e-9) > 0


def test_pairs_of_narrow_heads_wait_for_exponentials() -> None:
    # 1e15 / 100 / (4 · 24e9): an exponential takes as long as 104 channels.
    exponential = 1e15 / 100 / (4 * 24e9)
    expected = ((64**3 + exponential**3) / (128**3 + exponential**3)) ** (1 / 3) * 128 / 64
    assert narrowness(Heads(8.0, 8.0, 64.0, 64.0), FIGURES) == pytest.approx(expected)
    assert narrowness(Heads(8.0, 8.0, 128.0, 128.0), FIGURES) == 1.0
    wide, narrow = (
        prefill_s(8.0, 8192.0, 8192.0, Heads(h, h, d, d), FIGURES, CONSTANTS) for h, d in ((8, 128), (16, 64))
    )
    assert narrow > 1.1 * wide  # as many channels in all, twice as many exponentials
