"""What lies on the arcs at a cut: it is saved with all that is known of it, and no other plan goes on without it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.conftest import Recorder, tiny_recipe
from tests.runtime.test_run import assert_same
from tests.runtime.test_same_mathematics import moved

from rpeg.errors import RunFolderError
from rpeg.graph.graph import Graph
from rpeg.observe.run_folder import RunFolder
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import KnownCosts
from rpeg.plan.lower import lower
from rpeg.recipe.graph import build_graph
from rpeg.recipe.schema import Recipe
from rpeg.runtime.cuts import Cuts
from rpeg.runtime.run import train

LATER = "retime{stage=gen,r=-1}"
"""Rollouts wait a step for all that read them; the generator works on the newest weights."""
JUDGED = "retime{stage=reward,r=-1}"
"""After the one above: rewards are there at once, and wait with the rollouts."""
PARTS = "stream{producer=gen,firings=2}"
REFERENCE_AHEAD = ("place{stage=ref,mesh=roll}", "reorder{resource=roll,i=1,j=1,shift=1}")


def stale(*rewrites: str, **algorithm: Any) -> dict[str, Any]:
    """Return sections of a short run on samples of the weights before."""
    return {
        "algorithm": {"staleness": 1, "updates_per_step": 1, "rewrites": rewrites, **algorithm},
        "evaluation": {"every_steps": 3, "prompts": 2},
        "run": {"steps": 3},
    }


def go(folder: Path, sections: dict[str, Any], *moves: str, resume: bool = False, **more: Any) -> RunFolder:
    """Train in a folder, under the plan of this machine with some moves."""
    folder.mkdir(exist_ok=True)
    found = RunFolder(folder)
    train(tiny_recipe(**sections), lambda: found, Recorder(), resume=resume, bind=moved(*moves), **more)
    return found


def killed(whole: RunFolder, path: Path) -> Path:
    """Return a copy of a run as a kill leaves it: its lines go beyond its newest checkpoint, that of step 2."""
    shutil.copytree(whole.path, path)
    shutil.rmtree(RunFolder(path).checkpoint(3))
    return path


@pytest.mark.parametrize(
    ("sections", "moves", "waiting"),
    [
        (stale(LATER), (), {"rollouts/1/gen/0"}),
        (stale(LATER, JUDGED), (), {"rollouts/1/gen/0", "scores/1/reward/0"}),
        (stale(PARTS, LATER), (), {f"{data}/1/gen/{i}" for data in ("rollouts", "places") for i in (0, 1)}),
        (stale(kl_coefficient=0.1), REFERENCE_AHEAD, {"rollouts/2/gen/0", "ref_out/2/ref/0"}),
    ],
    ids=["later", "judged", "parts", "reference"],
)
def test_resumed_equals_uninterrupted_whatever_waits(
    tmp_path: Path, sections: dict[str, Any], moves: tuple[str, ...], waiting: set[str]
) -> None:
    whole = go(tmp_path / "whole", sections, *moves)
    assert set(json.loads((whole.checkpoint(2) / "state.json").read_text())["waiting"]) == waiting
    parts = go(killed(whole, tmp_path / "parts"), sections, *moves, resume=True)
    assert_same(whole, parts, 3)


def test_samples_to_read_have_rewards_of_their_own_wherever_these_wait(tmp_path: Path) -> None:
    """Which step tells of a sample is another matter, so nothing is told of the last ones where all wait."""
    found: list[dict[tuple[object, ...], tuple[float, float]]] = []
    for name, rewrites in (("neither", ()), ("rollouts", (LATER,)), ("rewards", (LATER, JUDGED))):
        folder = go(tmp_path / name, stale(*rewrites))
        rows = [json.loads(line) for line in folder.samples.read_text().splitlines()]
        own = [row for row in rows if not row["held_out"]]
        assert {row["step"] for row in own} == ({1, 2} if rewrites else {1, 2, 3})
        found.append({(row["step"], row["row_id"], row["response"]): (row["reward"], row["advantage"]) for row in own})
    neither, rollouts, rewards = found
    first = {key: value for key, value in neither.items() if key[0] == 1}  # of the same weights in all three
    assert len(first) > 4
    for other in (rollouts, rewards):
        assert {key: value for key, value in other.items() if key[0] == 1} == first
    assert rollouts == rewards


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A stale run as the recipe has it."""
    return go(tmp_path_factory.mktemp("plain") / "run", stale())


def rewritten(*rewrites: str) -> Callable[[Recipe], Graph]:
    """Return what makes another graph of the same recipe, as a plan with a graph of its own does."""
    return lambda recipe: build_graph(tiny_recipe(**stale(*rewrites)))


@pytest.mark.parametrize(
    ("rewrites", "said"),
    [
        (
            (LATER,),
            "gen.0: after step 2 rollouts of step 3 wait to be read, this plan goes on with those of step 2; "
            "resume with the plan that the run was saved under: --plan ",
        ),
        (
            (PARTS,),
            "gen.1: after step 2 rollouts of no step wait to be read, this plan goes on with those of step 3; ",
        ),
    ],
    ids=["later", "parts"],
)
def test_rows_that_wait_are_not_lost_to_another_plan(
    plain: RunFolder, tmp_path: Path, rewrites: tuple[str, ...], said: str
) -> None:
    parts = killed(plain, tmp_path / "parts")
    before = (parts / "metrics.jsonl").read_text()
    with pytest.raises(RunFolderError) as refused:
        go(parts, stale(), resume=True, build=rewritten(*rewrites))
    assert said in str(refused.value)
    assert (parts / "metrics.jsonl").read_text() == before


def test_another_plan_for_which_the_same_rows_wait_goes_on(plain: RunFolder, tmp_path: Path) -> None:
    parts = go(killed(plain, tmp_path / "parts"), stale(), "place{stage=reward,mesh=roll}", resume=True)
    assert_same(plain, parts, 3)


def test_at_the_beginning_nothing_waits() -> None:
    graph = build_graph(tiny_recipe(**stale(LATER, JUDGED)))
    cuts = Cuts(graph, lower(graph, bind_local(graph), KnownCosts({})), ("prompts",))
    assert cuts.waiting(0) == set()
    assert cuts.waiting(1) == {"rollouts/0/gen/0", "scores/0/reward/0"}
    assert (cuts.num_read("rollouts", 0, 1), cuts.num_read("scores", 0, 1)) == (1, 0)
