"""What is said about the parts of a graph."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rpeg.algorithms.catalog import ALGORITHMS
from rpeg.algorithms.critic_free import KvPolicy
from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.multi_turn import multi_turn
from rpeg.algorithms.ppo import ppo
from rpeg.graph.access import Access, Bound, Mode, Refresh
from rpeg.graph.stage import Source
from rpeg.view.graph_svg import access_key
from rpeg.view.graph_tips import access_text, tips


@pytest.mark.parametrize("name", ALGORITHMS)
def test_everything_in_the_picture_has_a_tip(name: str) -> None:
    graph = ALGORITHMS[name]()
    found = tips(graph, {}, "in/")
    assert set(found) == {f"in/{key}" for key in (*graph.stage_of, *graph.data_of, *map(access_key, graph.accesses))}


def test_a_stage() -> None:
    graph = grpo(4, 2, 1, in_flight=KvPolicy.KEEP, evaluate_every_steps=8)
    stages = {stage.name: replace(stage, source=Source("grpo.py:7", ("a", "b"))) for stage in graph.stages}
    found = tips(replace(graph, stages=tuple(stages.values())), {})
    assert found["gen"] == (
        "gen",
        [
            ("kind", "generate"),
            ("model", "actor"),
            ("returns", "kv_keep"),
            ("firings", "1 per step"),
            ("effects", "rng"),
            ("reads", "prompts"),
            ("reads", "actor.rollout, 2 steps back, that or a newer one, with every token"),
            ("writes", "rollouts"),
            ("from", "grpo.py:7 of a, b"),
        ],
    )
    assert ("firings", "in every 8th step") in found["eval"][1]
    assert ("works on", "whole groups") in found["advantage"][1]
    assert ("updates", "actor.master") in found["update"][1]
    assert ("inside", "turn, turns times at most") in tips(multi_turn(4), {})["gen"][1]
    assert ("sweeps", "3") in tips(ppo(4, passes=3), {})["train_actor"][1]
    assert ("works on", "whole batches") in tips(ppo(4, whiten=True), {})["gae"][1]


def test_data() -> None:
    graph = grpo(4, 2, 1, max_carry=2)
    found = tips(graph, {"actor.master": 14_000_000_000})
    rows = dict(found["actor.master"][1])
    assert rows["kind"] == "state"
    assert rows["versions kept"] == "1"
    assert rows["kept for"] == "saved"
    assert rows["one version"] == "14.0 GB"
    assert dict(found["rollouts"][1])["batches in flight"] == "any number"
    assert [row for row in found["rollouts"][1] if row[0] == "read by"] == [("read by", "reward"), ("read by", "train")]
    assert any(("carried over", "at most 2 steps") in rows for _, rows in found.values())


def test_lines() -> None:
    found = tips(grpo(4, 2), {"rollouts": 2_000_000})
    assert found["rollouts>reward"] == (
        "rollouts → reward",
        [
            ("columns", "tokens, mask, version, finished"),
            ("delay", "none: of the same step"),
            ("one version", "2.00 MB"),
        ],
    )
    title, rows = found["actor.rollout>gen@1"]
    assert (title, rows[1:]) == ("actor.rollout → gen", [("delay", "1 step back")])
    assert found["gen>rollouts"][0] == "gen → rollouts"
    assert "delay" not in dict(found["gen>rollouts"][1])


def test_accesses_in_words() -> None:
    assert access_text(Access("a", "x", Mode.WRITE)) == "x"
    merged = Access("a", "x", Mode.UPDATE, merge="ema(0.99)")
    assert access_text(merged) == "x, ema(0.99)"
    newest = Access("a", "x", Mode.READ, ("c", "d"), 3, Bound.AT_LEAST, Refresh.REQUEST)
    assert access_text(newest) == "x [c d], 3 steps back, that or a newer one, with every request"
