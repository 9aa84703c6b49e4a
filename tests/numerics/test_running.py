"""Samples under way: more are added, weights change between tokens, and what there is can be taken."""

from __future__ import annotations

import pytest
import torch
from tests.numerics.test_sampler import PARAMS, ragged, samples, tiny
from transformers import PreTrainedModel

from rpeg.numerics.running import Running
from rpeg.numerics.sampler import Sampler
from rpeg.numerics.samples import Sampled, SamplingParams

ENDLESS = SamplingParams(temperature=1.0, max_new_tokens=12, end_ids=())


def drained(running: Running) -> list[Sampled]:
    found: list[Sampled] = []
    while running.is_busy:
        found += running.advance()
    return sorted(found, key=lambda sampled: sampled.index)


def weights(model: PreTrainedModel, scale: float) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() * scale for name, parameter in model.named_parameters()}


def logps_of(model: PreTrainedModel, ids: list[int], num_answer: int) -> list[float]:
    with torch.no_grad():
        logits_TV = model(input_ids=torch.tensor([ids])).logits[0, -num_answer - 1 : -1]
    return logits_TV.log_softmax(-1).gather(-1, torch.tensor(ids[-num_answer:]).unsqueeze(-1)).squeeze(-1).tolist()


@pytest.mark.parametrize("slots", [2, 5, 64])
@pytest.mark.parametrize("after", [0, 3, 40])
def test_samples_that_are_added_later_are_the_same_samples(slots: int, after: int) -> None:
    model, prompts = tiny("qwen3"), ragged(9)
    expected = samples(model, prompts, group=2)
    running = Sampler(model, slots, 0).begin(PARAMS, 9)
    running.add(prompts[:4], 2, list(range(1000, 1008)))
    found = [sampled for _ in range(after) if running.is_busy for sampled in running.advance()]
    running.add(prompts[4:], 2, list(range(1008, 1018)))
    found = sorted([*found, *drained(running)], key=lambda sampled: sampled.index)
    assert [s.ids for s in found] == [s.ids for s in expected]
    for one, other in zip(found, expected, strict=True):
        assert (one.index, one.logps) == (other.index, pytest.approx(other.logps, abs=1e-5))


def test_prompts_are_forgotten_when_their_samples_have_ended() -> None:
    model, prompts = tiny("qwen3"), ragged(40)
    running = Sampler(model, 3, 0).begin(PARAMS, 9)
    found: list[Sampled] = []
    for number, prompt in enumerate(prompts):
        running.add([prompt], 1, [1000 + number])
        for _ in range(8):
            found += running.advance() if running.is_busy else []
    found = sorted([*found, *drained(running)], key=lambda sampled: sampled.index)
    assert [s.ids for s in found] == [s.ids for s in samples(model, prompts)]
    assert len(running.prompts) < 10


@pytest.mark.parametrize("keeps_cache", [True, False])
def test_tokens_say_which_weights_they_are_from(keeps_cache: bool) -> None:
    model = tiny("qwen3")
    prompts, (old, new) = ragged(6), [weights(model, scale) for scale in (1.0, 0.7)]
    sampler = Sampler(model, 4, 0)
    sampler.load(old, 1)
    running = sampler.begin(ENDLESS, 9)
    running.add(prompts, 1, list(range(6)))
    found = [sampled for _ in range(7) for sampled in running.advance()]  # 1 admission and 6 more tokens
    sampler.load(new, 2)
    running.go_on_with(2, keeps_cache=keeps_cache)
    found = sorted([*found, *drained(running)], key=lambda sampled: sampled.index)
    assert [s.versions for s in found] == [[1] * 7 + [2] * 5] * 4 + [[2] * 12] * 2
    for sampled in found:
        ids = prompts[sampled.index] + sampled.ids
        expected = logps_of(model, ids, 12)  # all of it by the new weights
        assert sampled.logps[7:] != pytest.approx(logps_of(tiny("qwen3"), ids, 5), abs=1e-3)
        is_whole = sampled.versions[0] == 2
        first = 0 if is_whole else 7
        if is_whole or not keeps_cache:
            assert sampled.logps[first:] == pytest.approx(expected[first:], abs=1e-5)
        else:  # keys and values of seven tokens and the prompt are those of the old weights
            assert sampled.logps[first:] != pytest.approx(expected[first:], abs=1e-3)


def test_new_weights_for_nobody_change_nothing_but_the_version() -> None:
    model, prompts = tiny("qwen3"), ragged(3)
    running = Sampler(model, 4, 0).begin(PARAMS, 9)
    running.go_on_with(5, keeps_cache=False)
    running.add(prompts, 1, [1000, 1001, 1002])
    found = drained(running)
    assert [s.ids for s in found] == [s.ids for s in samples(model, prompts)]
    assert {version for s in found for version in s.versions} == {5}


@pytest.mark.parametrize("after", [1, 5])
def test_what_is_cut_goes_on_as_if_nothing_had_happened(after: int) -> None:
    model, prompts = tiny("qwen3"), ragged(5)
    expected = samples(model, prompts, params=ENDLESS)
    sampler = Sampler(model, 3, 0)
    running = sampler.begin(ENDLESS, 9)
    running.add(prompts, 1, [1000 + i for i in range(5)])
    for _ in range(after):
        assert running.advance() == []
    parts = sorted(running.cut(), key=lambda sampled: sampled.index)
    assert [(len(part.ids), part.finished) for part in parts] == [(after, False)] * 3 + [(0, False)] * 2
    assert not running.is_busy
    begun = [[*prompts[part.index], *part.ids] for part in parts]
    seeds = [1000 + part.index for part in parts]
    rest = sorted(sampler.generate(begun, 1, ENDLESS, seeds, [len(p.ids) for p in parts]), key=lambda s: s.index)
    for part, end, whole in zip(parts, rest, expected, strict=True):
        assert part.ids + end.ids == whole.ids
        assert part.logps + end.logps == pytest.approx(whole.logps, abs=1e-5)


def test_a_batch_that_has_begun_nothing_is_cut_to_nothing() -> None:
    running = Sampler(tiny("qwen3"), 3, 0).begin(PARAMS, 9)
    assert running.cut() == []
    assert not running.is_busy


@pytest.mark.parametrize("budget", [1, 4, 12, 50])
def test_a_budget_ends_samples_early(budget: int) -> None:
    model, prompts = tiny("qwen3"), ragged(5)
    running = Sampler(model, 2, 0).begin(ENDLESS, 9)
    running.add(prompts, 1, [1000 + i for i in range(5)], budget=budget)
    expected = [sampled.ids[:budget] for sampled in samples(model, prompts, params=ENDLESS)]
    assert [sampled.ids for sampled in drained(running)] == expected


def test_groups_of_different_sizes_go_together() -> None:
    """Answers that are gone on with have prompts of their own; new ones share theirs."""
    model, prompts = tiny("qwen3"), ragged(4)
    whole = samples(model, prompts, group=3, params=ENDLESS)
    begun = [prompts[0] + whole[member].ids[:4] for member in range(3)]
    running = Sampler(model, 4, 0).begin(ENDLESS, 9 + 4, longest_row=9 + 12)
    running.add(begun, 1, [1000, 1001, 1002], [4, 4, 4])
    running.add(prompts[1:], 3, [1003 + i for i in range(9)])
    found = drained(running)
    assert [sampled.index for sampled in found] == list(range(12))
    assert [s.ids for s in found] == [s.ids[4:] for s in whole[:3]] + [s.ids for s in whole[3:]]
