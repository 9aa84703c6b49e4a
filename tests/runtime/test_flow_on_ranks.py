"""Samples under way on several ranks: handed out as they end, gone on with by new weights, carried over."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.numerics.parallel.conftest import two_ranks as two_ranks
from tests.numerics.parallel.ranks import Ranks as World
from tests.runtime.conftest import Recorder, tiny_recipe
from tests.runtime.test_carry import settings_of
from tests.runtime.test_models import other_model
from tests.runtime.test_ranks_of_runs import run_on, widened
from tests.runtime.test_recorded_values import prompts
from tests.runtime.test_run import tensors, untimed
from tests.runtime.test_split_sampling import SPLIT

from rpeg.errors import PlanError
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.numerics.model import load_model
from rpeg.numerics.parallel.axes import device_mesh
from rpeg.numerics.tokenizer import load_tokenizer
from rpeg.observe.run_folder import RunFolder
from rpeg.plan.bind import bind_local
from rpeg.plan.plan import Balance, Binding, Layout, Plan
from rpeg.recipe.graph import build_graph
from rpeg.runtime.learner import copied
from rpeg.runtime.origin import Origin
from rpeg.runtime.probe import Probe
from rpeg.runtime.roles import Roles
from rpeg.runtime.rows import Rows
from rpeg.runtime.run import planned, train
from rpeg.runtime.shares import deal
from rpeg.runtime.store import Store
from rpeg.runtime.task import Outcome, Progress, Staged, Task
from rpeg.runtime.world import ALONE, Ranks

pytestmark = pytest.mark.multiproc


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Outcome]:
    """Return what every firing of a generator will have made, on all ranks together."""
    found: list[Outcome] = []
    finish = Store.finish

    def record(self: Store, event: Any, step: int, outcome: Outcome) -> None:
        if event.stage == "gen":
            found.append(outcome)
        finish(self, event, step, outcome)

    monkeypatch.setattr(Store, "finish", record)
    return found


def versions_of(made: list[Outcome]) -> list[list[int]]:
    """Return the version of every token of every row, which never falls from one to the next."""
    found = [row.tolist() for each in made if each.rows is not None for row in each.rows.ragged("version").rows()]
    assert all(a <= b for row in found for a, b in pairwise(row))
    return found


PROMPTS, GROUP = 3, 4
"""Two of the prompts are the first rank's, one is the second's."""


def _in_flight(axes: tuple[tuple[str, int], ...], folder: Path) -> tuple[dict[int, list[list[int]]], list[str]]:
    """Sample two steps, with new weights as soon as a slot is free; return this rank's groups, and what calls said."""
    ranks = Ranks(device_mesh(axes, torch.device("cpu"))) if axes else ALONE
    recipe = tiny_recipe(
        algorithm={"staleness": 1, "in_flight": "recompute", "prompts": PROMPTS, "updates_per_step": 3},
        sampling={"slots": 3, "max_new_tokens": 40},
    )
    model = load_model(folder, torch.float32, torch.device("cpu"))
    weights = Staged(Probe(recipe, load_tokenizer(folder), model).score(model), copied(model))

    def task(step: int) -> Task:
        asked, places = prompts().part(0, PROMPTS), tuple(range(step * PROMPTS, (step + 1) * PROMPTS))
        asked = Rows({**asked.columns, "seed": asked.tensor("seed") + 1000 * step})
        whole = Task("gen", StageKind.GENERATE, step, 0, asked, Rows({}), {"actor.rollout": 0}, places=places)
        return deal(whole, Balance.ROWS, ranks.rows.count).tasks(whole)[ranks.rows.number]

    found, said = dict[int, list[list[int]]](), list[str]()
    bindings = [Binding("gen", "all", Layout("all", SPLIT if ranks.sizes.get("tp") else ()))]
    with closing(Roles(recipe, build_graph(recipe), Origin(folder, folder, None, 0), ranks, bindings)) as roles:
        calls = [task(0)]
        while calls:
            call = calls.pop(0)
            made = roles.generator.generate(call)
            said.append(f"{call.step} {made.progress}")
            if made.progress is not Progress.DONE:
                calls.append(call.again())
            elif made.rows is not None:
                tokens = [row.tolist() for row in made.rows.ragged("tokens").rows()]
                found |= {place: tokens[i * GROUP : (i + 1) * GROUP] for i, place in enumerate(made.places)}
            if said.count("0 released") == 1 and said[-1] == "0 released":
                roles.generator.pull(Task("pull", StageKind.PULL, 0, 0, Rows({}), Rows({}), {}, weights))
                calls.append(task(1))
    return found, said


def test_ranks_agree_on_how_far_a_call_is_and_write_what_one_writes(two_ranks: World, tmp_path: Path) -> None:
    """New weights that are the old ones change no token; the rank with fewer groups waits for the other's."""
    folder = other_model(tmp_path / "model", layers=2)
    alone, _ = _in_flight((), folder)
    (first, said), (second, also_said) = two_ranks.run(_in_flight, (("dp", 2),), folder)
    assert said == also_said
    assert {"0 released", "0 done", "1 done"} <= set(said)
    assert (sorted(first), sorted(second)) == ([0, 1, 3, 4], [2, 5])
    assert {**first, **second} == alone
    assert len(alone) == 2 * PROMPTS


def test_the_ranks_of_a_replica_go_on_together(two_ranks: World, tmp_path: Path) -> None:
    folder = other_model(tmp_path / "model", layers=2)
    alone, said = _in_flight((), folder)
    assert two_ranks.run(_in_flight, (("tp", 2),), folder) == [(alone, said)] * 2


def _replicas_beside_a_trainer(graph: Graph) -> Plan:
    plan = bind_local(graph)
    meshes = tuple(
        replace(m, where="local.slot[1:3]", axes=(("dp", 2),)) if m.name == "roll" else m for m in plan.meshes
    )
    return replace(plan, meshes=meshes)


@pytest.mark.slow
def test_weights_arrive_on_all_ranks_within_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recorded(monkeypatch)
    algorithm = {"staleness": 2, "in_flight": "keep", "updates_per_step": 2}
    sampling = {"max_new_tokens": 40, "slots": 3}
    recipe = tiny_recipe(algorithm=algorithm, sampling=sampling, run={"home": "processes", "steps": 5})
    folder = RunFolder(tmp_path)
    train(recipe, lambda: folder, Recorder(), bind=_replicas_beside_a_trainer)
    assert max(row[-1] for row in versions_of(made)) > 0
    places = sorted(place for each in made for place in each.places)
    assert places == list(range(len(places))), "those of steps that were begun ahead among them"
    metrics = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    trained = [row for row in metrics if "staleness/max" in row]
    assert [row["counters/samples"] for row in trained] == [16 * (i + 1) for i in range(5)]
    assert all(row["staleness/max"] <= 2 for row in trained)


@pytest.mark.slow
def test_what_one_rank_carries_over_two_go_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a checkpoint of one rank on two and back: every prompt once, and no sample older than it may be."""
    made = recorded(monkeypatch)
    sections = settings_of(0, 4, 2)
    for ranks, steps in ((1, 2), (2, 5), (1, 7)):
        folder = run_on(ranks, tmp_path, resume=steps > 2, **sections, run={"steps": steps})
    assert [each.num_rows for each in made] == [8] * 7
    places = [place for each in made for place in each.places]
    assert len(set(places)) == 7 * 4
    assert max(places) < (7 + 2) * 4
    assert any(len(set(row)) > 1 for row in versions_of(made))
    metrics = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert max(row["staleness/max"] for row in metrics) <= 2
    assert max(row["carry/samples"] for row in metrics) > 0
    assert all(row["carry/age_max"] <= 2 for row in metrics)


def test_prompts_that_do_not_divide_are_not_carried_over() -> None:
    recipe = tiny_recipe(**settings_of(0, 4, 1), run={"home": "processes"})
    with pytest.raises(PlanError, match="gen: carries samples of 4 prompts over on 8 ranks with different rows"):
        planned(recipe, build_graph, widened(8))


@pytest.mark.slow
def test_a_stream_of_two_ranks_trains_as_one(tmp_path: Path) -> None:
    """Which groups are complete first hangs on the ranks; each update has its own prompts all the same."""
    sections: dict[str, Any] = {"algorithm": {"rewrites": ["stream{producer=gen,firings=2}"], "updates_per_step": 1}}
    one, two = (run_on(ranks, tmp_path / str(ranks), **sections) for ranks in (1, 2))
    for name, values in tensors(one, 4).items():
        torch.testing.assert_close(tensors(two, 4)[name], values, atol=1e-5, rtol=1e-5, msg=name)
    for row, other in zip(untimed(one), untimed(two), strict=True):
        assert other == pytest.approx(row, abs=1e-5)
