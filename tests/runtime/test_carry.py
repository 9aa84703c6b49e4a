"""Samples that go on in the next step: none is lost, none twice, none older than it may be."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.numerics.test_sampler import ragged, samples, tiny
from tests.runtime.test_flow import recorded

from rpeg.algorithms.grpo import grpo
from rpeg.errors import InvalidInput
from rpeg.graph.contract import Enforce
from rpeg.graph.graph import Graph
from rpeg.numerics.parallel.peers import Peers
from rpeg.numerics.sampler import TorchSampler
from rpeg.numerics.samples import Sampled, SamplingParams
from rpeg.observe.run_folder import RunFolder
from rpeg.runtime.carry import Carried, Carry, Window, dealt
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.support import unsupported

Run = Callable[..., RunFolder]
PARAMS = SamplingParams(temperature=1.0, max_new_tokens=24, end_ids=(1, 7))
PROMPTS, GROUP = 3, 2
MODEL = tiny("qwen3", max_position_embeddings=64)
TEXTS = ragged(60)
WAYS = [Enforce.COUNT, Enforce.WAIT, Enforce.DROP]


class Played:
    """A sampler and its running batch that know of every answer, by its seed, only how long it becomes."""

    def __init__(self, slots: int, lengths: Mapping[int, int]) -> None:
        self.slots, self.lengths = slots, lengths
        self.waiting: list[tuple[int, int, int, int]] = []
        self.active: list[list[int]] = []
        self.num_added = 0

    def begin(self, *_: object, **__: object) -> Played:
        assert not self.is_busy, "the batch of the step before was cut"
        self.num_added = 0
        return self

    def add(
        self,
        prompts: Sequence[object],
        group: int,
        seeds: Sequence[int],
        written: Sequence[int] | None = None,
        budget: int | None = None,
    ) -> None:
        assert len(prompts) * group == len(seeds)
        for seed, so_far in zip(seeds, written or [0] * len(seeds), strict=True):
            left = self.lengths[seed] - so_far
            self.waiting.append((self.num_added, left, left if budget is None else min(left, budget), seed))
            self.num_added += 1

    @property
    def is_busy(self) -> bool:
        return bool(self.active or self.waiting)

    @property
    def has_room(self) -> bool:
        return not self.waiting and len(self.active) < self.slots

    def advance(self) -> list[Sampled]:
        """Give free slots to what waits, whose first tokens come with it, or write a token of every answer."""
        growing = self.active
        if self.waiting and len(self.active) < self.slots:
            free = self.slots - len(self.active)
            growing = [[*each, 0] for each in self.waiting[:free]]
            self.waiting, self.active = self.waiting[free:], [*self.active, *growing]
        for each in growing:
            each[-1] += 1
        ended = [each for each in self.active if each[-1] == each[2]]
        self.active = [each for each in self.active if each[-1] < each[2]]
        return [self.sampled(*each) for each in ended]

    def cut(self) -> list[Sampled]:
        """End everything as it is."""
        found = [self.sampled(*each) for each in [*self.active, *([*each, 0] for each in self.waiting)]]
        self.active, self.waiting = [], []
        return found

    def sampled(self, index: int, left: int, _most: int, seed: int, new: int) -> Sampled:
        return Sampled(index, [seed] * new, [0.0] * new, new == left, [0] * new)


def prompts_of(step: int) -> Rows:
    numbers = range(step * PROMPTS, (step + 1) * PROMPTS)
    return Rows(
        {
            "row": torch.tensor(list(numbers)),
            "tokens": Ragged.of([TEXTS[number % len(TEXTS)] for number in numbers], torch.int64),
            "seed": torch.tensor([1000 + GROUP * number for number in numbers]),
        }
    )


def carried_through(steps: int, carry: Carry, sampler: Any) -> list[Carried]:
    left, found = None, list[Carried]()
    for step in range(steps):
        found.append(Window(sampler, PARAMS, carry, GROUP, 9, prompts_of, Peers()).sample(step, left))
        left = found[-1].left
    return found


class Thread(Peers):
    """One of several ranks that are threads."""

    def __init__(self, number: int, barrier: threading.Barrier, said: list[tuple[float, ...]]) -> None:
        super().__init__()
        self.number, self.count, self.barrier, self.said = number, barrier.parties, barrier, said

    def all_said(self, *numbers: float) -> list[tuple[float, ...]]:
        self.said[self.number] = numbers
        self.barrier.wait(60)
        found = list(self.said)
        self.barrier.wait(60)
        return found

    def counts(self, *numbers: float) -> list[float]:
        return [sum(column) for column in zip(*self.all_said(*numbers), strict=True)]

    def greatest(self, number: int) -> int:
        return int(max(said for (said,) in self.all_said(number)))


def carried_by(ranks: int, step: int, carry: Carry, left: Rows | None, slots: int, lengths: Any) -> list[Carried]:
    """Sample a step on some ranks at the same time."""
    parts = [None] * ranks if left is None else dealt(left, ranks)
    barrier, said = threading.Barrier(ranks), [tuple[float, ...]()] * ranks

    def sample(rank: int) -> Carried:
        peers = Thread(rank, barrier, said)
        window = Window(cast(Any, Played(slots, lengths)), PARAMS, carry, GROUP, 9, prompts_of, peers)
        return window.sample(step, parts[rank])

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(sample, range(ranks)))


def going_on(each: Carried) -> list[int]:
    """Return the prompts that are carried over; the one that is next in line has not begun."""
    *numbers, _ = each.left.tensor("number").tolist()[::GROUP]
    return numbers


@pytest.mark.parametrize(
    ("enforce", "most_groups", "trained", "dropped"),
    [
        (Enforce.COUNT, 3, [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12], [0, 13, 14]], {}),
        (Enforce.WAIT, 3, [[1, 2, 3], [0, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14]], {}),
        (Enforce.DROP, 3, [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12], [13, 14, 15]], {1: (2.0, 8.0)}),
        (Enforce.COUNT, 1, [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12], [0, 13, 14]], {}),
        (Enforce.WAIT, 1, [[1, 2, 3], [0, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14]], {}),
    ],
)
def test_one_prompt_whose_answers_are_long(
    enforce: Enforce, most_groups: int, trained: list[list[int]], dropped: dict[int, tuple[float, float]]
) -> None:
    """Its answers take 10 tokens, all others 2, of which a step writes 2 where it has to wait for nothing else."""
    lengths = {1000 + i: 10 if i < GROUP else 2 for i in range(100)}
    found = carried_through(5, Carry(30, 1, most_groups, enforce), Played(12, lengths))
    assert [each.numbers for each in found] == trained
    thrown = [(each.metrics["rows/dropped"], each.metrics["carry/dropped_tokens"]) for each in found]
    assert thrown == [dropped.get(step, (0.0, 0.0)) for step in range(5)]
    ages = [each.metrics["carry/age_max"] for each in found]
    assert max(ages) == (4.0 if enforce is Enforce.COUNT else 1.0)
    assert max(each.metrics["carry/stale"] for each in found) <= most_groups / PROMPTS


PLAYS = (
    st.sampled_from(WAYS),
    st.integers(1, 30),
    st.integers(1, 3),
    st.integers(1, 9),
    st.sampled_from([1, 2, 6, 12]),
)
"""Way, budget, most steps and most groups that are carried over, slots."""


@given(*PLAYS, st.integers(0, 1000))
def test_every_prompt_is_accounted_for_and_none_is_older_than_it_may_be(
    enforce: Enforce, budget: int, steps: int, most: int, slots: int, seed: int
) -> None:
    draw = random.Random(seed)
    lengths = {1000 + i: 24 if draw.random() < 0.3 else draw.randint(1, 4) for i in range(1000)}
    most_groups = min(most, steps * PROMPTS)
    found = carried_through(8, Carry(budget, steps, most_groups, enforce), Played(slots, lengths))
    trained: list[int] = []
    begun = dropped = age = 0.0
    for step, each in enumerate(found):
        metrics = each.metrics
        begun, dropped = begun + metrics["rows/begun"], dropped + metrics["rows/dropped"]
        trained, left = [*trained, *each.numbers], going_on(each)
        assert len(trained) == (step + 1) * PROMPTS
        assert begun == GROUP * len(trained) + dropped + metrics["carry/samples"]
        assert metrics["carry/samples"] == GROUP * len(left)
        known = {*trained, *left}
        assert len(known) == len(trained) + len(left), "a prompt is in one place only"
        assert len(set(range(int(begun) // GROUP)) - known) == dropped / GROUP
        assert len(left) <= most_groups
        assert metrics["carry/stale"] <= most_groups / PROMPTS
        age += metrics["carry/age_mean"]
        assert age / (step + 1) <= most_groups / PROMPTS
        if enforce is not Enforce.COUNT:
            assert metrics["carry/age_max"] <= steps
        if enforce is not Enforce.DROP:
            assert dropped == 0


@given(
    *PLAYS,
    st.sampled_from([(3,), (1, 3), (3, 3, 1)]),
    st.integers(0, 1000),
)
@settings(max_examples=30)
def test_any_number_of_ranks_goes_on_with_what_any_other_has_left(
    enforce: Enforce, budget: int, steps: int, most: int, slots: int, ranks: tuple[int, ...], seed: int
) -> None:
    """Every rank hands out its part of a step, and no prompt before the next in line is lost or there twice."""
    draw = random.Random(seed)
    lengths = {1000 + i: 24 if draw.random() < 0.3 else draw.randint(1, 4) for i in range(1000)}
    carry = Carry(budget, steps, min(most, steps * PROMPTS), enforce)
    left, trained = None, list[int]()
    begun = dropped = 0.0
    for step in range(8):
        made = carried_by(ranks[step % len(ranks)], step, carry, left, slots, lengths)
        (metrics,) = {tuple(sorted(each.metrics.items())) for each in made}
        told, left = dict(metrics), Rows.stacked([each.left for each in made])
        assert {len(each.numbers) for each in made} == {PROMPTS // len(made)}
        trained += [number for each in made for number in each.numbers]
        *carried, following = left.tensor("number").tolist()[::GROUP]
        begun, dropped = begun + told["rows/begun"], dropped + told["rows/dropped"]
        assert begun == GROUP * len(trained) + dropped + told["carry/samples"]
        known = {*trained, *carried}
        assert len(known) == len(trained) + len(carried)
        assert len(set(range(following)) - known) == dropped / GROUP
        assert max(known) < following
        assert told["carry/samples"] <= GROUP * len(carried) <= GROUP * carry.most_groups
        assert told["carry/age_max"] <= steps or enforce is Enforce.COUNT


@given(st.integers(1, 30), st.integers(1, 3), st.sampled_from(WAYS))
@settings(max_examples=6)
def test_lengths_alone_decide_what_a_step_trains_on(budget: int, steps: int, enforce: Enforce) -> None:
    """With weights that stay the same, being cut and gone on with changes no token, and lengths are those drawn."""
    whole = samples(MODEL, TEXTS, group=GROUP, params=PARAMS)
    lengths = {1000 + i: len(each.ids) for i, each in enumerate(whole)}
    carry = Carry(budget, steps, steps * PROMPTS, enforce)
    played = carried_through(4, carry, Played(6, lengths))
    for each, foreseen in zip(carried_through(4, carry, TorchSampler(MODEL, 6, 0)), played, strict=True):
        assert (each.numbers, each.metrics) == (foreseen.numbers, foreseen.metrics)
        for i, answer in enumerate(each.answers):
            number, member = each.numbers[i // GROUP], i % GROUP
            expected = whole[number * GROUP + member]
            assert each.prompts[i] == TEXTS[number]
            assert answer.ids == expected.ids
            assert answer.logps == pytest.approx(expected.logps, abs=1e-5)
            assert answer.finished == expected.finished


def settings_of(staleness: int, budget: int, steps: int, **partial: Any) -> dict[str, Any]:
    partial = {"budget_tokens": budget, "max_carry": steps, **partial}
    sizes = {"prompts": 4, "group_size": 2, "updates_per_step": 1}
    algorithm = {**sizes, "staleness": staleness, "partial_rollouts": partial}
    return {"algorithm": algorithm, "sampling": {"max_new_tokens": 40, "slots": 32}, "evaluation": {"every_steps": 0}}


def ages(rollouts: list[Rows]) -> list[list[int]]:
    """Return how many versions behind the oldest token of every answer is, by step."""
    return [[step - min(row.tolist()) for row in rows.ragged("version").rows()] for step, rows in enumerate(rollouts)]


@pytest.mark.parametrize(
    ("staleness", "steps", "budget", "partial"),
    [
        (1, 2, 4, {}),
        (0, 1, 4, {"stale_share": 0.25}),
        (0, 1, 40, {"enforce": "count"}),
        (1, 1, 40, {"enforce": "drop"}),
    ],
)
def test_a_run_keeps_what_its_contract_says(
    run_tiny: Run, monkeypatch: pytest.MonkeyPatch, staleness: int, steps: int, budget: int, partial: dict[str, Any]
) -> None:
    rollouts = recorded(monkeypatch)
    folder = run_tiny("run", **settings_of(staleness, budget, steps, **partial), run={"steps": 8})
    versions = [row.tolist() for rows in rollouts for row in rows.ragged("version").rows()]
    assert any(len(set(row)) > 1 for row in versions)
    assert all(a <= b for row in versions for a, b in pairwise(row))
    behind, metrics = ages(rollouts[:8]), [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert len(metrics) == 8
    assert [row["counters/samples"] for row in metrics] == [8 * (i + 1) for i in range(8)]
    begun, dropped = (sum(row[name] for row in metrics) for name in ("rows/begun", "rows/dropped"))
    assert begun == 8 * 8 + dropped + metrics[-1]["carry/samples"]
    assert (dropped > 0) == (partial.get("enforce") == "drop")
    every = [age for of_step in behind for age in of_step]
    if partial.get("enforce") == "count":
        assert sum(every) / len(every) <= staleness + steps < max(every)
    else:
        assert max(every) == staleness + steps
        assert all(row["carry/age_max"] <= steps for row in metrics)
    assert [row["staleness/max"] for row in metrics] == [float(max(of_step)) for of_step in behind]
    share = partial.get("stale_share", 1.0)
    assert all(sum(age > staleness for age in of_step) <= share * len(of_step) for of_step in behind)


@pytest.mark.parametrize("enforce", ["wait", "drop"])
def test_a_resumed_run_equals_one_whose_steps_took_other_times(run_tiny: Run, enforce: str) -> None:
    sections, draw = settings_of(1, 12, 1, enforce=enforce), random.Random(1)
    whole = run_tiny("whole", **sections, run={"steps": 6})
    run_tiny("half", **sections, run={"steps": 3}, at_step=lambda _: time.sleep(draw.choice((0.0, 0.05))))
    half = run_tiny("half", resume=True, **sections, run={"steps": 6})
    for one, other in zip(whole.metrics.read_text().splitlines(), half.metrics.read_text().splitlines(), strict=True):
        pair = [json.loads(line) for line in (one, other)]
        before, after = ({k: v for k, v in row.items() if not k.startswith(("time/", "perf/"))} for row in pair)
        assert after == before
    dropped = [json.loads(line)["rows/dropped"] for line in whole.metrics.read_text().splitlines()]
    assert (sum(dropped[:3]) > 0) == (enforce == "drop"), "the prompt next in line has to be in the checkpoint"
    weights = [(each.checkpoint(6) / "model" / "model.safetensors").read_bytes() for each in (whole, half)]
    assert weights[0] == weights[1]


def test_a_contract_that_nothing_keeps_is_refused() -> None:
    def with_enforce(graph: Graph, enforce: Enforce) -> Graph:
        return replace(graph, contract=replace(graph.contract, enforce=enforce))

    (fault,) = unsupported(with_enforce(grpo(4, 2), Enforce.DROP))
    assert str(fault).startswith("contract.enforce: is drop, and no samples are carried over: each step trains on all")
    (fault,) = unsupported(with_enforce(grpo(4, 2, max_carry=1), Enforce.ADMIT))
    assert str(fault).startswith(
        "contract.enforce: is admit, which says nothing of samples that are carried over; wait"
    )
    assert list(unsupported(grpo(4, 2, max_carry=1, enforce=Enforce.COUNT))) == []


def test_carrying_over_with_several_firings_is_refused(run_tiny: Run) -> None:
    sections = settings_of(0, 4, 1)
    sections["algorithm"]["rewrites"] = ["stream{producer=gen,firings=2}"]
    with pytest.raises(InvalidInput, match="gen: carries samples over; that runs with one generator of one firing"):
        run_tiny("run", **sections)
