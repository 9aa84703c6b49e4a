"""The policy that learns: one gradient whatever the split, useless rows cost nothing, the state comes back exactly."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.runtime.conftest import tiny_recipe

from rpeg.graph.stage import StageKind
from rpeg.numerics.chunked_head import chunked_logprobs
from rpeg.numerics.model import ScratchSpec, save_model, scratch_model
from rpeg.numerics.tokenizer import character_tokenizer
from rpeg.recipe.graph import build_graph
from rpeg.runtime.checkpoint import MODEL
from rpeg.runtime.origin import Origin
from rpeg.runtime.passes import Passes
from rpeg.runtime.policy import Policy
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.task import Staged, Task, Weights

LENGTHS = (3, 7, 5, 1, 8, 2, 4, 6)
"""Response tokens of the eight rows; all prompts have two."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the folder of a tiny model."""
    tokenizer = character_tokenizer("0123456789")
    spec = ScratchSpec("qwen3", layers=1, hidden=16, heads=2, intermediate=32, vocabulary=24, init_std=0.3)
    save_model(scratch_model(spec, tokenizer, seed=0), tokenizer, tmp_path / MODEL)
    return tmp_path / MODEL


def rows(advantages: list[float]) -> Rows:
    """Return eight rows with random tokens and the behaviour log-probabilities of nobody in particular."""
    draw = torch.Generator().manual_seed(1)
    tokens = [torch.randint(4, 14, (2 + n,), generator=draw) for n in LENGTHS]
    return Rows(
        {
            "tokens": Ragged.of(tokens, torch.int64),
            "mask": Ragged.of([[0, 0] + [1] * n for n in LENGTHS], torch.bool),
            "logp": Ragged.of([torch.rand(2 + n, generator=draw) - 3 for n in LENGTHS], torch.float32),
            "version": Ragged.of([[4] * (2 + n) for n in LENGTHS], torch.int32),
            "advantage": torch.tensor(advantages),
        }
    )


ADVANTAGES = [0.5, -0.5, 1.0, 0.25, -0.75, 0.0, float("nan"), -0.5]


def task(samples: Rows, kind: StageKind = StageKind.TRAIN, stage: str = "train") -> Task:
    """Return a firing in step 5 (from 0)."""
    return Task(stage, kind, 5, 0, Rows({}), samples, {"actor.master": 5})


def policy(folder: Path, checkpoint: Path | None = None, version: int = 0, **sections: Any) -> Policy:
    """Return the policy in ``folder``, with the optimizer's state of ``checkpoint``."""
    sections = {"algorithm": {"updates_per_step": 1, **sections.pop("algorithm", {})}, **sections}
    recipe = tiny_recipe(**sections)
    return Policy(recipe, build_graph(recipe).contract, Origin(folder, folder, checkpoint, version))


def _pushed(found: Policy) -> Weights:
    """Return the weights that a policy publishes whole."""
    staged = found.push(task(Rows({}), StageKind.PUSH, "push")).weights
    assert isinstance(staged, Staged)
    assert staged.whole is not None
    return staged.whole


def gradient(found: Policy) -> torch.Tensor:
    """Return all gradients as one vector."""
    return torch.cat(gradients(found))


def gradients(found: Policy) -> list[torch.Tensor]:
    """Return the gradients that parameters have, flat."""
    return [p.grad.flatten() for p in found.model.parameters() if p.grad is not None]


@pytest.mark.parametrize("normalise", ["token", "sample"])
@pytest.mark.parametrize("budget", [10, 17, 40])
def test_the_gradient_is_the_same_for_every_split(model: Path, normalise: str, budget: int) -> None:
    sections: dict[str, Any] = {"algorithm": {"normalise": normalise}}
    whole, parts = policy(model, **sections), policy(model, optimizer={"micro_batch_tokens": budget}, **sections)
    for each in (whole, parts):
        each.train(task(rows(ADVANTAGES)))
    torch.testing.assert_close(gradient(parts), gradient(whole), atol=1e-6, rtol=1e-5)
    first, second = (each.update(task(Rows({}), StageKind.UPDATE, "update")).metrics for each in (whole, parts))
    assert first == pytest.approx(second, abs=1e-6)


def test_micro_batches_have_no_more_rows_than_the_plan_says(model: Path) -> None:
    passes = Passes(tiny_recipe(), most_rows=3)
    sizes = [len(batch.picks) for batch in passes.micro_batches(rows(ADVANTAGES), range(8))]
    assert max(sizes) == 3
    assert sum(sizes) == 8
    assert [len(batch.picks) for batch in Passes(tiny_recipe()).micro_batches(rows(ADVANTAGES), range(8))] == [8]


def test_rows_are_counted_by_what_they_teach(model: Path) -> None:
    outcome = policy(model).train(task(rows(ADVANTAGES)))
    assert outcome.metrics["rows/trained"] == 6
    assert outcome.metrics["rows/without_advantage"] == 1
    assert outcome.metrics["rows/unscorable"] == 1
    assert outcome.metrics["staleness/p99"] == outcome.metrics["staleness/max"] == 1.0
    assert outcome.num_tokens == sum(LENGTHS)


def test_unscorable_rows_are_in_no_denominator_and_rows_without_advantage_are(model: Path) -> None:
    """Row 5 has advantage 0, row 6 no reward: only the first makes the mean smaller."""
    unscorable, worthless = policy(model, optimizer={"clip_norm": 1e9}), policy(model, optimizer={"clip_norm": 1e9})
    unscorable.train(task(rows(ADVANTAGES)))
    worthless.train(task(rows([*ADVANTAGES[:6], 0.0, ADVANTAGES[7]])))
    norms = [t.update(task(Rows({}), StageKind.UPDATE)).metrics["optim/grad_norm"] for t in (unscorable, worthless)]
    assert norms[0] / norms[1] == pytest.approx(sum(LENGTHS) / (sum(LENGTHS) - LENGTHS[6]), rel=1e-5)


def test_firings_add_up_to_the_gradient_of_the_whole(model: Path) -> None:
    """Rows that arrive in four parts of different length give the update of all eight at once."""
    whole, parts = policy(model), policy(model)
    whole.train(task(rows(ADVANTAGES)))
    for number in range(4):
        parts.train(task(rows(ADVANTAGES).share(number, 4)))
    for each in (whole, parts):
        each.update(task(Rows({}), StageKind.UPDATE))
    weights = [torch.cat([p.flatten() for p in each.model.parameters()]) for each in (whole, parts)]
    torch.testing.assert_close(weights[0], weights[1], atol=1e-6, rtol=1e-5)


def test_nothing_to_learn_changes_nothing(model: Path) -> None:
    found = policy(model, optimizer={"weight_decay": 0.5})
    before = [p.clone() for p in found.model.parameters()]
    found.train(task(rows([0.0] * 8)))
    metrics = found.update(task(Rows({}), StageKind.UPDATE, "update")).metrics
    assert metrics["optim/grad_norm"] == 0.0
    assert all(torch.equal(a, b) for a, b in zip(before, found.model.parameters(), strict=True))


def test_recomputed_scores_are_those_of_training(model: Path) -> None:
    """The ratio is exactly 1 before the first update, because old and new scores take the same path."""
    found = policy(model, algorithm={"old_logprob": "recomputed"})
    samples = rows([1.0, -1.0] * 4)
    found.train(task(samples.joined(Rows({"old_logp": found.score(samples)}))))
    metrics = found.update(task(Rows({}), StageKind.UPDATE, "update")).metrics
    assert metrics["policy/ratio_max"] == 1.0
    assert metrics["policy/kl_old"] == 0.0


def test_interpolated_scores_lie_between_the_sampler_and_the_current_policy(model: Path) -> None:
    """After one of two updates of step 5, which had no gradient, the current policy is half a version ahead.

    Tokens of version 5 have the sampler's score, those of version 4 are 1 / (1 + 1/2) = 2/3 of the way, those of
    version 3 are 2 / (2 + 1/2) = 4/5 of it.
    """
    found = policy(model, algorithm={"updates_per_step": 2, "staleness": 2, "old_logprob": "interpolated"})
    samples = rows([1.0] * 8)
    versions = Ragged.of([[5 - pick % 3] * (2 + n) for pick, n in enumerate(LENGTHS)], torch.int32)
    samples = samples.joined(Rows({"version": versions}))
    found.train(task(samples.joined(Rows({"advantage": torch.zeros(8)}))))
    found.update(task(Rows({}), StageKind.UPDATE, "update"))
    pairs = list(zip(found.score(samples).rows(), samples.ragged("logp").rows(), strict=True))
    found.train(task(samples))
    metrics = found.update(replace(task(Rows({}), StageKind.UPDATE, "update"), firing=1)).metrics
    ahead, weights = [], []
    for pick, (current, behaviour) in enumerate(pairs):
        share = (0.0, 2 / 3, 4 / 5)[pick % 3]
        moved = (current - behaviour)[2:].tolist()
        ahead += [math.exp((1 - share) * each) for each in moved]
        weights += [math.exp(share * each) for each in moved]
    names = ("policy/ratio_mean", "policy/ratio_max", "correction/ratio_mean", "correction/ratio_min")
    expected = (fmean(ahead), max(ahead), fmean(weights), min(weights))
    assert [metrics[name] for name in names] == pytest.approx(expected, rel=1e-4)


def test_saved_state_goes_on_like_the_one_in_memory(model: Path, tmp_path: Path) -> None:
    found = policy(model)
    for _ in range(3):
        found.train(task(rows(ADVANTAGES)))
        found.update(task(Rows({}), StageKind.UPDATE, "update"))
    found.save(tmp_path / "saved")
    again, cold = (policy(tmp_path / "saved" / MODEL, start, 3) for start in (tmp_path / "saved", None))
    for each in (found, again, cold):
        each.train(task(rows(ADVANTAGES)))
        each.update(task(Rows({}), StageKind.UPDATE, "update"))
    weights = [torch.cat([p.flatten() for p in each.model.parameters()]) for each in (found, again, cold)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_learning_rate_follows_optimizer_updates(model: Path) -> None:
    sections: dict[str, Any] = {"optimizer": {"schedule": "linear", "lr": 1.0}, "run": {"steps": 10}}  # 20 updates
    found = policy(model, version=5, algorithm={"updates_per_step": 2}, **sections)
    rate = found.update(task(Rows({}), StageKind.UPDATE, "update")).metrics["optim/lr"]
    assert rate == 0.5  # update 10 of 20


def test_bfloat16_trains_float32_weights(model: Path, tmp_path: Path) -> None:
    found = policy(model, model={"dtype": "bfloat16"})
    found.train(task(rows(ADVANTAGES)))
    found.update(task(Rows({}), StageKind.UPDATE, "update"))
    found.save(tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / MODEL / "model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}


def test_bfloat16_weights_are_published_as_the_sampler_has_them(model: Path) -> None:
    found = policy(model, model={"dtype": "bfloat16", "weights": "bfloat16"})
    found.train(task(rows(ADVANTAGES)))
    assert not gradients(found)  # the masters have them
    found.update(task(Rows({}), StageKind.UPDATE, "update"))
    pushed = _pushed(found)
    assert {each.dtype for each in pushed.values()} == {torch.bfloat16}
    assert all(torch.equal(each, pushed[name]) for name, each in found.model.named_parameters())


def test_a_push_is_a_copy(model: Path) -> None:
    found = policy(model)
    pushed = _pushed(found)
    before = {name: tensor.clone() for name, tensor in pushed.items()}
    found.train(task(rows(ADVANTAGES)))
    found.update(task(Rows({}), StageKind.UPDATE, "update"))
    assert all(torch.equal(before[name], pushed[name]) for name in before)


def test_chunks_of_logits_give_the_same_gradient(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, chunked = policy(model), policy(model)
    plain.train(task(rows(ADVANTAGES)))
    monkeypatch.setattr("rpeg.runtime.passes._LARGE_VOCABULARY", 8)
    found: list[str] = []
    made = chunked_logprobs
    monkeypatch.setattr("rpeg.numerics.scores.chunked_logprobs", lambda *args: (found.append("chunks"), made(*args))[1])
    chunked.train(task(rows(ADVANTAGES)))
    assert found
    torch.testing.assert_close(gradient(chunked), gradient(plain), atol=1e-6, rtol=1e-5)


def test_rows_of_which_nothing_is_trained_score_zero(model: Path) -> None:
    samples = rows(ADVANTAGES).part(0, 2)
    prompts_only = Ragged(torch.zeros_like(samples.ragged("mask").values_S), samples.ragged("mask").lengths_N)
    found = policy(model).score(samples.joined(Rows({"mask": prompts_only})))
    assert [row.tolist() for row in found.rows()] == [[0.0] * 5, [0.0] * 9]


def test_the_effective_share_scales_the_learning_rate(model: Path) -> None:
    """Behaviour scores of nobody in particular: few samples carry it; its rate falls by the root."""
    algorithm = {"old_logprob": "recomputed", "correction": "truncated", "correction_cap": 100.0}
    plain, scaled = (policy(model, algorithm={**algorithm, "ess_scaling": each}) for each in (False, True))
    for each in (plain, scaled):
        each.train(task(rows(ADVANTAGES)))
    first, second = (each.update(task(Rows({}), StageKind.UPDATE, "update")).metrics for each in (plain, scaled))
    assert second["optim/lr"] == pytest.approx(first["optim/lr"] * second["correction/ess_samples"] ** 0.5)
    assert 0.1 < second["correction/ess_samples"] < 0.99


@pytest.mark.parametrize(
    ("correction", "shown"),
    [
        ("none", set()),
        ("truncated", {"correction/capped"}),
        ("truncated_sequence", {"correction/capped"}),
        ("masked", {"correction/masked"}),
        ("decoupled", set()),
        ("rejection", {"correction/rejected", "correction/masked"}),
    ],
)
def test_corrections_do_what_their_names_say(model: Path, correction: str, shown: set[str]) -> None:
    found = policy(model, algorithm={"old_logprob": "recomputed", "correction": correction})
    samples = rows(ADVANTAGES)
    unlikely = Ragged(samples.ragged("logp").values_S - 2, samples.ragged("logp").lengths_N)
    found.train(task(samples.joined(Rows({"logp": unlikely}))))
    metrics = found.update(task(Rows({}), StageKind.UPDATE, "update")).metrics
    shares = ("correction/capped", "correction/masked", "correction/rejected")
    assert {name for name in shares if metrics[name] > 0} == shown
    assert (metrics["correction/ess"] < 0.999) == (correction != "none")
