"""``rpeg plan`` for several devices of this machine, then ``rpeg train`` with that plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Rpeg

pytestmark = pytest.mark.multiproc

HOME = "run.home=processes"


def _meshes(path: Path) -> dict[str, dict[str, int]]:
    """Return the axes of a planned run's meshes."""
    return {mesh["name"]: dict(mesh["axes"]) for mesh in json.loads(path.read_text())["plan"]["meshes"]}


@pytest.mark.parametrize(("pin", "axes"), [("train.dp=2", {"dp": 2}), ("train.tp=2", {"dp": 1, "tp": 2})])
def test_a_plan_on_two_ranks_is_made_and_trained(
    rpeg: Rpeg, recipe: Callable[..., str], pin: str, axes: dict[str, int]
) -> None:
    pins = ("--set", pin, "--set", "gen.dp=2")
    assert rpeg("plan", recipe(), HOME, "--cluster", "local:2", *pins, "--out", "plan.json").status == 0
    assert axes in _meshes(Path("plan.json")).values()
    ended = rpeg("train", recipe(), HOME, "--plan", "plan.json", "--run-dir", "run", "--quiet")
    assert (ended.status, ended.err) == (0, "")
    assert (Path("run") / "model" / "model.safetensors").exists()
    last = json.loads((Path("run") / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["counters/samples"] == 4
    assert last["rows/trained"] + last["rows/without_advantage"] == 4


def test_a_plan_with_ranks_needs_processes(rpeg: Rpeg, recipe: Callable[..., str]) -> None:
    pins = ("--set", "train.dp=2", "--set", "gen.dp=2")
    rpeg("plan", recipe(), HOME, "--cluster", "local:4", *pins, "--out", "plan.json")
    ended = rpeg("train", recipe(), "--plan", "plan.json", "--dry-run")
    assert ended.status == 2
    assert any("ranks, and run.home inline is one process; set run.home=processes" in each for each in ended.faults)


def test_one_process_is_planned_one_device_per_call(rpeg: Rpeg, recipe: Callable[..., str]) -> None:
    ended = rpeg("plan", recipe(), "--cluster", "local:2", "--set", "train.dp=2")
    assert ended.status == 2
    assert "train: fits in no layout" in ended.err
