"""What firings ask for: rows follow prompts, yields, filters and loops."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from rpeg.algorithms.dapo import dapo
from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.multi_turn import multi_turn
from rpeg.algorithms.ppo import ppo, ppo_shared
from rpeg.algorithms.reference import Reference
from rpeg.algorithms.reinforce import remax
from rpeg.graph.contract import Kl
from rpeg.graph.graph import Graph
from rpeg.perf.demand import Demand, demands
from rpeg.perf.lengths import constant
from rpeg.perf.workload import Workload
from rpeg.shapes.catalog import shape_of
from rpeg.transforms.co_schedule import CoSchedule
from rpeg.transforms.in_flight import InFlight, KvPolicy
from rpeg.transforms.over_sample import OverSample, Stop
from rpeg.transforms.stream import Stream

SMALL, LARGE = shape_of("Qwen3-0.6B"), shape_of("Llama-3.1-8B")


def asked(graph: Graph, **more: Any) -> dict[str, Demand]:
    shapes = {"actor": SMALL, "critic": LARGE, "ref": SMALL, "rm": LARGE}
    return demands(graph, Workload(shapes, constant(100.0), constant(300.0), **more))[0]


def test_rows_of_ppo() -> None:
    found = asked(ppo(64, 2, mini_batches=4, passes=2))
    assert [found[name].rows for name in ("gen", "ref", "gae", "train_actor", "update_actor")] == [128, 128, 128, 32, 0]
    assert (found["gen"].group_size, found["update_actor"].updates) == (2, 1)
    once = asked(ppo(64, 2, mini_batches=4))
    assert {name: each.rows for name, each in found.items()} == {name: each.rows for name, each in once.items()}
    assert (found["value"].shape, found["gen"].shape, found["gae"].shape) == (LARGE, SMALL, None)


def test_only_heads_over_the_vocabulary_have_logits() -> None:
    found = asked(ppo(64))
    has_logits = {
        name: found[name].has_logits for name in ("old_logp", "value", "reward", "train_critic", "train_actor")
    }
    assert has_logits == {
        "old_logp": True, "value": False, "reward": False, "train_critic": False, "train_actor": True
    }  # fmt: skip
    assert asked(ppo_shared(64))["train"].has_logits


def test_streamed_generation_has_a_part_of_the_rows() -> None:
    graph = Stream("gen", 4).apply(grpo(16, 8))
    assert [asked(graph)[name].rows for name in ("gen", "reward", "train")] == [32, 32, 32]


def test_greedy_answers_are_one_per_prompt() -> None:
    found = asked(remax(64, 4))
    assert [found[name].rows for name in ("gen", "greedy", "greedy_reward", "reward")] == [256, 64, 64, 256]
    assert found["greedy"].group_size == 1


def test_replay_trains_on_every_batch_it_reads() -> None:
    assert asked(grpo(16, 8, 1, replay=3))["train"].rows == 3 * 128


def test_a_loop_of_rounds_repeats_whole_generations() -> None:
    """With 30 % of the groups kept, four rounds are expected."""
    assert asked(dapo(16, 8), symbols={"keep": 0.3})["gen"].rounds == 4


def test_what_is_assumed_is_said() -> None:
    found, assumed = demands(dapo(16, 8), Workload({"actor": SMALL}, constant(1.0), constant(1.0)))
    assert (found["gen"].rounds, assumed) == (2, ("keep 0.5",))


def test_a_loop_of_turns_pauses_samples() -> None:
    found = asked(multi_turn(16, 8))["gen"]
    assert (found.turns, found.rounds, found.rows) == (8, 1, 128)


def test_over_sampling_begins_more_than_it_needs() -> None:
    graph = OverSample("gen", Fraction(5, 4), Stop.DROP_GROUPS).apply(grpo(16, 8), explore=True)
    found = asked(graph)
    assert (found["gen"].rows, found["gen"].needed, found["train"].rows) == (160, 128, 128)


def test_partial_rollouts_have_a_budget() -> None:
    found = asked(grpo(16, 8, max_carry=2, budget_tokens=64))["gen"]
    assert (found.budget_tokens, found.max_carry) == (64, 2)


def test_new_weights_in_flight_may_make_caches_anew() -> None:
    graphs = [InFlight("gen", kv).apply(grpo(16, 8, 1), explore=True) for kv in KvPolicy]
    assert [asked(graph)["gen"].recomputes_cache for graph in graphs] == [False, True]


def test_passes_in_one_dispatch_keep_their_models() -> None:
    found = asked(CoSchedule(("ref", "reward")).apply(ppo(64)))["ref+reward"]
    assert {part.shape for part in found.parts} == {SMALL, LARGE}
    assert [part.rows for part in found.parts] == [64, 64]
    assert found.has_model


def test_adapters_are_trained_alone() -> None:
    found = asked(grpo(16, 8, kl=Kl.LOSS, reference=Reference.ADAPTER_OFF))
    assert (found["train"].trains_weights, asked(grpo(16, 8))["train"].trains_weights) == (False, True)


def test_a_moving_average_is_no_optimizer() -> None:
    found = asked(grpo(16, 8, kl=Kl.LOSS, reference=Reference.EMA))
    assert (found["ema"].is_average, found["update"].is_average) == (True, False)


def test_an_evaluation_in_every_eighth_step_has_an_eighth() -> None:
    found = asked(grpo(16, 8, evaluate_every_steps=8), symbols={"held_out": 512.0})["eval"]
    assert (found.share, found.rows) == (pytest.approx(0.125), 512)


def test_equal_demands_are_equal() -> None:
    load = Workload({"actor": SMALL}, constant(1.0), constant(1.0))
    assert demands(grpo(16, 8), load)[0]["gen"] == demands(grpo(16, 8, 1), load)[0]["gen"]
