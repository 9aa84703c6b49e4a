"""The role that compares, by hand: every baseline, the distance taken off, unscorable samples, the coefficient."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.runtime.conftest import tiny_recipe

from rpeg.graph.stage import StageKind
from rpeg.recipe.graph import build_graph
from rpeg.runtime.advantages import Advantages
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.task import Outcome, Task

NAN = float("nan")


def compare(
    rewards: list[float],
    greedy: list[float] | None = None,
    values: list[list[float]] | None = None,
    weights: dict[str, torch.Tensor] | None = None,
    critic: dict[str, Any] | None = None,
    **algorithm: Any,
) -> Outcome:
    """Compare two samples of one prompt token: the first writes two tokens, the second one.

    The sampler is 0.5 nats above the reference on the tokens of the first sample and equal on that of the second.
    """
    recipe = tiny_recipe(algorithm={"group_size": 2, **algorithm}, **({"critic": critic} if critic else {}))
    role = Advantages(recipe, build_graph(recipe).contract, recipe.algorithm.kl_coefficient)
    columns: dict[str, Any] = {
        "reward": torch.tensor(rewards, dtype=torch.float64),
        "mask": Ragged.of([[0, 1, 1], [0, 1]], torch.bool),
        "logp": Ragged.of([[0.0, -1.0, -1.0], [0.0, -2.0]], torch.float32),
        "ref_logp": Ragged.of([[0.0, -1.5, -1.5], [0.0, -2.0]], torch.float32),
    }
    if values is not None:
        columns["value"] = Ragged.of(values, torch.float32)
    groups = Rows({"reward": torch.tensor(greedy, dtype=torch.float64)}) if greedy is not None else Rows({})
    return role.compare(Task("advantage", StageKind.ADVANTAGE, 0, 0, groups, Rows(columns), {}, weights))


def per_token(outcome: Outcome, name: str = "advantage") -> list[list[float]]:
    """Return a column of the outcome, prompt tokens left out."""
    assert outcome.rows is not None
    return [row[1:].tolist() for row in outcome.rows.ragged(name).rows()]


def per_sample(outcome: Outcome) -> list[float]:
    """Return the advantages of an outcome that has one per sample."""
    assert outcome.rows is not None
    return outcome.rows.tensor("advantage").tolist()


def test_leave_one_out_takes_the_distance_off_the_answer() -> None:
    """Two tokens of 0.5 nats cost 0.1 each: 1 - 0.1 = 0.9 against 0."""
    assert per_sample(compare([1.0, 0.0], name="rloo")) == [1.0, -1.0]
    outcome = compare([1.0, 0.0], name="rloo", kl_coefficient=0.1)
    assert per_sample(outcome) == pytest.approx([0.9, -0.9])
    assert outcome.metrics["kl/answer"] == pytest.approx(0.5)  # 1.0 and 0.0
    assert outcome.metrics["kl/token"] == pytest.approx(1.0 / 3)
    assert outcome.metrics["reward/mean"] == 0.5  # before anything is taken off


def test_greedy() -> None:
    """Each token of the first answer costs 0.05, and a token answers for what comes after it."""
    options: dict[str, Any] = {"name": "remax", "updates_per_step": 1}
    assert per_sample(compare([1.0, 0.0], [0.5], **options)) == [0.5, -0.5]
    first, second = per_token(compare([1.0, 0.0], [0.5], kl_coefficient=0.1, **options))
    assert first == pytest.approx([0.40, 0.45])
    assert second == pytest.approx([-0.5])
    assert all(math.isnan(each) for each in per_sample(compare([1.0, 0.0], [NAN], **options)))


def test_whitened_over_the_tokens_of_the_batch() -> None:
    """Tokens earn 1, 1 and 0: mean 2/3, standard deviation sqrt(2)/3."""
    outcome = compare([1.0, 0.0], name="reinforce_pp")
    first, second = per_token(outcome)
    assert first == pytest.approx([math.sqrt(0.5)] * 2)
    assert second == pytest.approx([-math.sqrt(2)])
    assert outcome.worth == pytest.approx((math.sqrt(0.5), -math.sqrt(2)))
    assert "group/zero_spread" not in outcome.metrics


def test_with_a_critic() -> None:
    """delta_2 = 1 - 0.25, delta_1 = 0.25 - 0.5; A_1 = -0.25 + 0.95 * 0.75; returns are A + V."""
    values = [[0.0, 0.5, 0.25], [0.0, 0.125]]
    outcome = compare([1.0, 0.0], values=values, name="ppo", kl_coefficient=0.0, whiten=False)
    first, second = per_token(outcome)
    assert first == pytest.approx([0.4625, 0.75])
    assert second == pytest.approx([-0.125])
    assert per_token(outcome, "return")[0] == pytest.approx([0.9625, 1.0])
    assert per_token(outcome, "old_value")[1] == [0.125]
    assert outcome.rows is not None
    assert "kl" not in outcome.rows.columns


def test_discount_and_decay_are_the_recipes() -> None:
    """gamma 0.5, lambda 0: A_1 = 0.5 * 0.25 - 0.5."""
    values = [[0.0, 0.5, 0.25], [0.0, 0.0]]
    critic = {"gae_gamma": 0.5, "gae_lambda": 0.0}
    outcome = compare([1.0, 0.0], values=values, critic=critic, name="ppo", kl_coefficient=0.0, whiten=False)
    assert per_token(outcome)[0] == pytest.approx([-0.375, 0.75])


def test_the_coefficient_is_the_controllers_where_it_has_spoken() -> None:
    values = [[0.0, 0.0, 0.0], [0.0, 0.0]]
    options: dict[str, Any] = {"name": "ppo", "kl_coefficient": 0.1, "whiten": False}
    steered = {"coefficient": torch.tensor(0.2, dtype=torch.float64)}
    for weights, coefficient in ((None, 0.1), (steered, 0.2)):
        outcome = compare([0.0, 0.0], values=values, weights=weights, critic={"gae_lambda": 1.0}, **options)
        assert outcome.metrics["kl/coefficient"] == coefficient
        assert per_token(outcome)[0] == pytest.approx([-coefficient, -coefficient / 2])
        assert outcome.rows is not None
        assert outcome.rows.tensor("kl").tolist() == [1.0, 0.0]


@pytest.mark.parametrize("name", ["reinforce_pp", "ppo"])
def test_unscorable_samples_are_in_no_statistic(name: str) -> None:
    """What is left, three tokens less one, has equal rewards of 1: nothing differs, so whitened it is exactly 0."""
    values = [[0.0, 0.0, 0.0], [0.0, 9.0]]
    outcome = compare(
        [1.0, NAN], values=values, name=name, kl_coefficient=0.0, critic={"gae_lambda": 1.0} if name == "ppo" else None
    )
    first, second = per_token(outcome)
    assert first == [0.0, 0.0]
    assert math.isnan(second[0])
    assert outcome.metrics["reward/unscorable"] == 1
    assert math.isnan(outcome.worth[1])
