"""What a rewrite claims to keep, it keeps: 20 real steps of training, before and after.

*exact* rewrites leave every number as it was (moved by the steps that they delay), *numeric* ones leave the losses
within rounding. Sampling is discrete, so rounding could tip a token some day; with these seeds it does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.conftest import Recorder, tiny_recipe

from rpeg.errors import InvalidInput, PlanError
from rpeg.graph.data import Column
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Grain
from rpeg.graph.validate import check
from rpeg.hardware.catalog import load_system
from rpeg.observe.run_folder import RunFolder
from rpeg.plan.bind import bind_local
from rpeg.plan.moves.base import Deployment
from rpeg.plan.moves.registry import parse
from rpeg.plan.plan import Plan, Slot
from rpeg.plan.site import Site
from rpeg.recipe.graph import build_graph
from rpeg.recipe.schema import Recipe
from rpeg.runtime.run import train
from rpeg.transforms.registry import parse as read_rewrite

Run = Callable[..., RunFolder]

STEPS = 20
LOSS = ("loss/policy", "reward/mean", "length/mean", "optim/grad_norm", "policy/entropy")


def settings(staleness: int = 0, *rewrites: str, **algorithm: Any) -> dict[str, Any]:
    """Return sections of a run of 20 steps with one update each and old scores from a pass of their own."""
    chosen = {"staleness": staleness, "updates_per_step": 1, "old_logprob": "recomputed", "rewrites": rewrites}
    return {
        "algorithm": {**chosen, **algorithm},
        "evaluation": {"every_steps": 0},
        "run": {"steps": STEPS, "checkpoint_every_steps": 100},
    }


def losses(folder: RunFolder) -> list[list[float]]:
    """Return the numbers of every step; a loss is 0 where no group of a step had any spread."""
    rows = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert len(rows) == STEPS
    return [[row.get(key, 0.0) for key in LOSS] for row in rows]


@pytest.mark.parametrize("staleness", [0, 1])
def test_retiming_is_exact(run_tiny: Run, staleness: int) -> None:
    """The generator works on newer weights and its rows wait a step: the same numbers, one step later."""
    before = losses(run_tiny("before", **settings(staleness)))
    after = losses(run_tiny("after", **settings(staleness, "retime{stage=gen,r=-1}")))
    lengths = LOSS.index("length/mean")  # are told by the generator, which is not moved
    for row in (*before, *after):
        del row[lengths]
    assert after[1:] == before[:-1]


@pytest.mark.parametrize(
    "rewrite",
    [
        "stream{producer=gen,firings=4}",
        "fire{stage=train,rows=4}",
        "fire{stage=old,rows=8}",
        "fuse_forward{a=old,b=train}",
    ],
)
@pytest.mark.parametrize("staleness", [0, 1])
def test_numeric_rewrites_keep_the_losses(run_tiny: Run, rewrite: str, staleness: int) -> None:
    before = losses(run_tiny("before", **settings(staleness)))
    after = losses(run_tiny("after", **settings(staleness, rewrite)))
    for expected, found in zip(before, after, strict=True):
        assert found == pytest.approx(expected, abs=2e-4, rel=2e-4)


def test_rewrites_go_together(run_tiny: Run) -> None:
    rewrites = ("fuse_forward{a=old,b=train}", "stream{producer=gen,firings=2}")
    before = losses(run_tiny("before", **settings(1)))
    after = losses(run_tiny("after", **settings(1, *rewrites)))
    for expected, found in zip(before, after, strict=True):
        assert found == pytest.approx(expected, abs=2e-4, rel=2e-4)


def rendezvous(graph: Graph) -> Graph:
    """Return the graph with its push writing the weights that are sampled from, so that both sides stop for it."""
    accesses = tuple(
        replace(a, data="actor.rollout") if (a.stage, a.data) == ("push", "actor.staged") else a
        for a in graph.accesses
        if a.stage != "pull"
    )
    stages = tuple(s for s in graph.stages if s.name != "pull")
    return check(
        replace(graph, stages=stages, data=tuple(d for d in graph.data if d.name != "actor.staged"), accesses=accesses)
    )


def doubled(graph: Graph) -> Graph:
    """Return the graph with the pass for the old scores done twice."""
    twin = replace(graph.stage_of["old"], name="twin")
    out = replace(graph.data_of["old_out"], name="twin_out", columns=(Column("twin_logp", "float32"),))
    new = {"old": "twin", "old_out": "twin_out"}
    copies = [replace(a, stage="twin", data=new.get(a.data, a.data)) for a in graph.accesses if a.stage == "old"]
    copies += [replace(a, data="twin_out") for a in graph.accesses if (a.stage, a.data) == ("train", "old_out")]
    index = graph.stages.index(graph.stage_of["train"])
    stages = (*graph.stages[:index], twin, *graph.stages[index:])
    return check(replace(graph, stages=stages, data=(*graph.data, out), accesses=(*graph.accesses, *copies)))


def waiting(graph: Graph) -> Graph:
    """Return the graph with a gradient pass that needs the whole batch, to know what it divides by."""
    return check(
        replace(graph, stages=tuple(replace(s, grain=Grain.BATCH) if s.name == "train" else s for s in graph.stages))
    )


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize(
    ("base", "rewrites", "tolerance"),
    [
        (rendezvous, ["split_push{data=actor.rollout}"], 0.0),
        (doubled, ["merge_equal{a=old,b=twin}"], 0.0),
        (waiting, ["defer_normalise{train=train,update=update}", "stream{producer=gen,firings=4}"], 2e-4),
    ],
)
def test_rewrites_of_other_graphs(
    tmp_path: Path, base: Callable[[Graph], Graph], rewrites: list[str], tolerance: float, staleness: int
) -> None:
    def build(recipe: Recipe) -> Graph:
        return base(build_graph(recipe))

    def rewritten(recipe: Recipe) -> Graph:
        graph = build(recipe)
        for text in rewrites:
            graph = read_rewrite(text).apply(graph)
        return graph

    found: list[list[list[float]]] = []
    for name, each in (("before", build), ("after", rewritten)):
        folder = RunFolder(tmp_path / name)
        folder.path.mkdir()
        train(tiny_recipe(**settings(staleness)), lambda at=folder: at, Recorder(), build=each)
        found.append(losses(folder))
    for expected, row in zip(*found, strict=True):
        assert row == pytest.approx(expected, abs=tolerance, rel=tolerance)


def apart(graph: Graph) -> Plan:
    """Return a plan that keeps sampling and training of a synchronous graph on slots of their own."""
    stale = build_graph(tiny_recipe(**settings(1)))
    plan = bind_local(stale)
    order = tuple((name, tuple(Slot(s.stage, s.firing) for s in slots)) for name, slots in plan.order)
    return replace(plan, graph=graph.digest(), order=order)


def test_placement_is_exact(run_tiny: Run, tmp_path: Any) -> None:
    together = losses(run_tiny("together", **settings(0)))
    folder = RunFolder(tmp_path / "apart")
    folder.path.mkdir()
    # The plan is for the graph with the correction of a stale one: the same stages on the same data.
    recipe = tiny_recipe(**settings(0))
    train(recipe, lambda: folder, Recorder(), bind=apart)
    assert losses(folder) == together


def moved(*moves: str) -> Callable[[Graph], Plan]:
    """Return the function that binds a graph as usual and then makes ``moves``."""

    def bind(graph: Graph) -> Plan:
        site = Site(load_system("local"))
        plan = bind_local(graph)
        for text in moves:
            plan = parse(text).apply(Deployment(graph, plan, site))
        return plan

    return bind


@pytest.mark.parametrize(
    ("staleness", "moves"),
    [
        (0, ["place{stage=reward,mesh=all}"]),
        (0, ["place{stage=reward,mesh=all}", "place{stage=advantage,mesh=all}"]),
        (1, ["place{stage=reward,mesh=roll}", "place{stage=advantage,mesh=trn}"]),
        (1, ["colocate{stages=[gen,pull],mesh=trn}"]),
        (1, ["reorder{resource=roll,i=0,j=1}"]),
    ],
)
def test_moves_are_exact(run_tiny: Run, tmp_path: Path, staleness: int, moves: list[str]) -> None:
    before = losses(run_tiny("before", **settings(staleness)))
    folder = RunFolder(tmp_path / "after")
    folder.path.mkdir()
    train(tiny_recipe(**settings(staleness)), lambda: folder, Recorder(), bind=moved(*moves))
    assert losses(folder) == before


@pytest.mark.parametrize(
    ("move", "reason"),
    [
        ("offload{data=actor.staged,between=[push,push]}", "actor.staged: lives at host, and no worker has it"),
        ("place{stage=old,mesh=roll}", "moves data between meshes"),
        (
            "reorder{resource=roll,i=0,j=0,shift=-1}",
            r"gen: reads actor.rollout of 2 steps back and runs 0 ahead, .* retime\{stage=gen,r=-1\}",
        ),
    ],
)
def test_plans_that_cannot_run_are_refused(tmp_path: Path, move: str, reason: str) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(PlanError, match=reason):
        train(tiny_recipe(**settings(1)), lambda: folder, Recorder(), bind=moved(move))


@pytest.mark.parametrize(
    ("rewrite", "reason"),
    [
        ("over_sample{stage=gen,factor=5/4,stop=drop_groups}", "no worker carries out filter stages yet"),
        ("unfold{n=2}", "2 generate stages of actor in one step; only 1 of a kind runs yet"),
        ("retime{stage=pull,r=1}", "pull: installs weights 1 steps late"),
        ("stream{producer=gen,firings=3}", "stream{producer=gen,firings=3}|gen"),
        ("strem{producer=gen}", "did you mean|stream"),
    ],
)
def test_what_cannot_run_is_refused_before_the_start(run_tiny: Run, tmp_path: Any, rewrite: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        run_tiny("refused", **settings(0, rewrite))
    assert not (tmp_path / "refused" / "recipe.yaml").exists()
