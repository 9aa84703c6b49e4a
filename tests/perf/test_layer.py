from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.hardware.naming import device_for
from rpeg.perf.elementwise import Fusion
from rpeg.perf.kernels import kernels_for
from rpeg.perf.layer import (
    LayerKind,
    LayerTime,
    backward_time,
    embedding_time,
    ep_bytes,
    head_backward_time,
    head_time,
    layer_kinds,
    layer_operations,
    layer_time,
    tp_bytes,
)
from rpeg.perf.load import Load, Precision, Split
from rpeg.perf.operations import Attention, Product, Stream
from rpeg.shapes.catalog import shape_of
from rpeg.shapes.operations import causal_flops_per_token, flops_per_token

H100 = kernels_for(device_for("h100_sxm"))
LLAMA, QWEN_MOE, DEEPSEEK = (shape_of(name) for name in ("Llama-3.1-8B", "Qwen3-30B-A3B", "DeepSeek-V3"))
MODELS = ("Llama-3.1-8B", "Qwen3-30B-A3B", "DeepSeek-V3", "GPT-OSS-120B", "Gemma-3-27B", "Qwen3-Next-80B-A3B", "MPT-7B")
ONE = Split()


def products(name: str, load: Load, split: Split = ONE) -> list[Product]:
    shape = shape_of(name)
    kind = layer_kinds(shape)[-1][0]
    found = layer_operations(shape, load, split, Precision(), kind=kind)
    return [each for each in found if isinstance(each, Product)]


def test_a_dense_layer_is_its_four_products() -> None:
    found = [(each.name, each.m, each.n, each.k) for each in products("Llama-3.1-8B", Load.prefill(1.0, 4096.0))]
    assert found == [
        ("qkv", 4096, 6144, 4096),
        ("output", 4096, 4096, 4096),
        ("up", 4096, 28672, 4096),
        ("down", 4096, 4096, 14336),
    ]


def test_tensor_parallelism_divides_widths_and_context_parallelism_tokens() -> None:
    found = products("Llama-3.1-8B", Load.prefill(1.0, 4096.0), Split(tp=4.0, cp=2.0))
    assert [(each.m, each.n, each.k) for each in found] == [
        (2048, 1536, 4096),
        (2048, 4096, 1024),
        (2048, 7168, 4096),
        (2048, 4096, 3584),
    ]


def test_kv_heads_are_repeated_where_there_are_more_ranks() -> None:
    wide = products("Llama-3.1-8B", Load.prefill(1.0, 1.0), Split(tp=16.0))[0]
    assert wide.n == 4096 / 16 + 2 * 128


def test_experts_get_the_tokens_that_choose_them() -> None:
    up, down = products("Qwen3-30B-A3B", Load.prefill(1.0, 4096.0), Split(ep=8.0))[-2:]
    assert (up.m, up.n, up.k) == (4096 * 8, 2 * 768, 2048)
    assert (down.m, down.n, down.k) == (4096 * 8, 2048, 768)
    assert up.groups == pytest.approx(128 / 8)


def test_the_busiest_rank_counts_where_experts_are_spread() -> None:
    spread = products("Qwen3-30B-A3B", Load.prefill(1.0, 4096.0), Split(ep=8.0, imbalance=1.5))[-1]
    alone = products("Qwen3-30B-A3B", Load.prefill(1.0, 4096.0), Split(imbalance=1.5))[-1]
    assert spread.m == 1.5 * alone.m


def test_few_tokens_read_few_experts() -> None:
    assert products("Qwen3-30B-A3B", Load.decode(1.0, 100.0))[-1].groups == pytest.approx(8.0)


def test_latent_attention_expands_in_prefill_and_absorbs_in_decoding() -> None:
    prefill, decode = (
        {each.name: each for each in products("DeepSeek-V3", load, Split(tp=8.0))}
        for load in (Load.prefill(1.0, 1000.0), Load.decode(8.0, 1000.0))
    )
    assert (prefill["expand"].n, prefill["expand"].k) == (16 * 256, 512)
    assert (decode["absorb keys"].m, decode["absorb keys"].groups) == (8 * 16, 16)
    kind = layer_kinds(DEEPSEEK)[-1][0]
    operations = layer_operations(DEEPSEEK, Load.decode(8.0, 1000.0), ONE, Precision(), kind=kind)
    read = next(each for each in operations if isinstance(each, Attention))
    assert (read.heads.kept_size, read.heads.keys) == (576, 1)


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Qwen3-30B-A3B", "Gemma-3-27B", "MPT-7B"])
def test_operations_are_those_that_shapes_count(name: str) -> None:
    shape, length = shape_of(name), 8192.0
    time = layer_time(shape, H100, Load.prefill(2.0, length), ONE)
    expected = causal_flops_per_token(shape, length, has_head=False) * 2 * length
    assert time.flops * shape.layers == pytest.approx(expected, rel=0.01)


def test_decoding_counts_the_same_operations_as_shapes() -> None:
    time = layer_time(LLAMA, H100, Load.decode(16.0, 1000.0), ONE)
    assert time.flops * 32 == pytest.approx(flops_per_token(LLAMA, 1000.0, has_head=False) * 16, rel=0.01)


def test_kinds_of_layers() -> None:
    assert layer_kinds(LLAMA) == ((LayerKind(), 32),)
    assert layer_kinds(DEEPSEEK) == ((LayerKind(), 3), (LayerKind(has_experts=True), 58))
    gemma = dict(layer_kinds(shape_of("Gemma-3-27B")))
    assert gemma == {LayerKind(has_window=True): 52, LayerKind(): 10}
    mixed = dict(layer_kinds(shape_of("Qwen3-Next-80B-A3B")))
    assert mixed == {LayerKind(True, False, True): 36, LayerKind(True): 12}


@pytest.mark.parametrize("name", MODELS)
def test_kinds_agree_with_shapes(name: str) -> None:
    shape, kinds = shape_of(name), layer_kinds(shape_of(name))
    assert sum(count for _, count in kinds) == shape.layers
    assert sum(count for kind, count in kinds if kind.has_experts) == shape.expert_layers
    assert sum(count for kind, count in kinds if kind.is_linear) == shape.linear_layers
    assert sum(count for kind, count in kinds if kind.has_window) == shape.window_layers


def test_the_mean_layer_is_the_mean_of_the_kinds() -> None:
    load = Load.prefill(1.0, 512.0)
    dense, experts = (layer_time(DEEPSEEK, H100, load, ONE, kind=kind).device_s for kind, _ in layer_kinds(DEEPSEEK))
    assert layer_time(DEEPSEEK, H100, load, ONE).device_s == pytest.approx((3 * dense + 58 * experts) / 61)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_price_forward_and_backward(name: str) -> None:
    shape = shape_of(name)
    forward = layer_time(shape, H100, Load.prefill(2.0, 2048.0), Split(tp=2.0))
    backward = backward_time(shape, H100, Load.prefill(2.0, 2048.0), Split(tp=2.0))
    assert 1.6 < backward.device_s / forward.device_s < 3.0
    assert backward.flops == pytest.approx(2 * forward.flops, rel=0.15)
    assert layer_time(shape, H100, Load.decode(8.0, 2048.0), Split(tp=2.0)).device_s < forward.device_s


def test_a_layer_of_a_real_model_is_neither_free_nor_slow() -> None:
    time = layer_time(LLAMA, H100, Load.prefill(1.0, 8192.0), ONE)
    assert 0.5 < time.flops / time.device_s / 989e12 < 0.8
    decode = layer_time(LLAMA, H100, Load.decode(1.0, 100.0), ONE)
    weights_s = 218_112_000 * 2 / 3350e9
    assert 1.0 < decode.device_s / weights_s < 1.7


def test_without_graphs_launches_take_over() -> None:
    load = Load.decode(1.0, 100.0)
    slow = layer_time(LLAMA, H100.captured(False, 1e-3), load, ONE)
    assert slow.host_s == pytest.approx(slow.launches * 1e-3)
    assert slow.total_s == slow.host_s
    assert layer_time(LLAMA, H100.captured(), load, ONE).host_s == 0


def test_eager_operators_move_more_and_launch_more() -> None:
    load = Load.prefill(1.0, 4096.0)
    fused, eager = (layer_time(LLAMA, H100, load, ONE, fusion=fusion) for fusion in (Fusion.FUSED, Fusion.EAGER))
    assert eager.elementwise_s > 2 * fused.elementwise_s
    assert eager.launches > 2 * fused.launches
    assert eager.gemm_s == fused.gemm_s


def test_sequence_parallelism_divides_the_norms() -> None:
    whole, divided = (
        layer_time(LLAMA, H100, Load.prefill(1.0, 4096.0), Split(tp=8.0, is_sequence_parallel=flag))
        for flag in (False, True)
    )
    norms_s = 2 * 4 * 4096 * 4096 * 2 / (3350e9 * H100.constants.elementwise.bandwidth_fraction)
    assert whole.elementwise_s - divided.elementwise_s == pytest.approx(norms_s * 7 / 8)


def test_context_parallelism_divides_attention_evenly() -> None:
    whole, halves = (layer_time(LLAMA, H100, Load.prefill(8.0, 8192.0), Split(cp=cp)) for cp in (1.0, 2.0))
    assert halves.attention_s / whole.attention_s == pytest.approx(0.5, rel=0.02)
    assert halves.flops / whole.flops == pytest.approx(0.5)


def test_packed_rows_compare_as_many_pairs_as_their_lengths_do() -> None:
    lengths = np.array([100.0, 700.0, 3000.0])
    load = Load.packed(lengths.sum(), (lengths**2).sum())
    one_by_one = sum(layer_time(LLAMA, H100, Load.prefill(1.0, float(length)), ONE).flops for length in lengths)
    assert layer_time(LLAMA, H100, load, ONE).flops == pytest.approx(one_by_one)


def test_the_head_is_a_product_and_its_softmax() -> None:
    time = head_time(LLAMA, H100, 4096.0, ONE)
    assert time.flops == 2 * 4096 * 128256 * 4096
    assert head_time(LLAMA, H100, 4096.0, ONE, has_softmax=False).elementwise_s < 0.1 * time.elementwise_s
    assert 1.7 < head_backward_time(LLAMA, H100, 4096.0, ONE).device_s / time.device_s < 2.3
    assert embedding_time(LLAMA, H100, 4096.0, ONE).device_s < 1e-4


def test_bytes_of_communication() -> None:
    load = Load.prefill(2.0, 4096.0)
    assert tp_bytes(LLAMA, load, Split(tp=8.0, cp=2.0)) == 4096 * 4096 * 2
    assert tp_bytes(LLAMA, load, ONE, Precision.of("float32")) == 8192 * 4096 * 4
    assert ep_bytes(LLAMA, load, Split(ep=8.0)) == 0
    assert ep_bytes(QWEN_MOE, load, Split(ep=8.0)) == 8192 * 8 * 2048 * 2
    assert ep_bytes(QWEN_MOE, load, Split(tp=4.0, ep=8.0)) == 8192 * 8 * 2048 * 2 / 4


def test_narrow_products_leave_hidden_states_wide() -> None:
    load = Load.decode(16.0, 1000.0)
    wide, narrow = (layer_time(LLAMA, H100, load, ONE, Precision.of(dtype)) for dtype in ("bfloat16", "fp8"))
    assert narrow.gemm_s < 0.75 * wide.gemm_s
    assert narrow.elementwise_s == wide.elementwise_s
    assert layer_time(LLAMA, H100, load, ONE, Precision.of("fp8", "fp8")).attention_s < wide.attention_s


def test_layouts_are_priced_in_one_call() -> None:
    tp, rows = np.array([1.0, 2.0, 4.0, 8.0]), np.array([[1.0], [16.0], [256.0]])
    table = layer_time(DEEPSEEK, H100, Load.decode(rows, 2000.0), Split(tp=tp, ep=tp)).device_s
    assert np.shape(table) == (3, 4)
    one = layer_time(DEEPSEEK, H100, Load.decode(16.0, 2000.0), Split(tp=4.0, ep=4.0)).device_s
    assert table[1, 2] == pytest.approx(one)  # type: ignore[index]


def test_times_add_and_repeat() -> None:
    time = LayerTime(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    assert time + time == time * 2 == LayerTime(2.0, 4.0, 6.0, 8.0, 10.0, 12.0)
    assert (time.device_s, time.total_s) == (6.0, 6.0)
    assert replace(time, host_s=9.0).total_s == 9.0


def test_parallel_blocks_have_one_norm() -> None:
    shape = replace(LLAMA, norms_per_layer=1)
    operations = layer_operations(shape, Load.prefill(1.0, 8.0), ONE, Precision(), kind=LayerKind())
    assert sum(isinstance(each, Stream) and each.name == "norm" for each in operations) == 1


@given(rows=st.floats(1, 512), context=st.floats(1, 1e5), tp=st.sampled_from([1.0, 2.0, 4.0, 8.0]))
def test_more_work_never_takes_less(rows: float, context: float, tp: float) -> None:
    base = layer_time(LLAMA, H100, Load.decode(rows, context), Split(tp=tp)).device_s
    assert layer_time(LLAMA, H100, Load.decode(2 * rows, context), Split(tp=tp)).device_s >= base
    assert layer_time(LLAMA, H100, Load.decode(rows, 2 * context), Split(tp=tp)).device_s >= base > 0
