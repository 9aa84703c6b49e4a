"""Samples that go on in the next step: none is lost, none twice, none older than it may be."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.numerics.test_sampler import ragged, samples, tiny
from tests.runtime.test_flow import recorded

from rpeg.errors import InvalidInput
from rpeg.numerics.sampler import Sampler
from rpeg.numerics.samples import SamplingParams
from rpeg.observe.run_folder import RunFolder
from rpeg.runtime.carry import Carried, Carry, Window
from rpeg.runtime.rows import Ragged, Rows

Run = Callable[..., RunFolder]
PARAMS = SamplingParams(temperature=1.0, max_new_tokens=24, end_ids=(1, 7))
PROMPTS, GROUP = 3, 2
MODEL = tiny("qwen3", max_position_embeddings=64)
TEXTS = ragged(60)


def prompts_of(step: int) -> Rows:
    numbers = range(step * PROMPTS, (step + 1) * PROMPTS)
    return Rows(
        {
            "row": torch.tensor(list(numbers)),
            "tokens": Ragged.of([TEXTS[number] for number in numbers], torch.int64),
            "seed": torch.tensor([1000 + GROUP * number for number in numbers]),
        }
    )


def carried_through(steps: int, carry: Carry, slots: int = 6) -> list[Carried]:
    sampler, left, found = Sampler(MODEL, slots, 0), None, list[Carried]()
    for step in range(steps):
        found.append(Window(sampler, PARAMS, carry, GROUP, 9, prompts_of).sample(step, left))
        left = found[-1].left
    return found


@given(st.integers(1, 30), st.integers(1, 3), st.sampled_from([1, 2, 6, 12]))
@settings(max_examples=8)
def test_every_prompt_is_in_one_step_and_at_most_so_many_steps_late(budget: int, steps: int, slots: int) -> None:
    found = carried_through(6, Carry(budget, steps), slots)
    numbers = [number for each in found for number in each.numbers]
    assert [len(each.numbers) for each in found] == [PROMPTS] * 6
    assert len(set(numbers)) == len(numbers)
    for step, each in enumerate(found):
        assert all(number <= (step + 1 + steps) * PROMPTS for number in each.numbers)
        began = each.left.tensor("began")
        assert (began > step - steps).all(), "what is carried over has steps left"
    # Nothing is lost: what began is in a step or is still carried.
    left = set(found[-1].left.tensor("number").tolist())
    assert set(numbers) | left == set(range(len(set(numbers) | left)))


@given(st.integers(1, 30), st.integers(1, 3))
@settings(max_examples=5)
def test_the_answers_are_those_that_are_written_in_one_go(budget: int, steps: int) -> None:
    """With weights that stay the same, being cut and gone on with changes no token."""
    whole = samples(MODEL, TEXTS, group=GROUP, params=PARAMS)
    for each in carried_through(4, Carry(budget, steps)):
        for i, answer in enumerate(each.answers):
            number, member = each.numbers[i // GROUP], i % GROUP
            expected = whole[number * GROUP + member]
            assert each.prompts[i] == TEXTS[number]
            assert answer.ids == expected.ids
            assert answer.logps == pytest.approx(expected.logps, abs=1e-5)
            assert answer.finished == expected.finished


def test_long_answers_are_waited_for_when_their_time_has_come() -> None:
    """Two tokens a step are never enough; what began a step ago is finished all the same."""
    found = carried_through(4, Carry(2, 1))
    assert all(number // PROMPTS <= step + 1 for step, each in enumerate(found) for number in each.numbers)
    assert sum(len(each.left) for each in found) > 0


def settings_of(staleness: int, budget: int, steps: int, **sections: Any) -> dict[str, Any]:
    partial = {"budget_tokens": budget, "max_carry": steps}
    algorithm = {"staleness": staleness, "partial_rollouts": partial, "updates_per_step": 1}
    base = {"algorithm": algorithm, "sampling": {"max_new_tokens": 24, "slots": 8}, "evaluation": {"every_steps": 0}}
    return base | sections


@pytest.mark.parametrize(("staleness", "steps"), [(0, 1), (1, 2)])
def test_a_run_trains_on_samples_of_several_versions(
    run_tiny: Run, monkeypatch: pytest.MonkeyPatch, staleness: int, steps: int
) -> None:
    rollouts = recorded(monkeypatch)
    folder = run_tiny("run", **settings_of(staleness, 4, steps), run={"steps": 8})
    versions = [row.tolist() for rows in rollouts for row in rows.ragged("version").rows()]
    assert any(len(set(row)) > 1 for row in versions)
    assert all(a <= b for row in versions for a, b in pairwise(row))
    metrics = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert len(metrics) == 8
    assert max(row["staleness/max"] for row in metrics) == staleness + steps
    assert [row["counters/samples"] for row in metrics] == [16 * (i + 1) for i in range(8)]
    assert all(row["carry/age_max"] <= steps for row in metrics)


def test_what_is_unfinished_is_in_the_checkpoint(run_tiny: Run) -> None:
    sections = settings_of(1, 4, 1)
    whole = run_tiny("whole", **sections, run={"steps": 6})
    run_tiny("half", **sections, run={"steps": 3})
    half = run_tiny("half", resume=True, **sections, run={"steps": 6})
    names = ("reward/mean", "optim/grad_norm", "loss/policy", "carry/samples", "staleness/mean", "counters/tokens")
    for one, other in zip(whole.metrics.read_text().splitlines(), half.metrics.read_text().splitlines(), strict=True):
        before, after = json.loads(one), json.loads(other)
        assert [after.get(name) for name in names] == [before.get(name) for name in names]
    weights = [(each.checkpoint(6) / "model" / "model.safetensors").read_bytes() for each in (whole, half)]
    assert weights[0] == weights[1]


def test_carrying_over_with_several_firings_is_refused(run_tiny: Run) -> None:
    sections = settings_of(0, 4, 1)
    sections["algorithm"]["rewrites"] = ["stream{producer=gen,firings=2}"]
    with pytest.raises(InvalidInput, match="gen: carries samples over; that runs with one generator of one firing"):
        run_tiny("run", **sections)
