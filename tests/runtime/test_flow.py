"""Groups under way: handed out as they end, and gone on with by weights that arrive in between."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.numerics.test_sampler import ragged, tiny
from tests.runtime.conftest import Recorder, tiny_recipe
from tests.runtime.test_same_mathematics import rendezvous

from rpeg.errors import InvalidInput
from rpeg.graph.graph import Graph
from rpeg.numerics.sampler import TorchSampler
from rpeg.numerics.samples import SamplingParams
from rpeg.observe.run_folder import RunFolder
from rpeg.recipe.graph import build_graph
from rpeg.recipe.schema import Recipe
from rpeg.runtime import flow as flow_module
from rpeg.runtime.flow import Flow, flows
from rpeg.runtime.rows import Ragged, Rows
from rpeg.runtime.run import train
from rpeg.runtime.store import Store
from rpeg.transforms.registry import parse as read_rewrite

Run = Callable[..., RunFolder]
PARAMS = SamplingParams(temperature=1.0, max_new_tokens=24, end_ids=(1, 7, 9))


def asked(prompts: list[list[int]], first_seed: int = 100, group: int = 2) -> Rows:
    seeds = torch.tensor([first_seed + group * i for i in range(len(prompts))])
    rows = torch.arange(len(prompts))
    return Rows({"tokens": Ragged.of(prompts, torch.int64), "seed": seeds, "row": rows})


def test_groups_are_handed_out_as_they_are_complete_and_only_once() -> None:
    sampler, prompts = TorchSampler(tiny("qwen3", max_position_embeddings=64), 6, 0), ragged(6)
    running = Flow(sampler, 2, PARAMS, 9, has_queue=True)
    running.add(0, asked(prompts), tuple(range(6)))
    seeds = [100 + i for i in range(12)]
    whole = sorted(sampler.generate(prompts, 2, PARAMS, seeds), key=lambda sampled: sampled.index)
    found: dict[int, list[list[int]]] = {}
    order: list[int] = []
    for _ in range(3):
        while (taken := running.take(0, 2, range(6))) is None:
            running.advance()
        assert taken.prompts == [prompts[place] for place in taken.places for _ in range(2)]
        assert taken.rows == taken.places
        order += taken.places
        for i, place in enumerate(taken.places):
            found[place] = [sampled.ids for sampled in taken.samples[2 * i : 2 * i + 2]]
    assert sorted(order) == list(range(6))
    assert [ids for place in range(6) for ids in found[place]] == [sampled.ids for sampled in whole]
    assert not running.has_begun(0)


def test_a_firing_takes_from_its_own_prompts_only() -> None:
    running = Flow(TorchSampler(tiny("qwen3", max_position_embeddings=64), 16, 0), 2, PARAMS, 9, has_queue=False)
    running.add(3, asked(ragged(6)), tuple(range(6)))
    for _ in range(20):
        running.advance()
    assert running.take(3, 4, range(3)) is None
    first = running.take(3, 3, range(3))
    second = running.take(3, 3, range(3, 6))
    assert first is not None
    assert second is not None
    assert (first.places, second.places) == ([0, 1, 2], [3, 4, 5])


def test_steps_share_the_batch() -> None:
    sampler, prompts = TorchSampler(tiny("qwen3", max_position_embeddings=64), 3, 0), ragged(8)
    running = Flow(sampler, 2, PARAMS, 9, has_queue=True)
    running.add(0, asked(prompts[:4]), tuple(range(4)))
    while not running.has_room:
        running.advance()
    running.add(1, asked(prompts[4:], first_seed=108), tuple(range(4)))
    taken = []
    for step in (1, 0):  # the later one first: nothing hangs on the order of asking
        while (one := running.take(step, 4, range(4))) is None:
            running.advance()
        taken.append(one)
    expected = sorted(sampler.generate(prompts, 2, PARAMS, [100 + i for i in range(16)]), key=lambda s: s.index)
    assert [s.ids for one in reversed(taken) for s in one.samples] == [s.ids for s in expected]


# Whole runs


NAMES = ("reward/mean", "optim/grad_norm", "length/mean", "counters/tokens")


def settings(staleness: int, *rewrites: str, **algorithm: Any) -> dict[str, Any]:
    base = {"staleness": staleness, "rewrites": rewrites, "updates_per_step": 1, "old_logprob": "recomputed"}
    return {"algorithm": base | algorithm, "evaluation": {"every_steps": 2, "prompts": 4}}


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Rows]:
    """Return what will be the rollouts of every firing of a generator."""
    found: list[Rows] = []
    finish = Store.finish

    def record(self: Store, event: Any, step: int, outcome: Any) -> None:
        if event.stage == "gen":
            found.append(outcome.rows)
        finish(self, event, step, outcome)

    monkeypatch.setattr(Store, "finish", record)
    return found


@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_weights_arrive_within_samples(run_tiny: Run, monkeypatch: pytest.MonkeyPatch, kv: str) -> None:
    """With fewer slots than samples the next step begins while the last samples of this one are being written."""
    monkeypatch.setattr(flow_module, "_SLICE", 1)
    rollouts = recorded(monkeypatch)
    sections = settings(2, in_flight=kv)
    folder = run_tiny("run", sampling={"max_new_tokens": 24, "slots": 6}, run={"steps": 12}, **sections)
    versions = [row.tolist() for rows in rollouts for row in rows.ragged("version").rows()]
    assert any(len(set(row)) > 1 for row in versions), "no sample has tokens of two versions"
    assert all(a <= b for row in versions for a, b in pairwise(row))
    metrics = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    trained = [row for row in metrics if "staleness/max" in row]
    assert len(trained) == 12
    assert all(row["staleness/max"] <= 2 for row in trained)
    assert all(row["counters/samples"] == 16 * row["step"] for row in trained)


def test_weights_that_come_without_a_pull_are_taken_as_well(tmp_path: Path) -> None:
    """A push straight into the weights that are sampled from brings them with the next step's task."""

    def build(recipe: Recipe) -> Graph:
        return read_rewrite("in_flight{stage=gen,kv=keep}").apply(rendezvous(build_graph(recipe)), explore=True)

    folder = RunFolder(tmp_path)
    recipe = tiny_recipe(algorithm={"staleness": 1, "updates_per_step": 1}, run={"steps": 5}, evaluation={"prompts": 4})
    train(recipe, lambda: folder, Recorder(), build=build)
    rows = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [row["staleness/max"] for row in rows if "staleness/max" in row] == [0, 1, 1, 1, 1]


def test_samples_under_way_are_finished_before_a_checkpoint(run_tiny: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_module, "_SLICE", 1)
    sections = settings(1, in_flight="recompute")
    sections["sampling"] = {"max_new_tokens": 24, "slots": 6}
    run_tiny("run", run={"steps": 4}, **sections)
    folder = run_tiny("run", resume=True, run={"steps": 7}, **sections)
    steps = [json.loads(line)["step"] for line in folder.metrics.read_text().splitlines()]
    assert steps == list(range(8))


def test_optimizer_mini_batches_keep_their_prompts(run_tiny: Run) -> None:
    """Which samples end first must not decide in which update they are."""
    whole = run_tiny("whole", **settings(0, updates_per_step=2))
    parts = run_tiny("parts", **settings(0, "stream{producer=gen,firings=4}", updates_per_step=2))
    for one, other in zip(whole.metrics.read_text().splitlines(), parts.metrics.read_text().splitlines(), strict=True):
        before, after = json.loads(one), json.loads(other)
        for name in ("reward/mean", "optim/grad_norm", "loss/policy"):
            assert after.get(name, 0.0) == pytest.approx(before.get(name, 0.0), abs=2e-4, rel=2e-4)


def test_rows_that_wait_come_back_with_their_prompts(run_tiny: Run) -> None:
    """What was sampled ahead lies in the order of its ends; a resumed run has to know which prompts these are."""
    sections = settings(1, "stream{producer=gen,firings=4}")
    whole = run_tiny("whole", run={"steps": 6}, **sections)
    run_tiny("half", run={"steps": 3}, **sections)
    half = run_tiny("half", resume=True, run={"steps": 6}, **sections)
    for one, other in zip(whole.metrics.read_text().splitlines(), half.metrics.read_text().splitlines(), strict=True):
        before, after = json.loads(one), json.loads(other)
        assert [after.get(name) for name in NAMES] == [before.get(name) for name in NAMES]


def test_only_one_generator_without_a_loop_flows() -> None:
    streamed = ["stream{producer=gen,firings=2}"]
    assert flows(build_graph(tiny_recipe(algorithm={"rewrites": streamed})), "gen")
    assert not flows(build_graph(tiny_recipe()), "gen")
    remax = build_graph(tiny_recipe(algorithm={"name": "remax"}))
    assert not any(flows(remax, stage.name) for stage in remax.stages)


def test_new_weights_in_the_middle_of_rounds_are_refused(run_tiny: Run) -> None:
    """By the graph too, whose rewrites know no recipe."""
    sections = settings(1, "in_flight{stage=gen,kv=keep}", dynamic_sampling={"max_rounds": 2}, name="dapo")
    with pytest.raises(InvalidInput, match="samples neither in turns nor in rounds"):
        run_tiny("run", **sections)
