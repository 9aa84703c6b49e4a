"""Whole runs on several ranks: tokens, losses and weights of one, checkpoints that move between plans, and an end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.runtime.conftest import TINY, Recorder, tiny_recipe
from tests.runtime.test_run import tensors, untimed
from tests.runtime.test_same_mathematics import moved

from rpeg.errors import PlanError
from rpeg.graph.graph import Graph
from rpeg.observe.run_folder import RunFolder
from rpeg.observe.trace import read_spans
from rpeg.plan.bind import bind_local
from rpeg.plan.plan import Balance, Layout, Mesh, Plan
from rpeg.runtime.run import train

pytestmark = pytest.mark.multiproc


def widened(ranks: int, balance: Balance = Balance.ROWS) -> Callable[[Graph], Plan]:
    """Return the function that binds a graph as usual, with so many data parallel ranks on every mesh but the host."""

    def bind(graph: Graph) -> Plan:
        plan, meshes, at = bind_local(graph), list[Mesh](), 0
        for mesh in plan.meshes:
            is_host = mesh.name == "host"
            where = mesh.where if is_host else f"local.slot[{at}:{at + ranks}]"
            meshes.append(replace(mesh, where=where, axes=mesh.axes if is_host else (("dp", ranks),)))
            at += 0 if is_host else ranks
        return replace(
            plan, meshes=tuple(meshes), bindings=tuple(replace(each, balance=balance) for each in plan.bindings)
        )

    return bind


def run_on(
    ranks: int, path: Path, *, resume: bool = False, balance: Balance = Balance.ROWS, **sections: Any
) -> RunFolder:
    """Train the tiny recipe on meshes of ``ranks`` ranks."""
    path.mkdir(exist_ok=True)
    folder = RunFolder(path)
    home = "inline" if ranks == 1 else "processes"
    recipe = tiny_recipe(**{**sections, "run": {**sections.get("run", {}), "home": home}})
    train(recipe, lambda: folder, Recorder(), resume=resume, bind=widened(ranks, balance))
    return folder


def assert_close(a: RunFolder, b: RunFolder, step: int) -> None:
    """Weights and metrics are equal to 1e-5, and the same tokens were sampled and evaluated."""
    first, second = tensors(a, step), tensors(b, step)
    assert first.keys() == second.keys()
    for name, values in first.items():
        torch.testing.assert_close(second[name], values, atol=1e-5, rtol=1e-5, msg=name)
    for row, other in zip(untimed(a), untimed(b), strict=True):
        assert other == pytest.approx(row, abs=1e-5, rel=1e-5)
    said = [
        [(line["response"], line["reward"]) for line in map(json.loads, each.samples.read_text().splitlines())]
        for each in (a, b)
    ]
    assert said[0] == said[1]


def test_two_ranks_equal_one_and_a_run_moves_between_them(tmp_path: Path) -> None:
    """Sampling, evaluation and training on two ranks from a checkpoint of one, and on one from a checkpoint of two."""
    every: dict[str, Any] = {"evaluation": {"every_steps": 1, "prompts": 9}}
    whole = run_on(1, tmp_path / "whole", **every)
    run_on(1, tmp_path / "parts", run={"steps": 1}, **every)
    run_on(2, tmp_path / "parts", resume=True, balance=Balance.TOKENS, run={"steps": 3}, **every)
    parts = run_on(1, tmp_path / "parts", resume=True, **every)
    assert_close(whole, parts, 4)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("normalise", ["token", "sample", "constant"])
def test_ranks_equal_one_apart_and_stale(tmp_path: Path, ranks: int, normalise: str) -> None:
    """Sampling and training on meshes of their own, weights pushed from one to the other."""
    algorithm = {"staleness": 1, "normalise": normalise, "reference": "frozen", "kl_coefficient": 0.1}
    one = run_on(1, tmp_path / "one", algorithm=algorithm)
    several = run_on(ranks, tmp_path / "several", algorithm=algorithm)
    assert_close(one, several, 4)


Bind = Callable[[Graph], Plan]
TP = (("heads", "tp"), ("kv_heads", "tp"), ("ffn", "tp"))
PP = (("layers", "pp"),)
APART: dict[str, Any] = {
    "model": {"scratch": {**TINY["model"]["scratch"], "layers": 2}},
    "algorithm": {"staleness": 1, "reference": "frozen", "kl_coefficient": 0.1},
}


def _apart(axis: str, samplers: int, start: Bind = bind_local, **layout: Any) -> Bind:
    """Return what binds sampling to the first ranks of the world, and training, split over ``axis``, to two others."""

    def bind(graph: Graph) -> Plan:
        plan = start(graph)
        at = {
            "roll": (f"local.slot[0:{samplers}]", (("dp", samplers),)),
            "trn": (f"local.slot[{samplers}:{samplers + 2}]", ((axis, 2),)),
        }
        meshes = [replace(m, where=at[m.name][0], axes=at[m.name][1]) if m.name in at else m for m in plan.meshes]
        schedules = {"train": "1f1b"} if axis == "pp" else {}
        bindings = [
            replace(b, layout=replace(b.layout, **layout), pipeline=schedules.get(b.stage)) if b.mesh == "trn" else b
            for b in plan.bindings
        ]
        return replace(plan, meshes=tuple(meshes), bindings=tuple(bindings))

    return bind


def trained_in_shares(graph: Graph) -> Plan:
    """Return the plan with sampling on one rank, the first of the world, and training by ZeRO 3 on two others."""
    moves = ["place{stage=kl_control,mesh=host}"] if "kl_control" in graph.stage_of else []
    return _apart("dp", 1, moved(*moves), zero=3)(graph)


in_tensors, in_stages = _apart("tp", 1, shard=TP), _apart("pp", 1, shard=PP)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Return the run whose ranks are alone: the controller carries its weights."""
    folder = RunFolder(tmp_path_factory.mktemp("alone"))
    train(tiny_recipe(**APART, run={"steps": 3}), lambda: folder, Recorder())
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "bind",
    [
        pytest.param(_apart("dp", 1, zero=3), id="shares"),
        pytest.param(_apart("tp", 2, shard=TP), id="parts, to two replicas"),
        pytest.param(in_stages, id="stages"),
    ],
)
def test_training_apart_from_sampling_equals_one_rank(alone: RunFolder, tmp_path: Path, bind: Bind) -> None:
    """Who saves is not number 0 of the world; the frozen reference is split, too; weights come in tiles."""
    folder = RunFolder(tmp_path)
    train(tiny_recipe(**APART, run={"home": "processes", "steps": 3}), lambda: folder, Recorder(), bind=bind)
    assert_close(alone, folder, 3)
    pushes = [span.bytes for span in read_spans(folder.spans) if span.stage == "push"]
    assert len(pushes) == 3
    assert min(pushes) > 0
    assert all(row["weights/probe_difference"] < 1e-4 for row in untimed(folder)[1:])


@pytest.mark.slow
def test_critic_and_average_in_shares_apart_from_sampling_equal_one_rank(tmp_path: Path) -> None:
    """Who saves is not number 0 of the world; all other models lie in shares, too."""
    found: list[RunFolder] = []
    algorithm = {"name": "ppo", "reference": "ema", "staleness": 1, "kl_coefficient": 0.1}
    for home, bind in (("inline", bind_local), ("processes", trained_in_shares)):
        found.append(RunFolder(tmp_path / home))
        found[-1].path.mkdir()
        recipe = tiny_recipe(algorithm=algorithm, run={"home": home, "steps": 3})
        train(recipe, lambda: found[-1], Recorder(), bind=bind)
    assert_close(*found, 3)
    for file in ("critic/model.safetensors", "critic_moments.safetensors", "average.safetensors"):
        one, shares = (folder.checkpoint(3) / file for folder in found)
        for name, each in load_file(one).items():
            torch.testing.assert_close(load_file(shares)[name], each, atol=1e-5, rtol=1e-4, msg=f"{file} {name}")


def _with_zero(plan: Plan) -> Plan:
    return replace(plan, bindings=tuple(replace(b, layout=replace(b.layout, zero=3)) for b in plan.bindings))


def _without_host(plan: Plan) -> Plan:
    return replace(plan, bindings=tuple(replace(b, mesh="all", layout=Layout("all")) for b in plan.bindings))


def _with_servers(plan: Plan) -> Plan:
    return replace(plan, bindings=tuple(replace(b, servers=2 if b.stage == "gen" else 1) for b in plan.bindings))


@pytest.mark.parametrize(
    ("home", "change", "reason"),
    [
        (
            "inline",
            lambda plan: plan,
            "all: has 2 ranks, and run.home inline is one process; set run.home=processes, or ray",
        ),
        ("processes", _with_zero, "gen: samples from weights split over dp .zero 3. of all"),
        (
            "processes",
            _without_host,
            "P5 all: its order lacks advantage.0, reward.0",
        ),
        ("processes", _with_servers, "gen: asks for 2 servers"),
    ],
)
def test_what_ranks_cannot_do_is_refused_before_anything_is_written(
    tmp_path: Path, home: str, change: Callable[[Plan], Plan], reason: str
) -> None:
    recipe = tiny_recipe(run={"home": home})
    with pytest.raises(PlanError, match=reason):
        train(recipe, lambda: RunFolder(tmp_path), Recorder(), bind=lambda graph: change(widened(2)(graph)))
    assert not list(tmp_path.iterdir())
