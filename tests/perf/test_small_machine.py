"""Terms that only small machines have: launches that add up, micro-batches, tensors, caches, crowding."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpeg.algorithms.grpo import grpo
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.hardware.catalog import load_system
from rpeg.numerics.micro_batches import FIXED_COST_TOKENS, split
from rpeg.perf.demand import Demand
from rpeg.perf.elementwise import ElementwiseConstants, stream_s
from rpeg.perf.estimate import Estimate
from rpeg.perf.layouts import Choice, table_of
from rpeg.perf.lengths import constant, empirical
from rpeg.perf.load import Precision
from rpeg.perf.micro_batches import FIXED_TOKENS, sorted_batches
from rpeg.perf.reshard import num_tensors
from rpeg.perf.software import Software, software_for
from rpeg.perf.stage import price_stage
from rpeg.perf.stage_work import StageWork
from rpeg.perf.trainer import Trainer, TrainingLayout, trainer_for
from rpeg.perf.training import forward_time, training_time
from rpeg.perf.workload import Workload
from rpeg.plan.bind import bind_local
from rpeg.shapes.catalog import shape_of

LOCAL, ONE = load_system("local:2"), load_system("local:1")
SHAPE = shape_of("Qwen2.5-0.5B")
LOAD = Workload({"actor": SHAPE}, constant(64.0), constant(64.0), "float32")
LAYOUT = TrainingLayout(micro_rows=4.0, dtype="float32")


def trainer(**changes: float | bool) -> Trainer:
    """Return this machine with some constants of training changed."""
    found = trainer_for(ONE, "rpeg")
    constants = replace(found.constants, **changes)  # pyright: ignore[reportArgumentType]
    return replace(found, constants=constants)


def software(**changes: float) -> Software:
    """Return RPEG's own engine with some constants changed."""
    found = software_for("rpeg")
    return replace(found, loaded=replace(found.loaded, constants=replace(found.constants, **changes)))  # pyright: ignore[reportArgumentType]


def test_launches_add_to_the_work_of_a_host() -> None:
    def layer_s(**changes: bool) -> float:
        return float(StageWork(trainer(micro_batch_s=0.0, **changes), SHAPE, LAYOUT, 128.0).layer_forward.compute_s)

    slow = replace(trainer(is_host_added=True), kernels=trainer().kernels.captured(False, 1.0))
    free = replace(trainer(is_host_added=True), kernels=trainer().kernels.captured(False, 0.0))
    launches = float(StageWork(slow, SHAPE, LAYOUT, 128.0).layer_forward.compute_s)
    work_s = float(StageWork(free, SHAPE, LAYOUT, 128.0).layer_forward.compute_s)
    host_s = (launches - work_s) * trainer().kernels.launch_s
    assert layer_s(is_host_added=True) == pytest.approx(work_s + host_s)
    assert layer_s(is_host_added=False) == pytest.approx(max(work_s, host_s))


@pytest.mark.parametrize("price", [training_time, forward_time])
def test_every_micro_batch_costs_the_host(price: object) -> None:
    bare, with_host = (
        float(price(trainer(micro_batch_s=seconds), SHAPE, LAYOUT, 32.0, 128.0).total_s)  # pyright: ignore[reportCallIssue]
        for seconds in (0.0, 0.25)
    )
    assert with_host - bare == pytest.approx(8 * 0.25)


def test_every_tensor_costs_an_update() -> None:
    demand = Demand(StageKind.UPDATE, LOAD, SHAPE, 0.0, updates=2.0)
    found = float(price_stage(demand, ONE, table_of([Choice()]), software_for("rpeg")).occupancy_s[0])
    constants = software_for("rpeg").trainer(ONE).constants
    moved_s = trainer().kernels.stream_s(494_032_768 * constants.optimizer_bytes, 1)
    expected = 2 * (moved_s + num_tensors(SHAPE) * constants.tensor_s) + software_for("rpeg").constants.firing_s
    assert found == pytest.approx(float(expected))


def test_rows_without_a_model_cost_once_and_each() -> None:
    demand = Demand(StageKind.VERIFY, LOAD, None, 100.0)
    used = software(rows_firing_s=0.5, verify_s=0.01, cores=2.0)
    assert float(price_stage(demand, ONE, table_of([Choice()]), used).occupancy_s[0]) == pytest.approx(0.5 + 0.5)


def test_caches_are_faster_up_to_their_size() -> None:
    plain, cached = (
        ElementwiseConstants(0.0, 1.0),
        ElementwiseConstants(0.0, 1.0, cached_bytes=1e6, cached_fraction=4.0),
    )
    assert float(stream_s(1e6, bytes_per_s=1e9, constants=cached)) == pytest.approx(2.5e-4)
    lost = stream_s(8e6, bytes_per_s=1e9, constants=plain) - stream_s(8e6, bytes_per_s=1e9, constants=cached)
    assert float(lost) == pytest.approx(7.5e-4)
    both = stream_s(2e6, launches=2, bytes_per_s=1e9, constants=cached)
    assert float(both) == pytest.approx(2 * 2.5e-4)


def test_a_model_in_float32_is_in_it_throughout() -> None:
    assert Precision.of("float32") == Precision(products="float32", cache="float32", head="float32")
    assert Precision.of("bfloat16") == Precision()


@settings(max_examples=60)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=40), st.integers(50, 3000))
def test_rows_are_cut_as_the_trainer_cuts_them(lengths: list[int], budget: int) -> None:
    assert FIXED_TOKENS == FIXED_COST_TOKENS
    batches = split(lengths, budget)
    padded = sum(max(lengths[row] for row in batch) * len(batch) for batch in batches)
    found = sorted_batches(empirical(lengths), len(lengths), budget)
    cost = found.total_rows * found.length_tokens + FIXED_TOKENS * found.count
    assert cost == pytest.approx(padded + FIXED_TOKENS * len(batches))


def test_a_budget_of_the_recipe_comes_before_layouts() -> None:
    demand = Demand(StageKind.TRAIN, replace(LOAD, micro_batch_tokens=1024.0), SHAPE, 32.0)
    found = [price_stage(demand, ONE, table_of([Choice(micro_rows=n)]), software_for("rpeg")) for n in (1.0, 8.0)]
    assert 0.0 < found[0].occupancy_s[0] == found[1].occupancy_s[0] < 1e6
    own = price_stage(replace(demand, workload=LOAD), ONE, table_of([Choice(micro_rows=8.0)]), software_for("rpeg"))
    assert own.occupancy_s[0] == pytest.approx(found[0].occupancy_s[0])  # 8 rows of 128 tokens are 1024


def test_slots_of_the_recipe_bound_a_generator() -> None:
    def seconds(slots: float | None) -> float:
        demand = Demand(StageKind.GENERATE, replace(LOAD, slots=slots), SHAPE, 64.0)
        found = price_stage(demand, ONE, table_of([Choice()]), software_for("rpeg"))
        return float(found.occupancy_s[0] + found.tail_s[0])

    assert seconds(16.0) > 1.1 * seconds(64.0)  # four waves, each with its launches
    assert seconds(None) == seconds(64.0)


def priced(graph: Graph, crowding: float) -> dict[str, float]:
    """Return the seconds of one firing of every stage."""
    plan = bind_local(graph)
    estimate = Estimate(graph, plan, LOAD, LOCAL, software(crowding=crowding))
    found = {each.stage: estimate.seconds(each.stage, each) for each in plan.bindings}
    return {name: each.occupancy_s + each.tail_s for name, each in found.items()}


def test_workers_side_by_side_lose_what_the_shorter_one_takes() -> None:
    graph = grpo(4, 4, staleness=1)
    alone, crowded = priced(graph, 0.0), priced(graph, 0.5)
    sides = [{"gen", "pull"}, alone.keys() - {"gen", "pull", "reward", "advantage"}]
    short, long = sorted(sides, key=lambda side: sum(alone[name] for name in side))
    share = sum(alone[name] for name in short) / sum(alone[name] for name in long)
    assert {name: crowded[name] / alone[name] for name in short} == pytest.approx(dict.fromkeys(short, 1.5))
    assert {name: crowded[name] / alone[name] for name in long} == pytest.approx(dict.fromkeys(long, 1.0 + 0.5 * share))
    assert crowded["reward"] == alone["reward"]  # the host's stages wait for neither


def test_workers_in_turns_lose_nothing() -> None:
    graph = grpo(4, 4)
    assert priced(graph, 0.5) == priced(graph, 0.0)
