"""``rpeg train`` with another plan than its own, from a file or by moves: data away at times changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.conftest import Ended

from rpeg.plan.bind import bind_local
from rpeg.recipe.graph import build_graph
from rpeg.recipe.load import load_recipe
from rpeg.search.bundle import Bundle, write_bundle
from rpeg.transforms.registry import parse

Rpeg = Callable[..., Ended]
Write = Callable[..., str]

AWAY = (
    "offload{data=ref.weights,between=[ref,ref]}",
    "offload{data=actor.moments,between=[update,update],home=disk}",
    "offload{data=actor.rollout,between=[gen,gen,pull,eval]}",
)
MOVES = tuple(word for move in AWAY for word in ("--move", move))


def numbers(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of every step that do not measure time."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "perf/"))} for row in rows]


def test_moves_and_a_plan_file_with_them_have_the_same_result(rpeg: Rpeg, recipe: Write, folder: Path) -> None:
    words = (recipe(algorithm={"kl_coefficient": 0.1}), "run.steps=3")
    ended = rpeg("train", *words, *MOVES, "--dry-run", "--json")
    assert ended.status == 0, ended.err
    plan = json.loads(ended.out)["plan"]
    assert [(each["data"], each["home"]) for each in plan["residencies"]] == [
        ("ref.weights", "host"),
        ("actor.moments", "disk"),
        ("actor.rollout", "host"),
    ]
    (folder / "plan.json").write_text(json.dumps(plan))
    for name, options in (("plain", ()), ("moved", MOVES), ("filed", ("--plan", "plan.json"))):
        ended = rpeg("train", *words, *options, "--run-dir", name, "--quiet")
        assert (ended.status, ended.err) == (0, "")
    assert numbers(folder / "moved") == numbers(folder / "plain") == numbers(folder / "filed")
    assert "load:ref.weights.0" in (folder / "filed" / "report.html").read_text()
    assert rpeg("report", "filed").status == 0
    ended = rpeg("train", *words[:1], "run.steps=4", "--resume", "--run-dir", "filed", *MOVES[:2], "--quiet")
    assert (ended.status, ended.err) == (0, "")


def test_a_plan_with_a_graph_of_its_own_resumes_under_that_plan_only(rpeg: Rpeg, recipe: Write, folder: Path) -> None:
    words, run = (recipe(algorithm={"staleness": 1}), "--run-dir", "run", "--quiet"), folder / "run"
    graph = parse("retime{stage=gen,r=-1}").apply(build_graph(load_recipe(Path(words[0]), [])))
    write_bundle(folder / "plan.json", Bundle(bind_local(graph), graph))
    assert rpeg("train", *words, "run.steps=1", "--plan", "plan.json").status == 0
    (folder / "plan.json").unlink()
    refused = rpeg("train", *words, "run.steps=2", "--resume")
    assert refused.faults == [
        "gen.0: after step 1 rollouts of step 1 wait to be read, this plan goes on with those of step 2; "
        "resume with the plan that the run was saved under: --plan run/plan.json"
    ]
    ended = rpeg("train", *words, "run.steps=2", "--resume", "--plan", "run/plan.json")
    assert (ended.status, ended.err) == (0, "")
    assert [row["step"] for row in numbers(run)] == [0, 1, 2]


def test_a_plan_for_a_recipe_with_rewrites(rpeg: Rpeg, recipe: Write, folder: Path) -> None:
    words = (recipe(algorithm={"rewrites": ["stream{producer=gen,firings=2}"]}), "--run-dir", "run", "--quiet")
    assert rpeg("train", *words).status == 0
    ended = rpeg("train", *words, "run.steps=2", "--resume", "--plan", "run/plan.json")
    assert (ended.status, ended.err) == (0, "")


def test_moves_that_do_not_fit_are_refused(rpeg: Rpeg, recipe: Write, folder: Path) -> None:
    name = recipe()
    assert rpeg("train", name, "--move", "ofload{data=a}").faults == ["ofload: is no rewrite; did you mean offload?"]
    assert rpeg("train", name, "--move", AWAY[0]).faults[0].startswith("ref.weights: is no weights that last")
    staged = rpeg("train", name, "--move", "offload{data=actor.staged,between=[push,pull]}", "--run-dir", "run")
    assert staged.faults[0].startswith("actor.staged: lives at host, and no worker has it for itself")
