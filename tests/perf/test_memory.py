"""State, training and generation on a device: requirements from practice, sums, and remedies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.perf.activations import Kept
from rpeg.perf.inference_memory import (
    Generation,
    generation_memory,
    kv_bytes_on_device,
    kv_tokens_room,
    rows_in_flight,
)
from rpeg.perf.memory import (
    MemoryConstants,
    StateBytes,
    collective_buffer_bytes,
    gradient_bytes,
    optimizer_bytes,
    rows_bytes,
    versions_bytes,
    weights_bytes,
)
from rpeg.perf.profile import profiles, read_table
from rpeg.perf.shortfall import shortfall, smallest_remedy
from rpeg.perf.stage_parameters import Degrees, adapter_parameters, last_layers, stage_layers, stage_parameters
from rpeg.perf.training_memory import Moment, Training, training_memory
from rpeg.plan.plan import Pipeline
from rpeg.shapes.catalog import shape_of
from rpeg.shapes.parameters import num_parameters

QWEN = shape_of("Qwen2.5-7B")
LLAMA = shape_of("Llama-3.1-8B")
TIED = shape_of("Qwen3-0.6B")
MIXTURE = shape_of("Qwen3-30B-A3B")


def job(degrees: Degrees | None = None, **changes: Any) -> Training:
    return Training(LLAMA, degrees or Degrees(), **{"tokens": 8192.0, "length_tokens": 8192.0, **changes})


# Parameters of a device


def test_one_device_has_every_parameter_once() -> None:
    for shape in (QWEN, TIED, MIXTURE, shape_of("DeepSeek-V3"), shape_of("GPT-OSS-120B")):
        assert float(stage_parameters(shape, Degrees()).total) == pytest.approx(num_parameters(shape), rel=1e-12)


def test_ends_of_a_pipeline_have_their_own_weights() -> None:
    first = stage_parameters(LLAMA, Degrees(pp=4), is_last=0.0)
    last = stage_parameters(LLAMA, Degrees(pp=4), is_first=0.0)
    inner = stage_parameters(LLAMA, Degrees(pp=4), is_first=0.0, is_last=0.0)
    assert first.ends == 128256 * 4096
    assert last.ends == 128256 * 4096 + 4096
    assert inner.ends == 0
    assert float(first.total + last.total + 2 * inner.total) == num_parameters(LLAMA)
    tied = stage_parameters(TIED, Degrees(pp=4), is_first=0.0)
    assert tied.ends == 151936 * 1024 + 1024


def test_ranks_beyond_the_kv_heads_hold_copies() -> None:
    by_hand = {8: 1024 * 4096 / 8, 32: 1024 * 4096 / 8}
    for tp, num in by_hand.items():
        query, ffn = 4096 * 4096 / tp, 14336 * 4096 / tp
        layer = 2 * query + 2 * num + 3 * ffn + 2 * 4096
        found = stage_parameters(LLAMA, Degrees(tp=float(tp)), layers=1.0, is_first=0.0, is_last=0.0)
        assert float(found.total) == pytest.approx(layer)


def test_experts_are_spread_over_their_ranks() -> None:
    whole = stage_parameters(MIXTURE, Degrees())
    spread = stage_parameters(MIXTURE, Degrees(dp=8.0, ep=8.0))
    assert spread.routed == whole.routed / 8
    assert spread.dense == whole.dense
    split = stage_parameters(MIXTURE, Degrees(tp=4.0))
    assert split.routed == whole.routed / 4
    assert Degrees(tp=2.0, dp=8.0, ep=8.0).expert_shards == 2.0
    assert Degrees(tp=2.0, dp=8.0, ep=4.0, expert_tp=2.0).expert_shards == 2.0


def test_layers_of_stages() -> None:
    assert stage_layers(126, 8) == 16
    assert (stage_layers(32, 1, 2.2), last_layers(32, 1, 2.2)) == (32, 32)
    # The head counts four layers: the first of two stages takes eleven of sixteen, as ten are exactly half.
    assert (stage_layers(16, 2, 4.0), last_layers(16, 2, 4.0)) == (11, 5)


def test_adapters_are_small() -> None:
    by_hand = 16 * 28 * ((1024 + 2048) + 2 * (1024 + 1024) + (2048 + 1024) + 3 * (1024 + 3072))
    assert adapter_parameters(TIED, 16) == by_hand


# State


def test_bl_104_float32_weights_and_sharding_count() -> None:
    """16 bytes per parameter are 121.8 GB, 12 would be 30.5 GB too few; with a distributed optimizer 4 P + 12 P / d."""
    state, held = StateBytes(gradients=2.0), stage_parameters(QWEN, Degrees())

    def total(degrees: Degrees) -> float:
        found = weights_bytes(held, degrees, state.weights) + gradient_bytes(held, degrees, state.gradients)
        return float(found + optimizer_bytes(held, degrees, state.optimizer))

    assert state.total == 16.0
    assert total(Degrees()) == 16 * 7_615_616_512 == pytest.approx(121.8e9, rel=1e-3)
    assert total(Degrees()) - 12 * 7_615_616_512 == pytest.approx(30.5e9, rel=2e-3)
    assert total(Degrees(dp=8.0, zero=1.0)) == pytest.approx((4 + 12 / 8) * 7_615_616_512)
    assert total(Degrees(dp=8.0, zero=2.0)) == pytest.approx((2 + 14 / 8) * 7_615_616_512)
    assert total(Degrees(dp=4.0, cp=2.0, zero=3.0)) == pytest.approx(2 * 7_615_616_512)
    assert total(Degrees(dp=32.0, zero=3.0, zero_ranks=8.0)) == pytest.approx(2 * 7_615_616_512)


def test_bytes_per_parameter_of_megatron() -> None:
    """20, 18 and 16, as its page on the distributed optimizer has them."""
    pairs = (("float16", "float16"), ("bfloat16", "float32"), ("float32", "float32"))
    assert [StateBytes.of(*pair, has_gradient_copy=True).total for pair in pairs] == [20.0, 18.0, 16.0]
    assert StateBytes.of("bfloat16", "bfloat16", moments="int8").total == 2 + 2 + 4 + 2


def test_collective_buffers_grow_with_neighbours() -> None:
    assert [float(collective_buffer_bytes(size)) / 2**20 for size in (1, 2, 4, 8)] == [0, 342, 392, 392]


def test_rows_and_their_versions() -> None:
    batch = rows_bytes(512, 2048)
    assert batch == 512 * 2048 * 16
    assert versions_bytes(batch, 3) == 4 * batch


# Training


def test_bl_108_residents_sum_to_the_total() -> None:
    found = training_memory(job(Degrees(tp=2.0, pp=2.0, dp=4.0, zero=1.0), num_micro_batches=8.0))
    assert sum(found.residents.values()) == pytest.approx(float(found.total))
    assert {"weights", "gradients", "optimizer", "activations", "logits", "collective buffers", "context"} <= set(
        found.residents
    )
    outside = found.residents["context"] + found.residents["collective buffers"]
    assert float(found.allocator_bytes) == pytest.approx(float(found.total - outside))


def test_training_by_hand() -> None:
    """One device, full recomputation: state of 18 bytes, inputs of 32 layers, 18 bytes per logit, and slack."""
    found = training_memory(job(kept=Kept.INPUT))
    loss = next(each for each in found.moments if each.interval == "loss")
    assert loss.residents["weights"] == 2 * 8_030_261_248
    assert loss.residents["optimizer"] == 12 * 8_030_261_248
    assert loss.residents["activations"] == 32 * 8192 * 2 * 4096
    assert loss.residents["logits"] == 18 * 8192 * 128256
    held = 18 * 8_030_261_248 + 32 * 8192 * 2 * 4096 + 18 * 8192 * 128256
    assert float(loss.total) == pytest.approx(1.095 * held + 0.9 * 2**30)
    assert found.fullest.interval == "update"


def test_the_first_stage_is_full_of_micro_batches_and_the_last_has_the_logits() -> None:
    found = training_memory(job(Degrees(pp=4.0), num_micro_batches=16.0))
    by_stage = {(each.stage, each.interval): each.residents for each in found.moments}
    first, last = by_stage["first", "loss"], by_stage["last", "loss"]
    assert first["activations"] == 4 * last["activations"]
    assert first["logits"] == 0.0
    assert last["logits"] == 18 * 8192 * 128256


def test_zero_3_gathers_two_layers_and_the_ends() -> None:
    found = training_memory(job(Degrees(dp=8.0, zero=3.0)))
    backward = next(each for each in found.moments if each.interval == "backward")
    ends, layer = 2 * 128256 * 4096 + 4096, 218_112_000
    assert backward.residents["weights"] == 2 * 8_030_261_248 / 8
    assert backward.residents["gathered weights"] == 2 * (ends + 2 * layer)
    assert backward.residents["whole gradients"] == 2 * (ends + layer) + 4 * layer
    piped = training_memory(job(Degrees(dp=8.0, pp=2.0, zero=3.0)))
    stage = next(each for each in piped.moments if (each.stage, each.interval) == ("first", "backward"))
    held = 16 * 218_112_000 + 128256 * 4096
    assert stage.residents["gathered weights"] == 2 * held
    assert stage.residents["whole gradients"] == 4 * held


def test_what_changes_what() -> None:
    def total(degrees: Degrees | None = None, **changes: Any) -> float:
        moments = training_memory(job(degrees, **changes)).moments
        return max(float(each.total) for each in moments if each.interval != "update")

    plain = total()
    assert total(kept=Kept.OFFLOADED) < total(kept=Kept.INPUT) < plain
    assert total(kept=Kept.INPUT, loss_pieces=16.0) < total(kept=Kept.INPUT)
    assert total(kept=Kept.INPUT, has_head=False) < total(kept=Kept.INPUT)
    assert plain - total(is_optimizer_on_host=True) == pytest.approx(1.095 * 12 * 8_030_261_248)
    assert total(adapter_rank=16) < plain / 2
    several = Degrees(pp=4.0)
    gpipe = total(several, num_micro_batches=16.0, pipeline=Pipeline.GPIPE)
    assert gpipe > total(several, num_micro_batches=16.0)


def test_adapters_train_next_to_nothing() -> None:
    found = training_memory(job(adapter_rank=16)).fullest.residents
    assert float(found["gradients"]) == pytest.approx(4 * adapter_parameters(LLAMA, 16))
    assert float(found["weights"]) == pytest.approx(2 * 8_030_261_248 + 2 * adapter_parameters(LLAMA, 16))


def test_many_layouts_at_once_are_what_they_are_one_by_one() -> None:
    tp, pp, zero = np.array([1.0, 2.0, 4.0, 8.0]), np.array([1.0, 4.0, 2.0, 1.0]), np.array([3.0, 0.0, 1.0, 2.0])
    together = training_memory(job(Degrees(tp=tp, pp=pp, dp=8.0, zero=zero), num_micro_batches=8.0))
    totals = np.asarray(together.total)
    for i in range(4):
        degrees = Degrees(tp=float(tp[i]), pp=float(pp[i]), dp=8.0, zero=float(zero[i]))
        assert totals[i] == pytest.approx(float(training_memory(job(degrees, num_micro_batches=8.0)).total))
    assert np.asarray(sum(together.residents.values())) == pytest.approx(totals)


@given(
    st.sampled_from([1.0, 2.0, 4.0, 8.0]), st.sampled_from([1.0, 2.0, 4.0]), st.sampled_from([1.0, 8.0]),
    st.sampled_from([0.0, 1.0, 2.0]), st.sampled_from(list(Kept)),
)  # fmt: skip
def test_more_ranks_never_need_more(tp: float, pp: float, dp: float, zero: float, kept: Kept) -> None:
    degrees = Degrees(tp=tp, pp=pp, dp=dp, zero=zero, is_sequence_parallel=True)

    def total(ranks: Degrees, **changes: Any) -> float:
        return float(training_memory(job(ranks, kept=kept, num_micro_batches=8.0, **changes)).allocator_bytes)

    assert total(degrees) > 0
    assert total(replace(degrees, tp=2 * tp)) <= total(degrees)
    assert total(replace(degrees, dp=2 * dp)) <= total(degrees)
    assert total(replace(degrees, zero=zero + 1.0)) <= total(degrees) or zero == 2.0
    assert total(degrees, tokens=4096.0) <= total(degrees)


# Generation


def test_bl_106_caches_have_kv_heads() -> None:
    assert float(kv_bytes_on_device(LLAMA, 1, 1)) == 131_072
    assert float(kv_bytes_on_device(LLAMA, 1, 1, Degrees(tp=8.0))) == 131_072 / 8
    assert float(kv_bytes_on_device(LLAMA, 1, 1, Degrees(tp=16.0))) == 131_072 / 8
    latent = shape_of("DeepSeek-V3")
    assert float(kv_bytes_on_device(latent, 1, 1, Degrees(tp=8.0))) == 61 * (512 + 64) * 2


def test_bl_107_a_stage_keeps_all_micro_batches_under_way() -> None:
    """pp 4, requests of 1024 + 1024 tokens: a quarter of the layers, of the tokens of four micro-batches."""
    rows = rows_in_flight(16.0, 4.0)
    found = float(kv_bytes_on_device(LLAMA, rows, 1024 + 1024, Degrees(pp=4.0)))
    assert found == 131_072 / 4 * 4 * 16 * 2048
    generation = Generation(LLAMA, Degrees(pp=4.0), rows=16.0, context_tokens=2048.0)
    assert generation_memory(generation).residents["keys and values"] == found


def test_generation_sums_and_room() -> None:
    found = generation_memory(Generation(MIXTURE, Degrees(tp=4.0, pp=2.0), rows=32.0, context_tokens=4096.0))
    assert float(found.total) == pytest.approx(sum(found.residents.values()))
    room = kv_tokens_room(LLAMA, 131_072.0 * 1000)
    assert float(room) == pytest.approx(1000.0)


# What does not fit


def test_what_fits_has_no_shortfall() -> None:
    assert shortfall(Moment("first", "loss", {"weights": 5.0}), 5.0) is None


def test_a_shortfall_names_residents_by_size() -> None:
    found = shortfall(training_memory(job()).fullest, 80e9)
    assert found is not None
    assert found.residents[0][0] == "optimizer"
    sizes = [size for _, size in found.residents]
    assert sizes == sorted(sizes, reverse=True)
    assert found.missing_bytes == pytest.approx(sum(sizes) - 80e9)
    text = str(found.fault("train"))
    assert "of 80.0 GB on the first stage during" in text
    assert "too much: optimizer 96.4 GB" in text
    assert "add devices" in text


def test_the_smallest_remedy_is_tried_first() -> None:
    ample = job(Degrees(dp=8.0, zero=1.0), kept=Kept.INPUT)
    needs = float(training_memory(ample).total)
    remedy = smallest_remedy(ample, needs - 1e9)
    assert remedy is not None
    assert remedy.changes == ("make logits in 16 pieces",)
    assert remedy.total_bytes <= needs - 1e9
    found = shortfall(training_memory(ample).fullest, needs - 1e9)
    assert found is not None
    assert "; make logits in 16 pieces: " in str(found.fault("train", remedy))


def test_remedies_add_up_where_none_is_enough_alone() -> None:
    remedy = smallest_remedy(job(Degrees(dp=8.0), tokens=4 * 8192.0), 40e9)
    assert remedy is not None
    assert len(remedy.changes) > 1
    assert "ZeRO level 3" in remedy.changes
    assert float(training_memory(remedy.training).total) == pytest.approx(remedy.total_bytes)
    assert remedy.total_bytes <= 40e9


def test_smaller_micro_batches_and_splits_are_remedies() -> None:
    large = job(Degrees(dp=8.0, zero=3.0), tokens=8 * 8192.0, loss_pieces=2.0)
    needs = float(training_memory(replace(large, tokens=4 * 8192.0)).total)
    halved = smallest_remedy(large, needs)
    assert halved is not None
    assert halved.changes == ("micro-batches of 4 rows",)
    assert halved.training.num_micro_batches == 2.0
    ranks = Degrees(dp=8.0, zero=3.0, is_sequence_parallel=True)
    tight = job(ranks, tokens=65536.0, length_tokens=65536.0, kept=Kept.INPUT, loss_pieces=64.0)
    needs = float(training_memory(replace(tight, degrees=replace(ranks, tp=2.0, dp=4.0))).total)
    remedy = smallest_remedy(tight, needs)
    assert remedy is not None
    assert remedy.changes == ("tensor parallelism 2",)
    assert remedy.training.degrees.dp == 4.0


def test_what_can_never_fit_has_no_remedy() -> None:
    assert smallest_remedy(job(), 1e9) is None


# Profiles


def test_memory_profiles_are_read_and_generic_is_the_default() -> None:
    names = {profile.name for profile in profiles("memory")}
    assert {"generic", "megatron", "megatron-2022", "nanotron", "torch-fsdp", "deepspeed"} <= names
    for name in names:
        assert read_table("memory", name, MemoryConstants).constants.slack_share >= 0.0
    assert read_table("memory", "generic", MemoryConstants).constants == MemoryConstants()
    assert read_table("memory", "prime-rl", MemoryConstants).profile.name == "torch-fsdp"
