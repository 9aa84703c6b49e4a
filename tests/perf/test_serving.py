"""What a replica delivers under load."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpeg.hardware.naming import system_for
from rpeg.perf.decode import Chunk, decode_s, prefill_s
from rpeg.perf.engine import Engine, engine_for
from rpeg.perf.serving import at_rate, max_load, most_sequences, online, static_batch
from rpeg.shapes.catalog import shape_of

LLAMA = shape_of("Llama-3.1-8B")
LARGE = shape_of("Llama-3.1-70B")
H100 = system_for("h100_sxm")


def engine(**changes: float | bool) -> Engine:
    return engine_for(H100).with_constants(**changes)


def test_a_static_batch_by_hand() -> None:
    used = engine(chunk_tokens=8192.0)
    found = static_batch(used, LLAMA, 32.0, 512.0, 128.0)
    first = 2 * float(prefill_s(used, LLAMA, Chunk(8192.0, 16.0)))  # 32 prompts of 512 tokens are two chunks
    token = float(decode_s(used, LLAMA, 32.0, 512.0 + 64.0))
    assert found.first_s == pytest.approx(first)
    assert found.token_s == pytest.approx(token)
    assert found.request_s == pytest.approx(first + 127 * token)
    assert found.tokens_per_s == pytest.approx(32 * 128 / found.request_s)


def test_a_batch_without_room_goes_in_waves() -> None:
    small = static_batch(engine(slots=16.0), LLAMA, 16.0, 512.0, 128.0)
    waves = static_batch(engine(slots=16.0), LLAMA, 64.0, 512.0, 128.0)
    assert waves.request_s == pytest.approx(4 * small.request_s)


def test_room_is_kept_for_a_share_of_responses() -> None:
    half, whole = (most_sequences(engine(reserved_share=share), LLAMA, 1000.0, 2000.0) for share in (0.5, 1.0))
    assert half / whole == pytest.approx(3000 / 2000)
    assert most_sequences(engine(slots=7.0), LLAMA, 10.0, 10.0) == 7.0


def test_prompts_slow_down_the_tokens_of_others() -> None:
    used = engine()
    found = online(used, LLAMA, 64.0, 2048.0, 128.0)
    decoding = float(decode_s(used, LLAMA, found.sequences, 2048.0 + 64.0))
    alone = float(prefill_s(used, LLAMA, Chunk(2048.0)))
    # While a request writes 128 tokens, about 63 others have their prompts read.
    added = (found.token_s - decoding) * 128
    assert 0.6 * 63 * alone < added < 1.1 * 63 * alone
    longer = online(used, LLAMA, 64.0, 2048.0, 1024.0)
    assert longer.token_s < 0.5 * found.token_s


def test_few_requests_are_hardly_slowed_down() -> None:
    used = engine()
    found = online(used, LLAMA, 1.0, 128.0, 1024.0)
    assert found.token_s == pytest.approx(float(decode_s(used, LLAMA, 1.0, 640.0)), rel=0.02)


def test_whoever_has_no_room_waits() -> None:
    used = engine(slots=16.0)
    found, full = online(used, LLAMA, 64.0, 1024.0, 256.0), online(used, LLAMA, 16.0, 1024.0, 256.0)
    assert found.token_s == full.token_s
    assert found.tokens_per_s == full.tokens_per_s
    assert found.request_s == pytest.approx(64 * 256 / full.tokens_per_s)  # Little's law
    assert found.first_s > 2.5 * full.request_s


def test_prefills_that_fill_every_iteration_bound_the_rate() -> None:
    used = engine(chunk_tokens=2048.0, slots=4096.0)
    found = online(used, LLAMA, 1000.0, 2048.0, 16.0)
    alone = float(prefill_s(used, LLAMA, Chunk(2048.0)))
    assert found.tokens_per_s / 16 < 1 / alone
    assert found.sequences == pytest.approx(16.0)


def test_equal_lengths_come_in_crowds() -> None:
    used = engine(crowd_prompts=3.0)
    drawn, equal = (online(used, LLAMA, 16.0, 1024.0, 512.0, has_equal_lengths=each) for each in (False, True))
    assert equal.token_s == drawn.token_s
    assert equal.first_s > 1.5 * drawn.first_s


def test_an_engine_that_reads_first_works_in_waves() -> None:
    used = engine(is_prefill_first=True, chunk_tokens=8192.0)
    found = online(used, LLAMA, 64.0, 1024.0, 256.0, has_equal_lengths=True)
    whole = 8 * float(prefill_s(used, LLAMA, Chunk(8192.0, 8.0)))
    decoding = float(decode_s(used, LLAMA, 64.0, 1024.0 + 128.0))
    assert found.first_s == pytest.approx(whole * 9 / 16)
    assert found.request_s == pytest.approx(whole + 255 * decoding)
    assert found.token_s == pytest.approx(decoding + whole * 7 / 16 / 255)


def test_an_engine_that_reads_first_is_interrupted_by_every_prompt() -> None:
    used = engine(is_prefill_first=True)
    found = online(used, LLAMA, 64.0, 1024.0, 256.0)
    alone = float(prefill_s(used, LLAMA, Chunk(1024.0)))
    decoding = float(decode_s(used, LLAMA, 64.0, 1024.0 + 128.0))
    assert found.token_s == pytest.approx(decoding + 63 * alone / 256)


def test_maximum_load_is_as_many_as_there_is_room_for() -> None:
    tight = engine_for(H100, tp=2)
    most = most_sequences(tight, LARGE, 500.0, 2000.0)
    assert max_load(tight, LARGE, 500.0, 2000.0) == online(tight, LARGE, most, 500.0, 2000.0)


def test_a_low_rate_finds_an_empty_engine() -> None:
    used = engine()
    found = at_rate(used, LLAMA, 0.01, 512.0, 256.0, 100.0)
    assert found.token_s == pytest.approx(online(used, LLAMA, 1.0, 512.0, 256.0).token_s, rel=0.02)
    assert found.tokens_per_s == pytest.approx(0.01 * 256, rel=0.01)


def test_all_at_once_is_one_wave() -> None:
    used = engine(chunk_tokens=8192.0)
    found = at_rate(used, LLAMA, math.inf, 512.0, 256.0, 64.0)
    whole = 4 * float(prefill_s(used, LLAMA, Chunk(8192.0, 16.0)))
    assert found.first_s == pytest.approx(whole / 2, rel=0.2)
    assert found.tokens_per_s == pytest.approx(64 * 256 / found.request_s)


def test_a_rate_beyond_what_can_be_served_is_not_served() -> None:
    used = engine()
    rates = [at_rate(used, LLAMA, rate, 512.0, 256.0, 500.0).tokens_per_s for rate in (1.0, 8.0, 64.0, 512.0, math.inf)]
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(256.0, rel=0.02)
    assert rates[-1] < 64 * 256


LENGTHS = st.floats(16.0, 8192.0)


@settings(deadline=None, max_examples=50)
@given(st.floats(1.0, 500.0), LENGTHS, LENGTHS, st.booleans(), st.booleans())
def test_more_requests_are_slower_each_and_faster_together(
    under_way: float, prompt: float, response: float, is_prefill_first: bool, has_equal_lengths: bool
) -> None:
    used = engine(is_prefill_first=is_prefill_first)
    few, more = (
        online(used, LLAMA, count, prompt, response, has_equal_lengths=has_equal_lengths)
        for count in (under_way, 2 * under_way)
    )
    assert 0 < few.token_s <= 1.01 * more.token_s
    assert 0 < few.first_s <= 1.25 * more.first_s  # short prompts are read faster when many come together
    assert few.tokens_per_s <= 1.05 * more.tokens_per_s
    assert few.sequences <= under_way * 1.001


@settings(deadline=None, max_examples=50)
@given(st.floats(1.0, 500.0), LENGTHS, LENGTHS)
def test_a_larger_batch_takes_longer(batch: float, prompt: float, response: float) -> None:
    few, more = (static_batch(engine(), LLAMA, count, prompt, response) for count in (batch, 2 * batch))
    assert few.request_s <= 1.001 * more.request_s
    assert few.first_s <= 1.001 * more.first_s
