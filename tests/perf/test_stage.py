"""The price list of a stage: the same by table and one by one, and what must grow with what."""

from __future__ import annotations

import doctest
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpeg.graph.stage import StageKind
from rpeg.hardware.catalog import load_system
from rpeg.perf import software as software_module
from rpeg.perf import stage as module
from rpeg.perf.demand import Demand
from rpeg.perf.layouts import Choice, layouts_for, table_of
from rpeg.perf.lengths import constant, lognormal
from rpeg.perf.software import PublishConstants, publish_s, software_for
from rpeg.perf.stage import price_choice, price_stage
from rpeg.perf.stage_batches import batches_of
from rpeg.perf.stage_generation import work_of
from rpeg.perf.stage_prices import StagePrices
from rpeg.perf.workload import Workload
from rpeg.plan.plan import Balance, Pipeline, Recompute
from rpeg.shapes.catalog import shape_of
from rpeg.shapes.operations import causal_flops_per_token

SOFTWARE = software_for("generic")
NODE, PAIR = load_system("dgx-h100:8"), load_system("dgx-h100:16")
DENSE, EXPERTS = shape_of("Qwen2.5-7B"), shape_of("Qwen3-30B-A3B")
LOAD = Workload({"actor": DENSE}, constant(512.0), constant(512.0))
SPREAD = Workload({"actor": DENSE}, lognormal(512.0, 0.6, 2048.0), lognormal(1024.0, 0.8, 4096.0))
COLUMNS = ("occupancy_s", "tail_s", "held_bytes", "gradient_bytes", "working_bytes", "device_flops")


def demand(kind: StageKind, rows: float = 256, load: Workload = LOAD, **more: Any) -> Demand:
    return Demand(kind, load, load.shape("actor"), rows, **more)


def one(asked: Demand, choice: Choice, **more: Any) -> StagePrices:
    return price_stage(asked, NODE, table_of([choice]), SOFTWARE, **more)


def seconds(asked: Demand, choice: Choice, **more: Any) -> float:
    return float(one(asked, choice, **more).occupancy_s[0])


def test_doctests() -> None:
    assert doctest.testmod(module).failed == 0
    assert doctest.testmod(software_module).failed == 0


@pytest.mark.parametrize("kind", [StageKind.GENERATE, StageKind.FORWARD, StageKind.TRAIN, StageKind.UPDATE])
@pytest.mark.parametrize("shape", [DENSE, EXPERTS], ids=lambda shape: shape.name)
def test_a_table_costs_what_its_rows_cost(kind: StageKind, shape: Any) -> None:
    asked = replace(demand(kind, 0 if kind is StageKind.UPDATE else 256, SPREAD), shape=shape)
    table = layouts_for(shape, 8, 8, kind, asked.rows)
    some = table.take(range(0, len(table), max(1, len(table) // 12)))
    together = price_stage(asked, NODE, some, SOFTWARE)
    for row in range(len(some)):
        alone = one(asked, some.choice(row))
        for column in COLUMNS:
            assert getattr(together, column)[row] == pytest.approx(getattr(alone, column)[0], rel=1e-9), column
    assert together.is_feasible.all()
    assert (together.occupancy_s > 0).all()


def test_a_layout_that_is_none_has_a_reason_and_no_price() -> None:
    found = one(demand(StageKind.TRAIN), Choice(tp=3))
    assert found.reasons == ["3 ranks on 8 devices, tp 3 does not divide 28 heads"]
    assert np.isinf(found.occupancy_s).all()
    assert not found.is_feasible.any()
    assert np.isinf(one(demand(StageKind.GENERATE), Choice(tp=3)).occupancy_s).all()


def test_a_price_is_looked_up_the_second_time() -> None:
    asked, choice = demand(StageKind.TRAIN), Choice(dp=8, zero=1)
    assert price_choice(asked, NODE, choice, SOFTWARE) is price_choice(
        replace(asked), NODE, Choice(dp=8, zero=1), SOFTWARE
    )


@settings(max_examples=20)
@given(st.sampled_from([StageKind.FORWARD, StageKind.TRAIN, StageKind.GENERATE]), st.integers(1, 6))
def test_more_rows_take_longer(kind: StageKind, doublings: int) -> None:
    fewer, more = (
        one(demand(kind, 8.0 * 2**n, SPREAD), Choice(dp=8, micro_rows=1.0)) for n in (doublings - 1, doublings)
    )
    assert more.occupancy_s[0] > fewer.occupancy_s[0]


def test_training_costs_a_few_forward_passes() -> None:
    forward, train = (seconds(demand(kind), Choice(dp=8, zero=1)) for kind in (StageKind.FORWARD, StageKind.TRAIN))
    assert 2.4 < train / forward < 4.0
    again = seconds(demand(StageKind.TRAIN), Choice(dp=8, zero=1, recompute=Recompute.FULL))
    assert 1.1 < again / train < 1.4


def test_two_optimizer_steps_take_twice_as_long() -> None:
    once, twice = (seconds(demand(StageKind.UPDATE, updates=n), Choice(dp=8, zero=1)) for n in (1.0, 2.0))
    firing_s = SOFTWARE.constants.firing_s
    assert twice - firing_s == pytest.approx(2 * (once - firing_s))


def test_a_pipeline_waits_less_with_more_micro_batches() -> None:
    few, many = (seconds(demand(StageKind.TRAIN), Choice(pp=4, dp=2, micro_rows=n, zero=1)) for n in (32.0, 4.0))
    assert few > 1.2 * many
    parts = Choice(pp=4, dp=2, micro_rows=16.0, zero=1)
    assert seconds(demand(StageKind.TRAIN), replace(parts, pipeline=Pipeline.INTERLEAVED)) < seconds(
        demand(StageKind.TRAIN), parts
    )


def test_what_is_dealt_by_rows_waits_for_the_fullest_rank() -> None:
    by = {balance: seconds(demand(StageKind.TRAIN, 64, SPREAD), Choice(dp=8, balance=balance)) for balance in Balance}
    assert by[Balance.ROWS] > 1.15 * by[Balance.TOKENS]


def test_padding_costs_more_than_packing() -> None:
    packed, padded = (
        seconds(demand(StageKind.TRAIN, 256, SPREAD), Choice(dp=8, micro_rows=8.0, is_packed=each))
        for each in (True, False)
    )
    assert padded > 1.5 * packed


def test_packed_micro_batches_have_the_tokens_of_their_rows() -> None:
    table = table_of([Choice(dp=8, micro_rows=4.0), Choice(dp=4, micro_rows=64.0)])
    found = batches_of(LOAD.samples, 256, table, is_packed=True, balance=Balance.TOKENS)
    assert found.count.tolist() == [8, 1]
    assert (found.count * found.rows * found.length_tokens * table.dp).tolist() == [256 * 1024] * 2


def test_bytes_of_training_by_hand() -> None:
    """ZeRO 1 on 8 ranks: bfloat16 weights whole, float32 weights and moments in eighths, gradients whole."""
    parameters = 7_615_616_512
    found = one(demand(StageKind.TRAIN), Choice(dp=8, zero=1))
    assert found.held_bytes[0] == pytest.approx(2.0 * parameters + 12.0 * parameters / 8, rel=1e-6)
    assert found.gradient_bytes[0] == pytest.approx(4.0 * parameters, rel=1e-6)
    whole = one(demand(StageKind.TRAIN), Choice(dp=8, zero=3))
    assert whole.held_bytes[0] == pytest.approx(14.0 * parameters / 8, rel=1e-6)


def test_recomputing_needs_less_room() -> None:
    kept, again = (
        one(demand(StageKind.TRAIN), Choice(dp=8, micro_rows=8.0, recompute=each)).working_bytes[0]
        for each in (Recompute.NONE, Recompute.FULL)
    )
    assert again < 0.7 * kept


def test_a_value_needs_no_logits() -> None:
    logits, value = (
        one(demand(StageKind.FORWARD, has_logits=each), Choice(dp=8, micro_rows=8.0)) for each in (True, False)
    )
    assert value.working_bytes[0] < logits.working_bytes[0]
    assert value.device_flops[0] < logits.device_flops[0]


def test_operations_are_those_of_the_model() -> None:
    """Recomputation does not count, and training is three passes."""
    per_token = float(causal_flops_per_token(DENSE, 1024.0))
    train = one(demand(StageKind.TRAIN), Choice(dp=8, recompute=Recompute.FULL))
    assert train.device_flops[0] == pytest.approx(3 * 256 * 1024 * per_token)


def test_adapters_are_cheaper_to_train() -> None:
    whole, adapter = (one(demand(StageKind.TRAIN, trains_weights=each), Choice(dp=8)) for each in (True, False))
    assert adapter.occupancy_s[0] < 0.9 * whole.occupancy_s[0]
    assert adapter.gradient_bytes[0] < 0.05 * whole.gradient_bytes[0]
    assert one(demand(StageKind.UPDATE, 0, trains_weights=False), Choice(dp=8)).occupancy_s[0] < 0.021


def test_an_update_moves_bytes() -> None:
    """Forty bytes for every parameter of a rank, at the bandwidth of its memory."""
    used, trainer = SOFTWARE.constants, SOFTWARE.trainer(NODE)
    found = one(demand(StageKind.UPDATE, 0), Choice(dp=8, zero=1)).occupancy_s[0] - used.firing_s
    wanted = float(trainer.kernels.stream_s(7_615_616_512 / 8 * trainer.constants.optimizer_bytes, 1))
    assert found == pytest.approx(wanted, rel=1e-6)
    average = one(demand(StageKind.UPDATE, 0, is_average=True), Choice(dp=8, zero=1))
    assert average.gradient_bytes[0] == 0


def test_generation_has_a_tail_and_less_of_it_on_more_ranks() -> None:
    asked = demand(StageKind.GENERATE, 512, SPREAD)
    found = one(asked, Choice(dp=8))
    assert found.tail_s[0] > 0
    assert one(asked, Choice(tp=4, dp=2)).tail_s[0] < found.tail_s[0]
    assert found.held_bytes[0] == pytest.approx(2.0 * 7_615_616_512, rel=1e-6)


def test_with_little_memory_generation_goes_in_waves() -> None:
    asked = demand(StageKind.GENERATE, 4096, SPREAD)
    wide, narrow = (one(asked, Choice(dp=8), memory_bytes=size) for size in (70e9, 20e9))
    assert narrow.occupancy_s[0] > 1.3 * wide.occupancy_s[0]
    assert narrow.working_bytes[0] < wide.working_bytes[0]


def test_few_slots_are_waves_as_well() -> None:
    asked = demand(StageKind.GENERATE, 4096, SPREAD)
    assert seconds(asked, Choice(dp=8, micro_rows=64.0)) > 1.3 * seconds(asked, Choice(dp=8))


def test_rounds_follow_one_another() -> None:
    once, thrice = (one(demand(StageKind.GENERATE, 512, SPREAD, rounds=n), Choice(dp=8)) for n in (1.0, 3.0))
    assert thrice.occupancy_s[0] > 2 * (once.occupancy_s[0] + once.tail_s[0])
    assert thrice.device_flops[0] == pytest.approx(3 * once.device_flops[0])


def test_what_is_not_needed_is_not_waited_for() -> None:
    asked = demand(StageKind.GENERATE, 640, SPREAD)
    all_of_them, most = (one(replace(asked, needed=each), Choice(dp=8)) for each in (None, 512.0))
    assert (most.occupancy_s + most.tail_s)[0] < 0.8 * (all_of_them.occupancy_s + all_of_them.tail_s)[0]


def test_a_group_reads_its_prompt_once() -> None:
    long = Workload({"actor": DENSE}, constant(8192.0), constant(64.0))
    alone, grouped = (seconds(demand(StageKind.GENERATE, 512, long, group_size=n), Choice(dp=8)) for n in (1.0, 8.0))
    assert grouped < 0.5 * alone


def test_samples_that_are_carried_over_are_read_again() -> None:
    work = work_of(demand(StageKind.GENERATE, 100, SPREAD, budget_tokens=512.0, max_carry=1), SOFTWARE)
    assert work.requests > 100
    assert work.prompts.mean_tokens > SPREAD.prompts.mean_tokens
    assert work.responses.mean_tokens < SPREAD.responses.mean_tokens
    assert work.requests * work.responses.mean_tokens == pytest.approx(100 * SPREAD.responses.mean_tokens)


def test_environments_pause_samples() -> None:
    load = replace(SPREAD, environment_s=5.0, observation_tokens=100.0)
    alone, turns = (one(demand(StageKind.GENERATE, 512, load, turns=n), Choice(dp=8)) for n in (0.0, 4.0))
    assert (turns.occupancy_s + turns.tail_s)[0] > (alone.occupancy_s + alone.tail_s)[0] + 4 * 5.0 * 0.9


def test_an_evaluation_counts_by_its_share_of_steps() -> None:
    each, eighth = (seconds(demand(StageKind.EVALUATE, 512, SPREAD, share=n), Choice(dp=8)) for n in (1.0, 0.125))
    assert eighth == pytest.approx(each / 8)


def test_rows_on_hosts_by_hand() -> None:
    """1000 rows of 1 ms on 16 cores of each of two hosts."""
    asked = Demand(StageKind.VERIFY, LOAD, None, 1000)
    found = price_stage(asked, PAIR, table_of([Choice(), Choice()]), SOFTWARE)
    used = SOFTWARE.constants
    assert found.occupancy_s.tolist() == pytest.approx([1000 * used.verify_s / (used.cores * 2)] * 2)
    assert found.working_bytes.tolist() == [0, 0]


def test_passes_in_one_dispatch_add_up() -> None:
    parts = tuple(demand(StageKind.FORWARD, has_logits=each) for each in (True, False))
    both = price_stage(
        Demand(StageKind.FORWARD, LOAD, None, 256, parts=parts), NODE, table_of([Choice(dp=8)]), SOFTWARE
    )
    singles = [one(part, Choice(dp=8)) for part in parts]
    assert both.occupancy_s[0] == pytest.approx(sum(each.occupancy_s[0] for each in singles))
    assert both.held_bytes[0] == pytest.approx(sum(each.held_bytes[0] for each in singles))


def test_a_move_is_priced_elsewhere() -> None:
    assert seconds(demand(StageKind.PUSH), Choice(dp=8)) == 0


def test_unknown_devices_are_said() -> None:
    found = price_stage(demand(StageKind.TRAIN), load_system("mi300x:8"), table_of([Choice(dp=8)]), SOFTWARE)
    assert "no devices profile" in found.extrapolates


def test_publishing_by_hand() -> None:
    constants = PublishConstants(1.0, 10e9, 2e9, crossing_bytes_per_s=5e9, tensor_s=1e-3)
    assert publish_s(20e9, 4e9, 1000, constants) == pytest.approx(1 + 2 + 2 + 1)
    assert publish_s(20e9, 5e9, 1000, constants, is_crossing=True) == pytest.approx(1 + 2 + 2.5 + 1 + 5)
