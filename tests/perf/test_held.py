"""What data weigh on a device, by hand."""

from __future__ import annotations

import pytest

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.ppo import ppo
from rpeg.algorithms.reference import Reference
from rpeg.graph.contract import Kl
from rpeg.graph.graph import Graph
from rpeg.perf.held import Holdings, row_bytes
from rpeg.perf.layouts import Choice
from rpeg.perf.lengths import constant
from rpeg.perf.memory import MemoryConstants, StateBytes
from rpeg.perf.workload import Workload
from rpeg.shapes.catalog import shape_of

SHAPE = shape_of("Qwen2.5-7B")
P = 7_615_616_512
LOAD = Workload(dict.fromkeys(("actor", "critic", "ref", "rm"), SHAPE), constant(100.0), constant(300.0))


def holdings(graph: Graph, state: StateBytes | None = None) -> Holdings:
    return Holdings(graph, LOAD, MemoryConstants(state=state or StateBytes()), {"gen": 64.0})


@pytest.mark.parametrize(
    ("data", "choice", "dtype", "wanted"),
    [
        ("actor.master", Choice(dp=8), "float32", 2 * P + 4 * P + 8 * P),
        ("actor.master", Choice(dp=8, zero=1), "float32", 2 * P + 12 * P / 8),
        ("actor.master", Choice(dp=8, zero=3), "float32", 14 * P / 8),
        ("actor.master", Choice(dp=8), "bfloat16", 2 * P),
        ("actor.rollout", Choice(dp=8), "bfloat16", 2 * P),
        ("actor.rollout", Choice(dp=8), "float32", 4 * P),
        ("ref.weights", Choice(dp=8, zero=3), "bfloat16", 2 * P / 8),
        ("actor.grads", Choice(dp=8, zero=1), "float32", 4 * P),
        ("actor.grads", Choice(dp=8, zero=2), "float32", 4 * P / 8),
        ("kl.coef", Choice(dp=8), "float32", 0),
    ],
)
def test_weights_and_what_training_keeps(data: str, choice: Choice, dtype: str, wanted: float) -> None:
    assert holdings(ppo(64)).num_bytes(data, choice, dtype) == pytest.approx(wanted, rel=1e-6)


def test_moments_may_be_data_of_their_own() -> None:
    found = holdings(grpo(16, 4))
    master, moments = (
        found.num_bytes(f"actor.{name}", Choice(dp=4, zero=1), "float32") for name in ("master", "moments")
    )
    assert (master, moments) == pytest.approx((2 * P + P, 2 * P), rel=1e-6)


def test_a_profile_without_masters_keeps_float32_weights() -> None:
    found = holdings(grpo(16, 4), StateBytes(weights=4.0, master=0.0))
    assert found.num_bytes("actor.master", Choice(), "float32") == pytest.approx(4 * P, rel=1e-6)


def test_tensor_ranks_hold_their_share() -> None:
    found = holdings(ppo(64)).num_bytes("ref.weights", Choice(tp=4), "bfloat16")
    assert P / 2 < found < 1.01 * P / 2  # norms are on every rank


def test_rows_are_shared_out() -> None:
    """64 rows of 400 tokens with ids and masks, and 300 with log-probabilities and versions, over four ranks."""
    graph = ppo(64)
    each = 400 * (8 + 1) + 300 * (4 + 4) + 4
    assert row_bytes(graph.data_of["rollouts"], LOAD) == each
    assert holdings(graph).num_bytes("rollouts", Choice(dp=4), "float32") == 64 * each / 4


def test_prompts_are_one_per_group() -> None:
    graph = grpo(16, 4)
    each = row_bytes(graph.data_of["prompts"], LOAD)
    assert holdings(graph).num_bytes("prompts", Choice(dp=2), "float32") == 16 * each / 2


def test_an_adapter_is_small() -> None:
    found = holdings(grpo(16, 4, kl=Kl.LOSS, reference=Reference.ADAPTER_OFF))
    assert found.num_bytes("actor.master", Choice(), "float32") == 0
    assert found.num_bytes("grads", Choice(), "float32") == 0
    assert found.num_bytes("actor.base", Choice(), "bfloat16") == pytest.approx(2 * P, rel=1e-6)
