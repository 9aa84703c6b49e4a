"""Updates against sums worked out from their layers, and what must hold whatever the layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpeg.hardware.catalog import load_system
from rpeg.perf.collectives import Collective
from rpeg.perf.layer import (
    LayerKind,
    backward_time,
    embedding_time,
    head_backward_time,
    head_time,
    layer_time,
)
from rpeg.perf.lengths import constant, lognormal
from rpeg.perf.load import Load, Precision, Split
from rpeg.perf.profile import profiles
from rpeg.perf.stage_work import Pass, StageWork
from rpeg.perf.trainer import Trainer, TrainingConstants, TrainingLayout, trainer_for
from rpeg.perf.training import TrainingTime, evened, forward_time, training_time
from rpeg.perf.training_traffic import overlapped_s, visited_share
from rpeg.plan.plan import Pipeline, Recompute
from rpeg.shapes.catalog import shape_of
from rpeg.shapes.model import ModelShape

H100 = load_system("dgx-h100")
LLAMA, EXPERTS = shape_of("Llama-3.1-8B"), shape_of("Qwen3-30B-A3B")
PLAIN = TrainingConstants(
    product_factor={"default": 1.0},
    attention_factor={"default": 1.0},
    block_factor=1.0,
    elementwise_factor=1.0,
    launch_factor=1.0,
    interference=0.0,
    tp_exposed=1.0,
    ep_exposed=1.0,
    send_exposed=1.0,
    dp_hidden=1.0,
    gradient_bytes=4.0,
    accumulate_bytes=0.0,
    optimizer_bytes=0.0,
    step_s=0.0,
    expert_factor={"default": 1.0},
    expert_s=0.0,
    imbalance=1.0,
)
"""Nothing but the operations, one after the other."""


def trainer(**changes: object) -> Trainer:
    return replace(trainer_for(H100, "generic"), constants=replace(PLAIN, **changes))


def total(time: TrainingTime) -> float:
    return float(time.total_s)


def test_one_device_takes_what_its_operations_take() -> None:
    found = training_time(trainer(), LLAMA, TrainingLayout(micro_rows=2.0), rows=6, length_tokens=4096.0)

    kernels, load, split, precision = trainer().kernels, Load.prefill(2.0, 4096.0), Split(), Precision()
    layer = layer_time(LLAMA, kernels, load, split, precision, kind=LayerKind())
    back = backward_time(LLAMA, kernels, load, split, precision, kind=LayerKind())
    head = head_time(LLAMA, kernels, 8192.0, split), head_backward_time(LLAMA, kernels, 8192.0, split)
    ends_s = sum(float(each.total_s) for each in head) + 2.5 * float(
        embedding_time(LLAMA, kernels, 8192.0, split).total_s
    )
    assert total(found) == pytest.approx(3 * (32 * float(layer.total_s + back.total_s) + ends_s))
    assert found.compute_s == pytest.approx(total(found))


def test_parts_add_up() -> None:
    layout = TrainingLayout(tp=4.0, pp=4.0, dp=2.0, cp=2.0, zero=1, virtual_stages=2.0, pipeline=Pipeline.INTERLEAVED)
    found = training_time(trainer_for(H100, "nemo-24"), LLAMA, layout, rows=64, length_tokens=8192.0)
    parts = [getattr(found, f"{part}_s") for part in "compute tp cp ep dp bubble optimizer step".split()]

    assert sum(map(float, parts)) == pytest.approx(total(found))
    assert all(float(part) >= 0 for part in parts)
    assert min(float(found.tp_s), float(found.bubble_s), float(found.optimizer_s)) > 0


def test_recomputing_costs_one_more_forward_pass() -> None:
    def compute(recompute: Recompute, **changes: object) -> float:
        layout = TrainingLayout(recompute=recompute)
        return float(training_time(trainer(**changes), LLAMA, layout, 1, 4096.0).compute_s)

    work = StageWork(trainer(), LLAMA, TrainingLayout(), 4096.0)
    none, full = compute(Recompute.NONE), compute(Recompute.FULL)
    assert full - none == pytest.approx(32 * float(work.layer_forward.compute_s))
    # The last product is a third of the feed-forward block, about a fifth of the layer with its attention.
    assert 0.72 < (compute(Recompute.FULL, is_last_product_spared=True) - none) / (full - none) < 0.82
    assert none < compute(Recompute.SELECTIVE) < none + 0.25 * (full - none)
    by_operation = compute(Recompute.SELECTIVE, is_selected_by_operation=True)
    assert none + 0.4 * (full - none) < by_operation < none + 0.6 * (full - none)


def test_tensor_parallelism_divides_work_and_sends_hidden_states() -> None:
    one, four = (training_time(trainer(), LLAMA, TrainingLayout(tp=tp), 8, 4096.0) for tp in (1.0, 4.0))
    each_s = sum(
        float(trainer().collective_s(kind, 4096.0 * 4096 * 2, 4.0, 1.0))
        for kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    )

    assert one.tp_s == 0
    assert 1 < 4 * float(four.compute_s) / float(one.compute_s) < 1.3
    assert four.tp_s == pytest.approx(8 * 32 * 4 * each_s)


def test_gradients_hide_behind_the_last_backward_pass() -> None:
    layout = TrainingLayout(dp=64.0, zero=1)
    hidden = training_time(trainer(), LLAMA, layout, 64, 8192.0)
    seen = training_time(trainer(dp_hidden=0.0), LLAMA, layout, 64, 8192.0)

    assert hidden.dp_s == 0
    assert float(seen.dp_s) > 0.05


def test_zero_3_is_bound_by_the_network_where_micro_batches_are_small() -> None:
    shares: list[float] = []
    for length in (512.0, 4096.0, 32768.0):
        found = training_time(trainer(), LLAMA, TrainingLayout(dp=64.0, zero=3), 64, length)
        shares.append(float(found.dp_s) / total(found))

    assert shares[0] > 0.5 > shares[1] > shares[2]
    assert shares[2] < 0.1
    alone = training_time(trainer(), LLAMA, TrainingLayout(zero=3), 1, 512.0)
    assert alone.dp_s == 0


def test_hybrid_sharding_gathers_within_nodes() -> None:
    everywhere = TrainingLayout(dp=64.0, zero=3)
    within = replace(everywhere, zero_ranks=8.0)

    assert total(training_time(trainer(), LLAMA, within, 64, 1024.0)) < total(
        training_time(trainer(), LLAMA, everywhere, 64, 1024.0)
    )
    assert within.degrees.shards == 8


def test_kept_gathers_are_made_once() -> None:
    layout = TrainingLayout(dp=64.0, zero=3)
    again, kept = (
        training_time(trainer(), LLAMA, replace(layout, has_kept_gathers=kept), 64, 512.0) for kept in (False, True)
    )

    assert kept.dp_s < again.dp_s


def test_adapters_have_no_gradients_of_weights() -> None:
    use, layout = trainer(accumulate_bytes=8.0, optimizer_bytes=40.0, dp_hidden=0.0), TrainingLayout(dp=2.0, zero=1)
    whole = training_time(use, LLAMA, layout, 8, 4096.0)
    adapter = training_time(use, LLAMA, layout, 8, 4096.0, trains_weights=False)

    assert (adapter.dp_s, adapter.optimizer_s) == (0, 0)
    assert 0.6 < float(adapter.compute_s) / float(whole.compute_s) < 0.8


def test_a_critic_has_no_head() -> None:
    actor, critic = (
        training_time(trainer(), LLAMA, TrainingLayout(), 1, 4096.0, has_logits=has_logits)
        for has_logits in (True, False)
    )
    work = StageWork(trainer(), LLAMA, TrainingLayout(), 4096.0)

    assert total(actor) - total(critic) == pytest.approx(
        float(work.last_forward.total_s + work.last_backward.total_s), rel=1e-6
    )


def test_a_forward_pass_is_a_third_of_an_update() -> None:
    layout = TrainingLayout(tp=2.0, dp=4.0)
    update, forward = (each(trainer(), LLAMA, layout, 32, 4096.0) for each in (training_time, forward_time))

    assert 0.28 < total(forward) / total(update) < 0.36
    assert (forward.optimizer_s, forward.dp_s) == (0, 0)


def test_a_forward_pass_fills_the_pipeline_once() -> None:
    layout = TrainingLayout(pp=4.0)
    found = forward_time(trainer(), LLAMA, layout, 8, 4096.0)
    work = StageWork(trainer(), LLAMA, layout, 4096.0)
    stage_s = 8 * float(work.layer_forward.total_s)

    assert float(found.bubble_s) == pytest.approx(3 * stage_s, rel=0.1)


def test_layers_that_do_not_divide_leave_the_ends_shorter() -> None:
    thirty = replace(LLAMA, layers=30)
    time_of_32, time_of_30 = (
        float(training_time(trainer(), shape, TrainingLayout(pp=8.0), 64, 4096.0, has_logits=False).compute_s)
        for shape in (LLAMA, thirty)
    )

    assert time_of_30 == pytest.approx(time_of_32, rel=0.01)


def test_every_number_of_stages_and_parts_has_a_price() -> None:
    pairs = [(pp, vp) for vp in (1, 2, 3, 5) for pp in range(2, 33) if pp * vp <= LLAMA.layers]
    for pipeline in (Pipeline.ONE_F_ONE_B, Pipeline.INTERLEAVED):
        pp, vp = (np.array(each, dtype=float) for each in zip(*pairs, strict=True))
        layout = TrainingLayout(pp=pp, dp=2.0, zero=1, virtual_stages=vp, pipeline=pipeline)
        found = training_time(trainer_for(H100), LLAMA, layout, 64.0, 4096.0)
        for part in ("total_s", "compute_s", "dp_s", "optimizer_s"):
            assert np.all(np.asarray(getattr(found, part)) > 0.0), part
        assert np.all(np.asarray(found.bubble_s) >= 0.0)


def test_a_balanced_head_takes_layers_from_the_last_stage() -> None:
    even, balanced = (
        training_time(trainer(is_head_balanced=is_so), shape_of("Llama-3.2-1B"), TrainingLayout(pp=4.0), 64, 4096.0)
        for is_so in (False, True)
    )

    assert total(balanced) < total(even)


def test_experts_wait_for_their_tokens() -> None:
    layout = TrainingLayout(dp=16.0, ep=16.0, zero=1)
    times = {
        name: training_time(trainer(**changes), EXPERTS, layout, 16, 4096.0)
        for name, changes in {
            "plain": {},
            "once": {"is_token_sent_once": True},
            "counted": {"expert_s": 0.01},
            "slower": {"expert_factor": {"default": 1.5}},
            "uneven": {"imbalance": 1.5},
        }.items()
    }

    assert training_time(trainer(), EXPERTS, replace(layout, ep=1.0), 16, 4096.0).ep_s == 0
    # Two nodes, eight experts per token: sent once to the other node instead of four times.
    assert 0 < times["once"].ep_s < 0.5 * times["plain"].ep_s
    assert float(times["counted"].compute_s) > 48 * 0.03
    assert times["slower"].compute_s > 1.4 * times["plain"].compute_s
    assert times["uneven"].compute_s > 1.1 * times["plain"].compute_s


def test_a_token_visits_no_more_nodes_than_there_are() -> None:
    nodes = np.array([2.0, 4.0, 16.0, 1e6])
    visited = np.asarray(visited_share(nodes, 8.0)) * 8.0 * (nodes - 1.0) / nodes

    assert (visited <= np.minimum(nodes - 1.0, 8.0)).all()
    assert visited[-1] == pytest.approx(8.0, rel=1e-3)


def test_context_parallelism_divides_a_long_sequence() -> None:
    one, eight = (
        training_time(trainer(), LLAMA, TrainingLayout(cp=cp), 1, 131072.0, has_logits=False) for cp in (1.0, 8.0)
    )

    assert 7 < total(one) / total(eight) < 8
    assert eight.cp_s >= 0


def test_factors_are_by_generation_then_dtype() -> None:
    constants = replace(PLAIN, product_factor={"default": 1.2, "float8": 1.1, "blackwell": 1.3}, block_factor=2.0)
    hopper = replace(trainer_for(H100, "generic"), constants=constants)
    blackwell = replace(trainer_for(load_system("dgx-b200"), "generic"), constants=constants)

    assert (hopper.generation, blackwell.generation) == ("h100", "blackwell")
    assert [hopper.product_factor(dtype) for dtype in ("bfloat16", "float8", "mxfp8")] == [1.2, 1.1, 2.2]
    assert blackwell.product_factor("bfloat16") == 1.3


def test_what_a_profile_was_not_fitted_on_is_said() -> None:
    nemo = trainer_for(H100, "nemo-24")

    assert nemo.outside(LLAMA, TrainingLayout(tp=4.0, dp=4.0, dtype="float8"), 4096.0) == ""
    far = nemo.outside(EXPERTS, TrainingLayout(tp=4.0, pp=4.0, dp=64.0, cp=4.0), 131072.0)
    assert far == (
        "dtype bfloat16 new, feed_forward experts new, hidden 2048 below 4096, length_tokens 131072 above 8192, "
        "gpus 4096 above 64, cp 4 above 2"
    )
    assert "no training profile of axolotl" in trainer_for(H100, "axolotl").extrapolates


@pytest.mark.parametrize("name", [each.name for each in profiles("training")])
def test_profiles_are_complete(name: str) -> None:
    found = trainer_for(H100, name)

    assert found.profile is not None
    assert found.profile.name == name
    assert found.profile.fitted_on
    assert "device" in found.profile.covers
    assert 0 < total(training_time(found, EXPERTS, TrainingLayout(dp=8.0, ep=8.0, zero=1), 8, 4096.0)) < 5


def test_rows_of_different_lengths_become_rows_of_one() -> None:
    layout = TrainingLayout(dp=4.0, micro_rows=2.0)

    same, rows, length = evened(layout, constant(1000.0), 64)
    assert (same, rows, length) == (layout, 64.0, 1000.0)
    packed, rows, length = evened(layout, lognormal(1000.0, 0.8), 64, budget_tokens=8192)
    assert float(packed.micro_rows) * length <= 8192
    assert rows * length >= 64_000


def test_twice_the_devices_do_not_halve_an_update_of_few_long_samples() -> None:
    lengths = lognormal(4000.0, 1.2, 28672.0)
    seconds: list[float] = []
    for dp in (64.0, 128.0):
        layout, rows, length = evened(TrainingLayout(dp=dp, zero=3), lengths, 512, budget_tokens=30_000)
        seconds.append(total(training_time(trainer(), LLAMA, layout, rows, length)))

    assert 0.55 < seconds[1] / seconds[0] < 0.95


LAYOUTS = TrainingLayout(
    tp=np.array([1.0, 2.0, 8.0, 1.0, 4.0]),
    pp=np.array([1.0, 4.0, 2.0, 1.0, 8.0]),
    dp=np.array([64.0, 8.0, 4.0, 32.0, 1.0]),
    cp=np.array([1.0, 1.0, 1.0, 2.0, 2.0]),
    ep=np.array([8.0, 4.0, 4.0, 16.0, 8.0]),
    micro_rows=np.array([1.0, 2.0, 4.0, 1.0, 1.0]),
    virtual_stages=np.array([1.0, 2.0, 3.0, 1.0, 1.0]),
)


@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("shape", [LLAMA, EXPERTS], ids=lambda shape: shape.name)
def test_a_table_of_layouts_is_priced_like_each_alone(shape: ModelShape, zero: int) -> None:
    layouts = replace(LAYOUTS, zero=zero, pipeline=Pipeline.INTERLEAVED)
    use = trainer_for(H100, "megatron-bridge")
    table = np.asarray(training_time(use, shape, layouts, 256.0, 4096.0).total_s)

    for i in range(5):
        names = ("tp", "pp", "dp", "cp", "ep", "micro_rows", "virtual_stages")
        alone = replace(layouts, **{name: float(getattr(layouts, name)[i]) for name in names})
        assert table[i] == pytest.approx(total(training_time(use, shape, alone, 256.0, 4096.0)), rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 64),
    length=st.floats(128.0, 16384.0),
    tp=st.sampled_from([1.0, 2.0, 8.0]),
    pp=st.sampled_from([1.0, 2.0, 4.0]),
    zero=st.sampled_from([0, 1, 3]),
)
def test_more_work_takes_longer(rows: int, length: float, tp: float, pp: float, zero: int) -> None:
    use, layout = trainer_for(H100, "generic"), TrainingLayout(tp=tp, pp=pp, dp=2.0, zero=zero)
    base = total(training_time(use, LLAMA, layout, 2 * rows, length))

    assert 0 < base < total(training_time(use, LLAMA, layout, 4 * rows, length))
    assert base < total(training_time(use, LLAMA, layout, 2 * rows, 2 * length))
    assert base > total(forward_time(use, LLAMA, layout, 2 * rows, length))


@given(work=st.floats(0.0, 10.0), sent=st.floats(0.0, 10.0), interference=st.floats(0.0, 1.0))
def test_overlapping_is_between_the_longer_and_the_sum(work: float, sent: float, interference: float) -> None:
    both = float(overlapped_s(work, sent, interference))

    assert max(work, sent) <= both <= work + sent + 1e-9


def test_the_longer_pass_is_chosen_element_by_element() -> None:
    long, short = Pass(np.array([3.0, 1.0]), tp_s=np.array([0.0, 0.5])), Pass(np.array([1.0, 2.0]))

    chosen = long.larger(short)
    assert np.asarray(chosen.total_s).tolist() == [3.0, 2.0]
    assert np.asarray(chosen.tp_s).tolist() == [0.0, 0.0]
