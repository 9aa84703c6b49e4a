"""Tables of layouts hold what divides, and nothing else."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.graph.stage import StageKind
from rpeg.perf import layouts as module
from rpeg.perf.layouts import Choice, LayoutTable, faults_of, layouts_for, table_of
from rpeg.plan.plan import Pipeline, Recompute
from rpeg.shapes.catalog import shape_of

DENSE, EXPERTS = shape_of("Qwen2.5-7B"), shape_of("Qwen3-30B-A3B")
KINDS = (StageKind.GENERATE, StageKind.FORWARD, StageKind.TRAIN, StageKind.UPDATE)


def rows_of(table: LayoutTable) -> list[Choice]:
    return [table.choice(row) for row in range(len(table))]


def test_doctests() -> None:
    assert doctest.testmod(module).failed == 0


@given(st.sampled_from([1, 6, 8, 24, 64, 256]), st.sampled_from(KINDS), st.sampled_from([96, 512, 1024]))
def test_everything_in_a_table_divides(devices: int, kind: StageKind, rows: int) -> None:
    for shape in (DENSE, EXPERTS):
        table = layouts_for(shape, devices, 8, kind, rows)
        assert set(faults_of(shape, table, devices, rows)) <= {""}
        for each in rows_of(table):
            assert each.num_devices == devices
            assert shape.layers % each.pp == 0
            assert (rows / each.dp) % each.micro_rows == 0


def test_heads_decide_how_far_tensors_are_split() -> None:
    """Qwen2.5-7B has 28 heads, 4 KV heads and 18944 = 2^9 · 37 channels."""
    assert {each.tp for each in rows_of(layouts_for(DENSE, 64, 8, StageKind.GENERATE, 512))} == {1, 2, 4}


def test_training_stays_within_two_nodes_and_generators_need_not() -> None:
    wide = shape_of("Llama-3.1-70B")
    assert max(layouts_for(wide, 64, 4, StageKind.TRAIN, 1024).tp) == 8
    assert max(layouts_for(wide, 64, 4, StageKind.GENERATE, 1024).tp) == 64


def test_experts_are_spread_over_neighbours() -> None:
    spread = {(each.tp, each.ep) for each in rows_of(layouts_for(EXPERTS, 8, 8, StageKind.TRAIN, 512)) if each.pp == 1}
    assert {(1, 1), (1, 8), (2, 2), (2, 8), (4, 4)} <= spread
    assert all(ep == 1 or ep % tp == 0 for tp, ep in spread)
    gen = {(each.tp, each.ep) for each in rows_of(layouts_for(EXPERTS, 8, 8, StageKind.GENERATE, 512))}
    assert all(ep in (1, tp) for tp, ep in gen)


def test_only_training_shards_moments_recomputes_and_interleaves() -> None:
    forward, train = (layouts_for(DENSE, 8, 8, kind, 512) for kind in (StageKind.FORWARD, StageKind.TRAIN))
    assert {each.recompute for each in rows_of(forward)} == {Recompute.NONE}
    assert {each.recompute for each in rows_of(train)} == {Recompute.NONE, Recompute.FULL}
    assert {each.zero for each in rows_of(forward)} == {0, 3}
    assert {each.zero for each in rows_of(train)} == {1, 3}
    interleaved = [each for each in rows_of(train) if each.pipeline is Pipeline.INTERLEAVED]
    assert {each.pp for each in interleaved} == {2}  # 28 layers are no multiple of 2 · 4 parts
    assert all(512 / each.dp / each.micro_rows % each.pp == 0 for each in interleaved)


def test_context_parallelism_is_there_when_asked_for() -> None:
    assert {each.cp for each in rows_of(layouts_for(DENSE, 8, 8, StageKind.TRAIN, 512, max_cp=4))} == {1, 2, 4}


def test_columns_and_rows_say_the_same() -> None:
    choices = [Choice(tp=2, dp=4, micro_rows=2.0), Choice(pp=2, dp=4, zero=3, recompute=Recompute.FULL)]
    table = table_of(choices)
    assert rows_of(table) == choices
    assert rows_of(table.take([1])) == choices[1:]
    assert len(table.take(np.array([0, 1, 1]))) == 3
    assert np.asarray(table.degrees.zero).tolist() == [0, 3]


@pytest.mark.parametrize(
    ("choice", "fault"),
    [
        (Choice(tp=2), "2 ranks on 8 devices"),
        (Choice(tp=8), "tp 8 does not divide 28 heads"),
        (Choice(dp=4, pp=2, ep=4), "ep 4 does not divide 0 experts"),
        (Choice(dp=8), "dp 8 does not divide 100 rows"),
        (Choice(pp=56), "56 ranks on 8 devices, pp 56 is more than 28 layers"),
    ],
)
def test_faults_name_the_numbers(choice: Choice, fault: str) -> None:
    assert faults_of(DENSE, table_of([choice]), 8, 100) == (fault,)
