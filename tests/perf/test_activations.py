"""Bytes that a forward pass leaves: the published formulas, requirements from practice, and what must be monotone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.perf.activations import (
    Kept,
    Operators,
    activation_bytes_per_layer,
    in_flight,
    layer_input_bytes,
    logits_bytes,
    saved_tensors,
)
from rpeg.perf.stage_parameters import Degrees
from rpeg.plan.plan import Pipeline, Recompute
from rpeg.shapes.catalog import shape_of
from rpeg.shapes.model import ModelShape

GIB = 2.0**30
GPT_22B = ModelShape("megatron-22B", 48, 6144, 64, 64, 96, 24576, 51200, is_gated=False)
GPT_175B = ModelShape("gpt3-175B", 96, 12288, 96, 96, 128, 49152, 51200, is_gated=False)
GPT_2022 = Operators(has_flash=False, has_dropout=True)
LLAMA = ModelShape("llama", 32, 4096, 32, 8, 128, 14336, 128256)


def gpt_layer(shape: ModelShape, rows: int, tp: float, kept: Kept, *, is_sequence_parallel: bool = False) -> float:
    degrees = Degrees(tp=tp, is_sequence_parallel=is_sequence_parallel)
    found = activation_bytes_per_layer(shape, rows * 2048, degrees, length_tokens=2048, kept=kept, operators=GPT_2022)
    return float(found)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize(("shape", "rows"), [(GPT_22B, 4), (GPT_175B, 1)])
def test_gpt_layers_follow_table_2_of_korthikanti(shape: ModelShape, rows: int, tp: int) -> None:
    """All six rows of the table: tensor parallelism, with sequence parallelism, selective, both, full."""
    sbh, scores = 2048 * rows * shape.hidden, 5 * shape.heads * 2048 / shape.hidden
    expected = {
        (Kept.ALL, False): sbh * (10 + 24 / tp + scores / tp),
        (Kept.ALL, True): sbh / tp * (34 + scores),
        (Kept.WITHOUT_SCORES, False): sbh * (10 + 24 / tp),
        (Kept.WITHOUT_SCORES, True): sbh * 34 / tp,
        (Kept.INPUT, False): sbh * 2,
        (Kept.INPUT, True): sbh * 2 / tp,
    }
    for (kept, is_sequence_parallel), num_bytes in expected.items():
        found = gpt_layer(shape, rows, tp, kept, is_sequence_parallel=is_sequence_parallel)
        assert found == pytest.approx(num_bytes)


def test_a_22b_model_keeps_59_gib() -> None:
    """Figure 1 of the paper, read off by the authors of Calculon as 59.25 and 9.5625 GiB."""
    assert 48 * gpt_layer(GPT_22B, 4, 8, Kept.ALL) / GIB == pytest.approx(59.25)
    with_both = 48 * gpt_layer(GPT_22B, 4, 8, Kept.WITHOUT_SCORES, is_sequence_parallel=True)
    assert with_both / GIB == pytest.approx(9.5625, rel=1e-3)


def test_bl_103_the_estimate_knows_of_recomputation() -> None:
    """64 layers, hidden 5120, 32,710 tokens, TP 2: 364 GB over TP is 182 GB; full recomputation keeps 21.4 GB."""
    shape = ModelShape("dense", 64, 5120, 40, 40, 128, 20480, 152064, is_gated=False)
    degrees = Degrees(tp=2, is_sequence_parallel=True)

    def kept(how: Kept, ranks: Degrees) -> float:
        return 64 * float(activation_bytes_per_layer(shape, 32710, ranks, kept=how, operators=GPT_2022))

    assert kept(Kept.WITHOUT_SCORES, Degrees()) == pytest.approx(364.4e9, rel=1e-3)
    assert kept(Kept.WITHOUT_SCORES, degrees) == pytest.approx(182.2e9, rel=1e-3)
    assert kept(Kept.INPUT, Degrees()) == pytest.approx(21.4e9, rel=2e-3)
    assert kept(Kept.WITHOUT_SCORES, Degrees()) / kept(Kept.INPUT, Degrees()) == pytest.approx(17.0)


def test_a_gated_layer_keeps_what_its_operations_read() -> None:
    """Four hidden states, queries and output of 4096, keys and values of 1024, four feed-forward vectors, sums."""
    by_hand = 2 * (4 * 4096 + 2 * 4096 + 2 * 1024 + 4 * 14336) + 4 * 32
    assert activation_bytes_per_layer(LLAMA, 1.0) == by_hand


def test_checkpointing_by_operation_keeps_every_second_product() -> None:
    """Input, queries, values, attention output, first product of the block; eager also the last product."""
    compiled = 2 * (4096 + 4096 + 1024 + 4096 + 14336) + 4 * 32
    assert activation_bytes_per_layer(LLAMA, 1.0, kept=Kept.PRODUCTS) == compiled
    eager = activation_bytes_per_layer(LLAMA, 1.0, kept=Kept.PRODUCTS, operators=Operators(is_compiled=False))
    assert eager == compiled + 2 * 4096


def test_further_kinds_of_layers_keep_more() -> None:
    plain = activation_bytes_per_layer(LLAMA, 1.0)
    with_norms = activation_bytes_per_layer(replace(LLAMA, has_qk_norm=True, norms_per_layer=4), 1.0)
    assert with_norms - plain == 2 * (4096 + 1024) + 2 * 2 * 4096
    gated = activation_bytes_per_layer(replace(LLAMA, has_attention_gate=True), 1.0)
    assert gated - plain == 2 * 2 * 4096
    alone = activation_bytes_per_layer(replace(LLAMA, norms_per_layer=1), 1.0)
    assert plain - alone == 2 * 2 * 4096


def test_experts_copy_rows_to_every_expert_they_visit() -> None:
    shape = shape_of("Qwen3-30B-A3B")
    assert shape.experts is not None
    names = {saved.name: saved.channels for saved in saved_tensors(shape, has_experts=True)}
    assert names["rows to experts"] == 8 * 2048
    assert names["experts ffn product"] == 8 * 768
    split = activation_bytes_per_layer(shape, 4096.0, Degrees(tp=4))
    assert split < activation_bytes_per_layer(shape, 4096.0)


def test_a_mixed_model_is_between_its_layers() -> None:
    shape = shape_of("DeepSeek-V3")
    dense, routed = (activation_bytes_per_layer(shape, 1.0, has_experts=has) for has in (False, True))
    assert shape.expert_layers == 58
    assert activation_bytes_per_layer(shape, 1.0) == pytest.approx((3 * dense + 58 * routed) / 61)


def test_latent_attention_keeps_small_vectors_and_whole_heads() -> None:
    names = {saved.name: saved.channels for saved in saved_tensors(shape_of("DeepSeek-V3"))}
    assert names["latent vectors"] == 2 * (1536 + 512) + 64
    assert names["keys"] == 128 * (128 + 64)
    assert names["attention output"] == 128 * 128


def test_gathered_inputs_are_kept_whole_where_software_does() -> None:
    degrees = Degrees(tp=4, is_sequence_parallel=True)
    again = activation_bytes_per_layer(LLAMA, 1.0, degrees)
    whole = activation_bytes_per_layer(LLAMA, 1.0, degrees, operators=Operators(keeps_gathered=True))
    assert whole - again == 2 * 2 * 4096 * 3 / 4


def test_bl_109_float32_logits() -> None:
    assert logits_bytes(4 * 4096, 152064) == 9_965_666_304
    assert logits_bytes(4 * 512, 51200) == 419_430_400
    assert logits_bytes(4 * 4096, 152064, bytes_per_logit=8.0) == 2 * 9_965_666_304
    assert logits_bytes(4 * 4096, 152064, tp=8) == 9_965_666_304 / 8


def test_plans_say_what_is_kept() -> None:
    assert [Kept.of(each) for each in Recompute] == [Kept.ALL, Kept.WITHOUT_SCORES, Kept.INPUT]


def flying(pipeline: Pipeline, stages: float, batches: float, parts: float = 1.0, stage: float = 0.0) -> float:
    found = in_flight(pipeline, num_stages=stages, num_micro_batches=batches, virtual_stages=parts, stage=stage)
    return float(found)


def test_schedules_keep_micro_batches_in_flight() -> None:
    assert flying(Pipeline.GPIPE, 4, 16) == 16
    assert [flying(Pipeline.ONE_F_ONE_B, 4, 16, stage=i) for i in range(4)] == [4, 3, 2, 1]
    assert flying(Pipeline.ONE_F_ONE_B, 4, 2) == 2
    assert flying(Pipeline.ZERO_BUBBLE, 4, 16) == 4
    assert flying(Pipeline.INTERLEAVED, 8, 64, 3) == pytest.approx(8 * (1 + 7 / 24))
    assert flying(Pipeline.INTERLEAVED, 8, 64, 3, stage=7) == pytest.approx(17 / 3)
    assert all(flying(pipeline, 1, 16, 2) == 1 for pipeline in Pipeline)


@given(st.integers(1, 16), st.integers(1, 6), st.integers(1, 64))
def test_no_stage_has_more_in_flight_than_the_first(stages: int, parts: int, batches: int) -> None:
    for pipeline in Pipeline:
        found = [flying(pipeline, stages, batches, parts, stage) for stage in range(stages)]
        assert found == sorted(found, reverse=True)
        assert 0 < found[0] <= batches or stages == 1


@given(st.sampled_from([1.0, 2.0, 4.0, 8.0]), st.integers(1, 8), st.sampled_from(list(Kept)))
def test_bytes_grow_with_tokens_and_shrink_with_ranks(tp: float, rows: int, kept: Kept) -> None:
    degrees = Degrees(tp=tp, is_sequence_parallel=True)
    one = activation_bytes_per_layer(LLAMA, 1024.0, degrees, kept=kept)
    assert activation_bytes_per_layer(LLAMA, 1024.0 * rows, degrees, kept=kept) == pytest.approx(one * rows)
    assert one <= activation_bytes_per_layer(LLAMA, 1024.0, kept=kept)
    assert one <= activation_bytes_per_layer(LLAMA, 1024.0, degrees)
    halved = replace(degrees, cp=2.0)
    assert activation_bytes_per_layer(LLAMA, 1024.0, halved, kept=kept) == pytest.approx(one / 2)


def test_layouts_are_priced_at_once() -> None:
    tp = np.array([1.0, 2.0, 8.0])
    together = activation_bytes_per_layer(LLAMA, 4096.0, Degrees(tp=tp))
    assert list(np.asarray(together)) == [activation_bytes_per_layer(LLAMA, 4096.0, Degrees(tp=float(n))) for n in tp]
    assert list(np.asarray(layer_input_bytes(LLAMA, 10.0, Degrees(tp=tp, is_sequence_parallel=True)))) == [
        81920.0, 40960.0, 10240.0
    ]  # fmt: skip
