"""Generation with lengths: what a model of mean lengths cannot say, each beside a simulation or numbers by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpeg.hardware.naming import system_for
from rpeg.perf.decode import DecodeTable, decode_table
from rpeg.perf.engine import Engine, cache_bytes, engine_for, weight_bytes
from rpeg.perf.generation import Turns, Work, generation_time, recompute_s
from rpeg.perf.lengths import Lengths, carried, constant, empirical, lognormal
from rpeg.shapes.catalog import shape_of

SHAPE = shape_of("Qwen2.5-7B")
PROMPT = constant(200.0)
HEAVY = lognormal(1500.0, 1.0, 8192.0)


@cache
def engine(slots: float = 256.0, tp: int = 1) -> Engine:
    return engine_for(system_for("h100_sxm"), tp=tp).with_constants(slots=slots)


def work(requests: float, responses: Lengths, **others: object) -> Work:
    return replace(Work(requests, PROMPT, responses), **others)  # pyright: ignore[reportArgumentType]


def simulated(lengths: npt.NDArray[np.float64], slots: int, table: DecodeTable) -> tuple[float, float]:
    """Return latency and occupancy of one replica, event by event."""
    first, waiting = np.ceil(lengths[:slots]), list(np.ceil(lengths[slots:]))
    left, age, latency_s, slot_s = first, np.zeros(len(first)), 0.0, 0.0
    while len(left):
        steps = min(float(left.min()), 64.0)
        seconds = steps * float(table.lookup(float(len(left)), 200.0 + age.mean() + steps / 2))
        latency_s, slot_s = latency_s + seconds, slot_s + seconds * len(left)
        left, age = left - steps, age + steps
        done = int((left <= 0).sum())
        begun, waiting = waiting[:done], waiting[done:]
        age = np.concatenate([age[left > 0], np.zeros(len(begun))])
        left = np.concatenate([left[left > 0], begun])
    return latency_s, slot_s / min(slots, len(lengths))


@pytest.mark.parametrize(
    ("responses", "requests", "slots", "replicas"),
    [
        (constant(1000.0), 64, 64, 8),
        (constant(1000.0), 64, 16, 1),
        (constant(1000.0), 96, 64, 4),
        (HEAVY, 64, 64, 1),
        (HEAVY, 64, 64, 8),
        (HEAVY, 64, 16, 8),
        (HEAVY, 96, 64, 4),
        (lognormal(1000.0, 0.5), 256, 16, 4),
        (empirical([100, 100, 100, 4000]), 48, 32, 4),
    ],
)
def test_a_simulation_agrees(responses: Lengths, requests: int, slots: int, replicas: int) -> None:
    random, table = np.random.default_rng(7), decode_table(engine(float(slots)), SHAPE)
    runs = list[list[tuple[float, float]]]()
    for _ in range(10):
        drawn = random.choice(responses.tokens, size=(replicas, requests), p=responses.shares)
        runs.append([simulated(each, slots, table) for each in drawn])
    slowest = np.mean([max(latency for latency, _ in run) for run in runs])
    occupied = np.mean([occupancy for run in runs for _, occupancy in run])
    found = generation_time(engine(float(slots)), SHAPE, work(requests * replicas, responses), replicas)
    assert found.latency_s - found.prefill_s == pytest.approx(slowest, rel=0.08)
    assert found.occupancy_s - found.prefill_s == pytest.approx(occupied, rel=0.05)
    assert found.output_tokens == pytest.approx(requests * replicas * responses.mean_tokens, rel=1e-3)


def test_one_wave_of_equal_lengths_by_hand() -> None:
    found = generation_time(engine(), SHAPE, work(64, constant(1000.0)))
    table, ages = decode_table(engine(), SHAPE), np.arange(1000) + 0.5
    assert found.decode_s == pytest.approx(float(table.lookup(64.0, 200.0 + ages).sum()), rel=2e-3)
    assert found.occupancy_s == pytest.approx(found.latency_s, rel=1e-3)
    assert found.kv_tokens == pytest.approx(64 * 1200.0, rel=0.01)
    assert (found.waves, found.sequences) == (1.0, 64.0)


def test_the_slowest_of_many_replicas_is_slower_than_one() -> None:
    one = generation_time(engine(), SHAPE, work(64, HEAVY))
    many = generation_time(engine(), SHAPE, work(64 * 32, HEAVY), replicas=32)
    assert many.occupancy_s == pytest.approx(one.occupancy_s)
    assert many.latency_s > 1.15 * one.latency_s
    equal = (generation_time(engine(), SHAPE, work(64 * n, constant(1500.0)), n).latency_s for n in (1, 32))
    assert len({round(seconds, 6) for seconds in equal}) == 1


def test_equal_means_are_not_equal_times() -> None:
    mean = generation_time(engine(), SHAPE, work(64, constant(HEAVY.mean_tokens)))
    drawn = generation_time(engine(), SHAPE, work(64, HEAVY))
    assert drawn.latency_s > 3 * mean.latency_s
    assert drawn.occupancy_s < 1.5 * mean.occupancy_s


def test_more_replicas_gain_less_and_less() -> None:
    responses = lognormal(2000.0, 1.2, 28672.0)
    seconds = [generation_time(engine(), SHAPE, work(8192, responses), n).latency_s for n in (8, 16, 32, 64, 128)]
    gains = [before / after for before, after in pairwise(seconds)]
    assert all(gain < 2 for gain in gains)
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] < 1.15


def test_too_little_room_makes_waves() -> None:
    shape = shape_of("Llama-3.1-70B")
    roomy, tight = (engine_for(system_for("h100_sxm"), tp=tp) for tp in (4, 2))
    assert weight_bytes(tight, shape) == pytest.approx(2 * weight_bytes(roomy, shape), rel=1e-6)
    asked = work(256, constant(2000.0))
    assert generation_time(roomy, shape, asked).waves == 1.0
    found = generation_time(tight, shape, asked)
    room_bytes = tight.constants.memory_fraction * 80e9 - weight_bytes(tight, shape)
    kept = float(cache_bytes(tight, shape, 200.0 + tight.constants.reserved_share * 2000.0))
    assert found.sequences == pytest.approx(room_bytes / kept, rel=1e-6)
    assert found.waves == pytest.approx(256 / found.sequences)
    assert found.waves > 3
    assert found.latency_s > 3 * generation_time(roomy, shape, asked).latency_s


def test_members_of_a_group_share_their_prompt() -> None:
    long = Work(512, constant(4000.0), constant(500.0))
    alone, grouped = (generation_time(engine(), SHAPE, replace(long, group_size=g)) for g in (1.0, 16.0))
    assert grouped.prefill_s == pytest.approx(alone.prefill_s / 16, rel=0.01)
    assert grouped.kv_tokens < alone.kv_tokens
    tight = engine(10000.0)
    assert (
        generation_time(tight, SHAPE, replace(long, group_size=16.0)).waves < generation_time(tight, SHAPE, long).waves
    )


def test_asking_for_more_than_is_needed_cuts_the_tail() -> None:
    all_of_them = generation_time(engine(), SHAPE, work(64, HEAVY))
    most_of_them = generation_time(engine(), SHAPE, work(80, HEAVY, needed=64.0))
    assert most_of_them.latency_s < 0.55 * all_of_them.latency_s
    # 64 of 80 are done when 80 % are: by then everyone has written up to that length.
    written = 80 * float(HEAVY.mean_within(HEAVY.quantile(0.8)))
    assert most_of_them.output_tokens == pytest.approx(written, rel=0.03)


def test_a_budget_per_step_cuts_the_tail() -> None:
    new, brought = carried(HEAVY, 2048.0, 4)
    whole = generation_time(engine(), SHAPE, work(64, HEAVY))
    longer = constant(200.0 + brought.mean_tokens)
    cut = generation_time(engine(), SHAPE, Work(64, longer, new))
    assert cut.latency_s < 0.4 * whole.latency_s
    # As many samples are finished as begin, so that a finished one costs what it always costs, or a little less.
    finished = 64 * brought.shares[0]
    assert cut.occupancy_s / finished == pytest.approx(whole.occupancy_s / 64, rel=0.25)


def test_slots_that_are_refilled_cost_their_occupancy_only() -> None:
    found = generation_time(engine(), SHAPE, work(64, HEAVY))
    assert found.occupancy_s < 0.3 * found.latency_s


def test_new_weights_in_flight_cost_a_prefill_of_what_is_under_way() -> None:
    seconds = recompute_s(engine(), SHAPE, 64.0, 2000.0)
    assert seconds == pytest.approx(4 * recompute_s(engine(), SHAPE, 16.0, 2000.0), rel=0.05)
    assert recompute_s(engine(), SHAPE, 0.0, 2000.0) == 0.0


def test_turns_wait_for_their_environment() -> None:
    plain = generation_time(engine(), SHAPE, work(64, constant(1000.0)))
    turns = Turns(count=4.0, environment_s=5.0)
    waiting = generation_time(engine(), SHAPE, work(64, constant(1000.0), turns=turns))
    assert waiting.environment_s == pytest.approx(4 * 5.0, rel=1e-3)
    # While most samples wait, fewer decode at once, and each is faster.
    assert plain.latency_s < waiting.latency_s < plain.latency_s + 4 * 5.0
    assert waiting.occupancy_s < plain.occupancy_s


def test_too_few_workers_queue() -> None:
    turns = Turns(count=4.0, environment_s=5.0, workers=16.0)
    found = generation_time(engine(), SHAPE, work(64, constant(1000.0), turns=turns))
    # 64 samples with 4 turns of 5 s on 16 workers take 80 s at least.
    assert found.decode_s + found.environment_s == pytest.approx(80.0, rel=0.01)


def test_observations_are_read() -> None:
    turns = Turns(count=4.0, environment_s=0.0, observation_tokens=500.0)
    plain = generation_time(engine(), SHAPE, work(64, constant(1000.0)))
    found = generation_time(engine(), SHAPE, work(64, constant(1000.0), turns=turns))
    assert found.prefill_s == pytest.approx(plain.prefill_s + recompute_s(engine(), SHAPE, 256.0, 500.0))
    assert found.kv_tokens > plain.kv_tokens


@settings(deadline=None, max_examples=25)
@given(st.floats(200.0, 4000.0), st.floats(0.1, 1.5), st.integers(1, 512), st.sampled_from([1, 2, 8]))
def test_more_work_takes_longer(mean: float, variation: float, requests: int, replicas: int) -> None:
    responses = lognormal(mean, variation, 16384.0)
    found = generation_time(engine(64.0), SHAPE, work(requests * replicas, responses), replicas)
    more = generation_time(engine(64.0), SHAPE, work(2 * requests * replicas, responses), replicas)
    longer = generation_time(engine(64.0), SHAPE, work(requests * replicas, responses.scaled(2.0)), replicas)
    assert 0 < found.occupancy_s <= found.latency_s
    assert found.latency_s < 1.001 * more.latency_s
    assert found.latency_s < longer.latency_s
    assert found.output_tokens == pytest.approx(requests * replicas * responses.mean_tokens, rel=0.01)
