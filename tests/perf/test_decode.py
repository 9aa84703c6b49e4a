"""One iteration of a replica: numbers by hand, and what must grow with what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpeg.errors import PlanError
from rpeg.hardware.naming import system_for
from rpeg.perf.collectives import Collective, collective_s
from rpeg.perf.decode import Chunk, all_reduce_s, decode_s, decode_table, iteration_s, prefill_s
from rpeg.perf.engine import Engine, cache_bytes, cache_room_tokens, engine_for, expert_bytes, weight_bytes
from rpeg.perf.load import Precision
from rpeg.shapes.catalog import shape_of
from rpeg.shapes.operations import kv_bytes
from rpeg.shapes.parameters import num_parameters

LLAMA = shape_of("Llama-3.1-8B")
LARGE = shape_of("Llama-3.1-70B")
EXPERTS = shape_of("Qwen3-30B-A3B")
LATENT = shape_of("DeepSeek-V3")
WINDOWS = shape_of("GPT-OSS-120B")
H100 = system_for("h100_sxm")
BARE = {"step_s": 0.0, "sequence_s": 0.0, "decode_factor": 1.0, "prefill_factor": 1.0, "repeated_share": 0.0}


def bare(engine: Engine) -> Engine:
    """Return a replica without host and without corrections."""
    return engine.with_constants(**BARE)


def test_a_small_batch_reads_the_weights() -> None:
    engine = bare(engine_for(H100))
    bytes_read = (num_parameters(LLAMA) - LLAMA.vocabulary * LLAMA.hidden) * 2  # the embedding is looked up
    seconds = float(decode_s(engine, LLAMA, 1.0, 1.0))
    assert bytes_read / 3.35e12 < seconds < 1.5 * bytes_read / 3.35e12


def test_caches_add_their_bytes() -> None:
    engine = bare(engine_for(H100))
    short, long = (float(decode_s(engine, LLAMA, 64.0, context)) for context in (4096.0, 8192.0))
    extra_bytes = 64 * (8192 - 4096) * 131072
    assert extra_bytes / 3.35e12 < long - short < 1.4 * extra_bytes / 3.35e12


def test_half_the_bytes_take_about_half_the_time() -> None:
    wide, narrow = (
        bare(engine_for(H100, precision=Precision(products=dtype, cache=dtype))) for dtype in ("bfloat16", "float8")
    )
    for sequences, context in ((1.0, 128.0), (64.0, 8192.0)):
        ratio = float(decode_s(narrow, LARGE, sequences, context)) / float(decode_s(wide, LARGE, sequences, context))
        assert 0.45 < ratio < 0.75


def test_the_host_adds_a_step_and_sequences() -> None:
    engine = bare(engine_for(H100))
    slow = engine.with_constants(step_s=2e-3, sequence_s=1e-5)
    added = float(decode_s(slow, LLAMA, 64.0, 512.0)) - float(decode_s(engine, LLAMA, 64.0, 512.0))
    assert added == pytest.approx(2e-3 + 64 * 1e-5)


def test_without_graphs_launches_bound_small_batches() -> None:
    engine = bare(engine_for(H100, tp=8)).with_constants(
        is_captured=False, layer_launches=100.0, collective_launches=10.0, sharpness=50.0
    )
    seconds = float(decode_s(engine, LLAMA, 1.0, 128.0))
    assert seconds == pytest.approx(32 * 120 * engine.kernels.launch_s, rel=1e-3)


def test_hosts_of_a_device_may_be_slower() -> None:
    plain = bare(engine_for(H100)).with_constants(step_s=1e-3)
    slow = replace(plain, constants=replace(plain.constants, host_factor={"H100": 2.5, "A100": 9.0}))
    assert float(decode_s(slow, LLAMA, 1.0, 128.0)) - float(decode_s(plain, LLAMA, 1.0, 128.0)) == pytest.approx(1.5e-3)


def test_prefill_is_bound_by_operations() -> None:
    engine = bare(engine_for(H100))
    seconds = float(prefill_s(engine, LLAMA, Chunk(8192.0)))
    matrices = 2 * 8192 * (num_parameters(LLAMA) - 2 * LLAMA.vocabulary * LLAMA.hidden)
    pairs = 4 * LLAMA.heads * LLAMA.head_size * LLAMA.layers * 8192**2 / 2
    assert 1.0 < seconds / ((matrices + pairs) / 989e12) < 2.0


def test_a_chunk_beside_decoding_costs_less_than_an_iteration_of_its_own() -> None:
    engine = bare(engine_for(H100))
    alone, chunk = float(decode_s(engine, LLAMA, 32.0, 1024.0)), Chunk(256.0)
    mixed = float(iteration_s(engine, LLAMA, 32.0, 1024.0, chunk))
    assert alone < mixed < alone + float(prefill_s(engine, LLAMA, chunk))


def test_kernels_of_2023_read_a_head_for_every_query() -> None:
    engine = bare(engine_for(H100))
    old = engine.with_constants(repeated_share=1.0)
    contexts = np.array([2000.0, 4000.0])
    new_s, old_s = (np.diff(np.asarray(decode_s(each, LLAMA, 64.0, contexts))) for each in (engine, old))
    assert float(old_s[0]) == pytest.approx(4 * float(new_s[0]))  # 32 heads over 8


def test_the_all_reduce_is_the_faster_of_two() -> None:
    engine = engine_for(H100, tp=8).with_constants(collective_s=5e-6)
    small, large = 64e3, 256e6
    assert float(all_reduce_s(engine, small)) == pytest.approx(5e-6 + 7 * small / 450e9)
    library = float(collective_s(Collective.ALL_REDUCE, large, engine.group, engine.links))
    assert float(all_reduce_s(engine, large)) == pytest.approx(library)
    assert float(all_reduce_s(engine.with_constants(collective_s=0.0), small)) > float(all_reduce_s(engine, small))
    assert float(all_reduce_s(engine_for(H100), small)) == 0.0


def test_a_link_without_peers_has_the_library_only() -> None:
    engine = engine_for(system_for("L40S"), tp=2).with_constants(collective_s=1e-9)
    library = float(collective_s(Collective.ALL_REDUCE, 64e3, engine.group, engine.links))
    assert float(all_reduce_s(engine, 64e3)) == pytest.approx(library)


def test_weights_by_hand() -> None:
    ends = 2 * 128256 * 4096 + 4096
    layers = num_parameters(LLAMA) - ends
    fp8 = engine_for(H100, tp=2, precision=Precision(products="float8"))
    assert weight_bytes(engine_for(H100), LLAMA) == pytest.approx(2 * num_parameters(LLAMA), rel=1e-9)
    assert weight_bytes(fp8, LLAMA) == pytest.approx((layers + 2 * ends) / 2, rel=1e-9)


def test_experts_are_spread_and_data_parallel_attention_is_repeated() -> None:
    one, spread = engine_for(H100), engine_for(H100, dp=8, ep=8)
    assert expert_bytes(one, EXPERTS) == 48 * 128 * 3 * 2048 * 768 * 2
    assert expert_bytes(spread, EXPERTS) == expert_bytes(one, EXPERTS) / 8
    rest = weight_bytes(one, EXPERTS) - expert_bytes(one, EXPERTS)
    assert weight_bytes(spread, EXPERTS) - expert_bytes(spread, EXPERTS) == pytest.approx(rest)
    assert expert_bytes(one, LLAMA) == 0.0


@pytest.mark.parametrize("shape", [LLAMA, LATENT, WINDOWS], ids=lambda shape: shape.name)
def test_caches_are_what_the_shape_says(shape: object) -> None:
    engine = engine_for(H100, precision=Precision(cache="float8"))
    for tokens in (100.0, 10000.0):
        assert float(cache_bytes(engine, shape, tokens)) == pytest.approx(float(kv_bytes(shape, tokens, 1.0)))  # pyright: ignore


def test_caches_divide_by_tp_as_far_as_there_are_heads() -> None:
    one, eight, sixteen = (float(cache_bytes(engine_for(H100, tp=tp), LLAMA, 1000.0)) for tp in (1, 8, 16))
    assert (eight, sixteen) == (one / 8, one / 8)
    latent = [float(cache_bytes(engine_for(H100, tp=tp), LATENT, 1000.0)) for tp in (1, 8)]
    assert latent[0] == latent[1]


def test_room_is_what_weights_leave() -> None:
    engine = engine_for(H100)
    room = engine.constants.memory_fraction * 80e9 - 2 * num_parameters(LLAMA)
    assert cache_room_tokens(engine, LLAMA, 1000.0) == pytest.approx(room / 131072)
    assert cache_room_tokens(engine, LARGE, 1000.0) == 1000.0  # nothing fits: one at a time is the least


def test_a_table_is_what_it_was_made_from() -> None:
    engine = engine_for(H100, tp=2)
    table = decode_table(engine, WINDOWS)
    for sequences, context in ((1.0, 0.0), (3.3, 700.0), (100.0, 5000.0), (5000.0, 60000.0)):
        exact = float(decode_s(engine, WINDOWS, sequences, context))
        assert float(table.lookup(sequences, context)) == pytest.approx(exact, rel=0.02)
    assert decode_table(engine, WINDOWS) is table


def test_a_pipeline_passes_a_share_of_the_batch_through_every_stage() -> None:
    one, two = (bare(engine_for(H100, pp=pp)) for pp in (1, 2))
    assert weight_bytes(two, LLAMA) < 0.55 * weight_bytes(one, LLAMA)
    # Both stages read their half of the weights for half of the batch, one after the other.
    assert float(decode_s(two, LLAMA, 2.0, 128.0)) == pytest.approx(float(decode_s(one, LLAMA, 1.0, 128.0)), rel=0.02)


def test_an_unknown_engine_is_said() -> None:
    assert "no serving profile of my-engine" in engine_for(H100, "my-engine").extrapolates


def test_experts_need_their_ranks() -> None:
    with pytest.raises(PlanError, match="16 by 1 expert ranks do not fit on 8 by 1 devices"):
        engine_for(H100, tp=8, ep=16)


SHAPES = st.sampled_from([LLAMA, EXPERTS, LATENT, WINDOWS])


@settings(deadline=None, max_examples=40)
@given(SHAPES, st.sampled_from([1, 2, 8]), st.floats(1.0, 2000.0), st.floats(1.0, 60000.0))
def test_decoding_grows_with_sequences_and_contexts(shape: object, tp: int, sequences: float, context: float) -> None:
    engine = engine_for(H100, tp=tp)
    seconds = np.asarray(
        decode_s(engine, shape, sequences * np.array([1.0, 1.5, 1.0]), context * np.array([1, 1, 1.5]))
    )  # pyright: ignore
    assert seconds[0] > 0
    assert seconds[0] <= 1.0001 * seconds[1]
    assert seconds[0] <= 1.0001 * seconds[2]
    assert seconds[1] < 1.6 * seconds[0]


@settings(deadline=None, max_examples=40)
@given(SHAPES, st.sampled_from([1, 4]), st.floats(16.0, 8192.0))
def test_prefill_grows_with_tokens(shape: object, tp: int, tokens: float) -> None:
    engine = engine_for(H100, tp=tp)
    few, more = (float(prefill_s(engine, shape, Chunk(count))) for count in (tokens, 2 * tokens))  # pyright: ignore
    assert 0 < few <= 1.001 * more
    assert replace(Chunk(tokens), prompts=2.0).tokens == tokens
