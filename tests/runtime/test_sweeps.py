"""Several sweeps over a step's answers: every one with all mini-batches, and nothing of it but the weights is new."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.conftest import tiny_recipe
from tests.runtime.test_models import DEEP, other_model, valued_rows
from tests.runtime.test_run import assert_same, untimed

from rpeg.graph.stage import StageKind
from rpeg.numerics.scores import response_scores
from rpeg.observe.run_folder import RunFolder
from rpeg.recipe.graph import build_graph
from rpeg.runtime.origin import Origin
from rpeg.runtime.policy import Policy
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.task import Task

Run = Callable[..., RunFolder]


def sweeping(passes: int, updates: int = 2, name: str = "ppo_shared", **sections: Any) -> dict[str, Any]:
    """Return the sections of PPO with so many sweeps."""
    algorithm = {"name": name, "updates_per_step": updates, "passes": passes, **sections.pop("algorithm", {})}
    return {"model": DEEP, "algorithm": algorithm, **sections}


def test_every_sweep_trains_all_mini_batches_in_order(run_tiny: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two mini-batches of 8 rows: the second sweep reads the same rows, old scores, advantages and values again."""
    seen: list[tuple[int, Rows]] = []
    train = Policy.train

    def noted(self: Policy, task: Task) -> Any:
        seen.append((task.firing, task.samples))
        return train(self, task)

    monkeypatch.setattr(Policy, "train", noted)
    run_tiny("noted", **sweeping(3), run={"steps": 1})
    assert [firing for firing, _ in seen] == list(range(6))
    for number, (_, rows) in enumerate(seen):
        first = seen[number % 2][1]
        assert len(rows) == 8
        assert rows.columns.keys() == first.columns.keys() >= {"old_logp", "advantage", "return", "old_value"}
        for name in ("tokens", "old_logp", "advantage", "return", "old_value"):
            assert torch.equal(rows.ragged(name).values_S, first.ragged(name).values_S)
    assert not torch.equal(seen[0][1].ragged("tokens").values_S, seen[1][1].ragged("tokens").values_S)


def advantaged_rows(policy: Policy) -> Rows:
    """Return two rows with advantages, and the old scores of this policy."""
    advantage = Ragged.of([[0.0, 1.0, 0.5], [0.0, -1.0, 0.25]], torch.float32)
    rows = valued_rows().joined(Rows({"advantage": advantage}))
    logps, values = policy.score_and_value(rows)
    return rows.joined(Rows({"logp": logps, "old_logp": logps, "old_value": values}))


def test_two_sweeps_of_one_mini_batch_are_two_updates_by_hand(tmp_path: Path) -> None:
    """AdamW's first two steps with the gradients of the clipped losses, the second around the scores before the first.

    With betas (0.9, 0.95): m1 = 0.1 g1, v1 = 0.05 g1^2, corrected g1 and g1^2; m2 = 0.09 g1 + 0.1 g2 over 0.19,
    v2 = 0.0475 g1^2 + 0.05 g2^2 over 0.0975.
    """
    folder = other_model(tmp_path / "model", layers=2)
    options: dict[str, Any] = {"critic": {"value_clip": 0.01}, "optimizer": {"lr": 1e-2, "clip_norm": 1e9}}
    recipe = tiny_recipe(**sweeping(2, updates=1, **options))
    origin = Origin(folder, folder, None, 0)
    policy, by_hand = (Policy(recipe, build_graph(recipe).contract, origin) for _ in range(2))
    rows = advantaged_rows(policy)
    for firing in range(2):
        policy.train(Task("train", StageKind.TRAIN, 0, firing, Rows({}), rows, {}))
        policy.update(Task("update", StageKind.UPDATE, 0, firing, Rows({}), Rows({}), {}))
    head = by_hand._head
    assert head is not None
    weights = [*by_hand.model.parameters(), *head.parameters()]
    first = [torch.zeros_like(each) for each in weights]
    for step in (1, 2):
        gradients = torch.autograd.grad(loss_by_hand(by_hand, rows), weights, allow_unused=True)
        for weight, before, found in zip(weights, first, gradients, strict=True):
            gradient = torch.zeros_like(weight) if found is None else found
            if step == 1:
                mean, square = gradient, gradient**2
                before.copy_(gradient)
            else:
                mean = (0.09 * before + 0.1 * gradient) / 0.19
                square = (0.0475 * before**2 + 0.05 * gradient**2) / 0.0975
            weight.data -= 1e-2 * mean / (square.sqrt() + 1e-8)
    trained = [*policy.model.parameters(), *(policy._head or head).parameters()]
    for found, expected in zip(trained, weights, strict=True):
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-4)


def loss_by_hand(policy: Policy, rows: Rows) -> torch.Tensor:
    """Return the mean over the four trained tokens of the clipped policy loss and half of the clipped value loss."""
    tokens, mask = (torch.stack(rows.ragged(name).rows()) for name in ("tokens", "mask"))
    scores = response_scores(policy.model, tokens, mask, 1.0, policy._head)
    assert scores.values_BT is not None
    columns = ("old_logp", "advantage", "return", "old_value")
    old, advantage, target, old_value = (torch.stack(rows.ragged(name).rows())[mask] for name in columns)
    ratio, value = (scores.logps_BT[mask] - old).exp(), scores.values_BT[mask]
    acting = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    clipped = old_value + (value - old_value).clamp(-0.01, 0.01)
    valuing = torch.maximum((value - target) ** 2, (clipped - target) ** 2) / 2
    return (acting + 0.5 * valuing).mean()


def test_counters_count_steps_updates_prompts_and_samples(run_tiny: Run) -> None:
    """BL-137 with two sweeps: 3 steps of 2 mini-batches are 12 updates; rows and tokens count once."""
    once, twice = (untimed(run_tiny(f"{n}", **sweeping(n), run={"steps": 3})) for n in (1, 2))
    last = twice[-1]
    names = ("steps", "updates", "prompts", "samples")
    assert [last[f"counters/{name}"] for name in names] == [3, 12, 12, 48]
    assert last["rows/trained"] + last["rows/unscorable"] == 16
    # The first steps sample the same, before any update.
    assert twice[1]["counters/tokens"] == once[1]["counters/tokens"]


def test_the_second_sweep_leaves_the_old_policy(run_tiny: Run) -> None:
    """BL-035 with one mini-batch: its own second sweep has a ratio that is not 1, measured from before the first."""
    one, two = (untimed(run_tiny(f"{n}", **sweeping(n, updates=1), run={"steps": 1}))[-1] for n in (1, 2))
    assert (one["policy/ratio_min"], one["policy/ratio_max"]) == (1.0, 1.0)
    assert two["policy/ratio_max"] > 1.001


def test_the_schedule_ends_with_the_last_sweep(run_tiny: Run) -> None:
    """Linear over 2 steps of 2 updates in 2 sweeps: update 8 of 8 has an eighth of the rate; means per step."""
    optimizer = {"lr": 8e-3, "schedule": "linear"}
    rows = untimed(run_tiny("linear", **sweeping(2, optimizer=optimizer), run={"steps": 2}))[1:]
    assert [row["optim/lr"] for row in rows] == pytest.approx([6.5e-3, 2.5e-3])


@pytest.mark.parametrize("name", ["ppo", "ppo_shared"])
def test_resumed_equals_uninterrupted(run_tiny: Run, name: str) -> None:
    sections = sweeping(2, name=name, algorithm={"staleness": 1}, optimizer={"lr": 1e-2, "warmup_updates": 5})
    whole = run_tiny("whole", **sections)
    run_tiny("parts", run={"steps": 2}, **sections)
    parts = run_tiny("parts", resume=True, **sections)
    assert_same(whole, parts, 4)


def test_recorded_values_are_kept_over_sweeps(run_tiny: Run) -> None:
    recorded: dict[str, Any] = {"critic": {"values": "recorded"}, "algorithm": {"old_logprob": "recorded"}}
    last = untimed(run_tiny("recorded", **sweeping(2, **recorded), run={"steps": 2}))[-1]
    assert last["counters/updates"] == 8
    assert last["policy/ratio_max"] > 1.001
