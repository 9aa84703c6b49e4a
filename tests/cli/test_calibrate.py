"""``rpeg calibrate``: what is refused before anything is measured, and that plans use what was measured."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from rpeg.perf.collectives import Collective
from rpeg.runtime.calibrate import host, kernels
from rpeg.runtime.calibrate.host import Effort
from rpeg.runtime.calibrate.links import Sent
from rpeg.runtime.calibrate.trials import Trial

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = Effort(
    kernel_rounds=1,
    trials=[
        Trial(
            layers=n, hidden=16 * n, heads=2, intermediate=32, vocabulary=64, prompts=2, group=1 + n, response_tokens=4
        )
        for n in (1, 2, 3)
    ],
    steps=2,
    rounds=1,
    run_steps=3,
)
SUMS_S = {2: {size: 1e-4 + size / 1e9 for size in (4, 2**14, 2**20, 2**25)}}
SENT = Sent(3e-5, 2e9, {Collective.ALL_REDUCE: SUMS_S})


def test_what_to_measure_has_to_be_said(rpeg: Callable) -> None:
    found = rpeg("calibrate")
    assert (found.status, found.faults) == (2, ["--host: is missing; say what to measure: --host, this machine"])


def test_a_folder_that_cannot_be_written_is_refused_first(
    rpeg: Callable, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "measure_peaks", lambda rounds: pytest.fail("it measures"))
    (folder / "file").write_text("")
    found = rpeg("calibrate", "--host", "--out", "file/folder")
    assert found.status == 2
    (fault,) = found.faults
    assert fault.startswith("file/folder: cannot be written: Not a directory; choose another folder with --out, or let")


def test_without_a_place_for_profiles_one_has_to_be_named(rpeg: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RPEG_PROFILES", "")
    (fault,) = rpeg("calibrate", "--host").faults
    assert fault.startswith("RPEG_PROFILES: is empty, which says that there are no profiles of your own; name a folder")


def test_what_computes_has_to_be_installed(rpeg: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else real(name, *rest))
    found = rpeg("calibrate", "--host", "--out", "profiles")
    assert (found.status, found.faults) == (2, ["torch: not installed; pip install 'rpeg[train]'"])


def test_plans_of_this_machine_use_what_was_measured(
    rpeg: Callable, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = host.run
    for sizes in ("_PRODUCTS", "_PREFILL", "_DECODE"):
        monkeypatch.setattr(kernels, sizes, getattr(kernels, sizes)[:20:3])
    monkeypatch.setattr(host, "Effort", lambda: TINY)
    monkeypatch.setattr(host, "_WHOLE", TINY.trials[0])
    monkeypatch.setattr(host, "measure_links", lambda worlds, rounds: SENT)
    monkeypatch.setattr(host, "run", lambda trial, steps: run(Trial(prompts=2, group=2, response_tokens=4), steps))
    (folder / "profiles" / "rl").mkdir(parents=True)
    (folder / "profiles" / "rl" / "rpeg.toml").write_text("what was there before")
    found = json.loads(rpeg("calibrate", "--host", "--out", "profiles", "--json").out)
    written = sorted(str(path.relative_to(folder / "profiles")) for path in (folder / "profiles").rglob("*.*"))
    assert sorted(found["files"]) == written
    assert all(0.0 <= error < 1000.0 for error in found["error_pct"].values())
    monkeypatch.setenv("RPEG_PROFILES", str(folder / "profiles"))
    said = rpeg("plan", EXAMPLES / "arithmetic.yaml", "--cluster", "local:2").out
    today = date.today().isoformat()
    assert f"profiles: rl/rpeg {today} (serving rpeg, training rpeg, memory rpeg), devices/local {today}" in said
    monkeypatch.setenv("RPEG_PROFILES", "")
    assert rpeg("plan", EXAMPLES / "arithmetic.yaml", "--cluster", "local:2").out != said


@pytest.mark.parametrize(
    ("recipe", "more", "software"),
    [
        ("arithmetic", [], "rl/rpeg "),
        ("arithmetic", ["run.home=processes"], "rl/rpeg-processes "),
        ("arithmetic", ["--software", "verl"], "rl/verl "),
        ("grpo_7b", ["--cluster", "alps:64"], "rl/generic "),
    ],
)
def test_software_of_a_plan(rpeg: Callable, recipe: str, more: list[str], software: str) -> None:
    cluster = [] if "--cluster" in more else ["--cluster", "local:2"]
    said = rpeg("plan", EXAMPLES / f"{recipe}.yaml", *more, *cluster, "--top", "1").out
    assert f"profiles: {software}" in said


@pytest.mark.slow
def test_a_whole_calibration_ends_in_time_and_is_near(
    rpeg: Callable, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = json.loads(rpeg("calibrate", "--host", "--out", "profiles", "--json").out)
    assert len(found["files"]) == 8
    assert {"engine generate", "engine train", "engine forward", "memory"} <= found["error_pct"].keys()
    assert max(found["error_pct"][f"engine {stage}"] for stage in ("generate", "train", "forward")) < 40.0
